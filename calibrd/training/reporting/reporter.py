"""A training job's end of a run: where it begins, and what it hands over to be sent."""

from __future__ import annotations

import logging
import multiprocessing.util
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

from calibrators.adafocal import AdaFocalState, BinStatistics
from calibrd.client import AsyncClient, Client
from calibrd.training.reporting.outbox import Outbox, Pass, SessionPlan, Start, new_session
from calibrd.training.reporting.outbox_recovery import OutboxReplay, Recovered, recover
from calibrd.training.reporting.sender import Sender
from calibrd.training.reporting.sessions import BackgroundExecutor, ReportingSession
from calibrd.transport.connection import Connection

_log = logging.getLogger("calibrd")

Service = Client | AsyncClient | Connection | str | None


class Reporter:
    """Hands passes over to two threads: one writes them to disk, the other sends them.

    No call waits longer than ``budget`` seconds, whatever disk and network do.
    """

    def __init__(
        self,
        connection: Connection,
        plan: SessionPlan,
        *,
        budget: float,
        folder: str | Path | None,
    ) -> None:
        self._budget = budget
        self._given = plan.session
        self._plan = plan
        self._outbox = Outbox.of(connection, plan.run, folder)
        self._session: ReportingSession
        self._replay: OutboxReplay
        self._count = 0
        self._number = 0
        self._begun = 0.0
        self._warned = False
        self._disk = BackgroundExecutor("calibrd-outbox")
        self._sender = Sender(connection, self._disk)
        self.is_closed = False
        self._dropped = weakref.finalize(self, self._sender.end)
        self._dropped.atexit = False
        # unlike atexit's, it is also called at the end of processes of multiprocessing
        self._at_exit = multiprocessing.util.Finalize(
            None, _close, (weakref.ref(self),), exitpriority=100
        )

    def begin(self, first: Start, *, fresh: bool) -> Start:
        """Return where to begin: where the run is by the service, this machine, or ``first``.

        Raise what the service refuses.
        """
        until = time.monotonic() + self._budget
        try:
            recovered = self._recover(until)
            if self._plan.decides == "service":
                start = self._begin_joined(first if fresh else None, recovered, until) or first
            else:
                start = self._begin_alone(first, recovered, until, fresh=fresh)
        except BaseException:
            self._drop()
            raise
        self._at = start
        return start

    def record(self, statistics: BinStatistics, before: Start, after: AdaFocalState | None) -> None:
        """Hand over a pass and the state after it; waits until it is on disk, or long enough."""
        until = time.monotonic() + self._budget
        self._hand_over(statistics, before, after, until)
        self._at = Start(before.step + 1, after)

    def exchange(
        self,
        statistics: BinStatistics,
        before: Start,
        local: Callable[[AdaFocalState], AdaFocalState],
    ) -> AdaFocalState:
        """Hand over a rank's pass and wait for the service's state, or go on with ``local``'s."""
        until = time.monotonic() + self._budget
        session = self._hand_over(statistics, before, None, until, wants=True)
        number = self._number
        self._sender.wait(lambda: session.is_decided(number), until)
        session.wanted = 0
        known = session.decided
        if known is not None and session.is_decided(number):
            after = known
        else:
            assert before.state is not None  # noqa: S101 - only AdaFocal exchanges
            newest = known if known is not None and known.step >= before.step else before.state
            after = local(newest)
            _log.warning(
                "%s: no state of all ranks in %g s (%s): rank %d goes on with its own, step %d",
                self._plan.run,
                self._budget,
                self._sender.trouble or "the others have not sent theirs",
                self._plan.rank,
                after.step,
            )
        self._at = Start(after.step, after)
        return after

    def close(self) -> None:
        """Send what can be sent within the budget; the rest stays on disk."""
        if self.is_closed:
            return
        until = time.monotonic() + self._budget
        self._replay.is_read.wait(self._budget)
        self._drop()
        if not self._sender.join(until) or self._sender.left:
            _log.warning(
                "%s: not all is sent; the next process of this run sends what is in %s",
                self._plan.run,
                self._outbox.path,
            )

    def _drop(self) -> None:
        self.is_closed = True
        self._at_exit.cancel()
        self._dropped.detach()
        self._sender.end()

    def _begin_alone(
        self, first: Start, recovered: Recovered, until: float, *, fresh: bool
    ) -> Start:
        start, how = first, "begins at"
        if not fresh:
            query = self._sender.query(self._plan.run, until, asks_when=recovered.has_unsent)
            if query.refusal is not None:
                recovered.release()
                raise query.refusal
            here = _going_on(recovered.going_on(query), self._plan)
            if here is not None:
                start, how = here, "goes on as this machine left it, from"
            else:
                start = _going_on(query.start, self._plan) or first
        self._replay = OutboxReplay(recovered.sessions, self._sender, self._disk)
        session = self._begin_session(start)
        if not self._is_open(session, until):
            _log.warning(
                "%s: the service has not answered in %g s (%s): training %s step %d, and what is "
                "to be sent waits",
                self._plan.run,
                self._budget,
                self._sender.trouble or "no answer",
                how,
                start.step,
            )
        elif how != "begins at":
            _log.info("%s: training %s step %d", self._plan.run, how, start.step)
        return start

    def _begin_joined(
        self, start: Start | None, recovered: Recovered, until: float
    ) -> Start | None:
        self._replay = OutboxReplay(recovered.sessions, self._sender, self._disk)
        session = self._begin_session(start)
        if self._is_open(session, until) and session.opened is not None:
            return Start(session.opened.step, session.opened.state)
        _log.warning(
            "%s: the service has not answered in %g s (%s): rank %d begins on its own",
            self._plan.run,
            self._budget,
            self._sender.trouble or "no answer",
            self._plan.rank,
        )
        return start

    def _is_open(self, session: ReportingSession, until: float) -> bool:
        self._sender.wait(lambda: session.opened is not None or session.refusal is not None, until)
        if session.refusal is not None:
            raise session.refusal
        return self._sender.give_up(session)

    def _begin_session(self, start: Start | None, *, is_late: bool = False) -> ReportingSession:
        if self._count:
            self._sender.leave(self._session)
        id = self._given or new_session()
        if self._given and self._count:
            id = f"{id}.{self._count}"
        self._count += 1
        self._number = 0
        # a clock may be set back, but what is done later counts
        self._begun = max(time.time(), self._begun + 0.001)
        plan = replace(self._plan, session=id, start=start, begun=self._begun)
        self._session = ReportingSession(plan, self._disk)
        self._session.is_late = is_late
        self._sender.begin(self._session)
        return self._session

    def _hand_over(
        self,
        statistics: BinStatistics,
        before: Start,
        after: AdaFocalState | None,
        until: float,
        *,
        wants: bool = False,
    ) -> ReportingSession:
        if before != self._at:  # a checkpoint was loaded
            self._begin_session(before, is_late=True)
        session = self._session
        self._number += 1
        outbox, known = self._outbox, before.state if after is not None else None
        one = Pass(self._number, statistics.to_bytes(), after, known)
        # submitted before it can be sent, so that it is written before it is deleted
        written = self._disk.submit(lambda: session.write(one, outbox))
        self._sender.add(session, one, until if wants else None)
        self._warn_of_disk(written, until)
        return session

    def _warn_of_disk(self, written: Future[None], until: float) -> None:
        try:
            written.result(_seconds_to(until))
        except Exception as error:  # noqa: BLE001 - whatever it is, training goes on
            if self._warned:
                return
            self._warned = True
            _log.warning(
                "%s: cannot write to %s (%s): what is not sent is lost when this process ends",
                self._plan.run,
                self._outbox.path,
                error if written.done() else f"not in {self._budget:g} s",
            )

    def _recover(self, until: float) -> Recovered:
        run, outbox = self._plan.run, self._outbox
        reading = self._disk.submit(lambda: recover(run, outbox))
        try:
            recovered = reading.result(_seconds_to(until))
        except Exception as error:  # noqa: BLE001 - whatever it is, training begins
            reason = error if reading.done() else "it takes too long"
            _log.warning("cannot read %s: %s", outbox.path, reason)
            return Recovered()
        self._begun = recovered.begun
        return recovered


def connection_of(client: Service) -> Connection | None:
    """Return how a client reaches the service, or a URL is reached; None if there is none."""
    if client is None or isinstance(client, Connection):
        return client
    if isinstance(client, str):
        return Connection.make(client, None, timeout=30.0, patience=0.0)
    if isinstance(client, Client | AsyncClient):
        return client.connection
    raise TypeError(f"client must be a Client, a URL or None, got {type(client).__name__}")


def _going_on(start: Start | None, plan: SessionPlan) -> Start | None:
    """Return where a run of this plan can go on; if not, the service says what is wrong."""
    if start is None or plan.settings is None:
        return start and Start(start.step)
    is_same = start.state is not None and start.state.settings == plan.settings
    return start if is_same else None


def _seconds_to(until: float) -> float:
    return max(0.0, until - time.monotonic())


def _close(reporter: weakref.ref[Reporter]) -> None:
    found = reporter()
    if found is not None:
        found.close()
