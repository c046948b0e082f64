"""A training job's end of a run: where it begins, and what it hands over to be sent."""

from __future__ import annotations

import logging
import multiprocessing.util
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from calibrators.adafocal import AdaFocalState, BinStatistics, Settings
from calibrd.client import AsyncClient, Client
from calibrd.training.distributed import Ranks
from calibrd.training.reporting.executor import Errand, Errands, Late
from calibrd.training.reporting.messages import Kind, Pass, Plan, Start, new_session
from calibrd.training.reporting.outbox import Journal
from calibrd.training.reporting.outbox_recovery import Left, Leftovers, left_of
from calibrd.training.reporting.sender import Sender
from calibrd.training.reporting.sessions import Session
from calibrd.transport.connection import Connection

_log = logging.getLogger("calibrd")

Service = Client | AsyncClient | Connection | str | None


class Link:
    """Hands passes over to two threads: one writes them to disk, the other sends them.

    No call waits longer than ``budget`` seconds, whatever disk and network do.
    """

    def __init__(
        self,
        connection: Connection,
        run: str,
        kind: Kind,
        settings: Settings | None,
        ranks: Ranks,
        *,
        budget: float,
        session: str | None,
        folder: str | Path | None,
    ) -> None:
        self._connection = connection
        self._budget = budget
        self._given = session
        self._plan = Plan(
            run, kind, settings, ranks.rank, ranks.size, ranks.decides, session or "", None
        )
        self._journal = Journal.of(connection, run, folder)
        self._session: Session
        self._leftovers: Leftovers
        self._count = 0
        self._number = 0
        self._begun = 0.0
        self._warned = False
        self._disk = Errands("calibrd-journal")
        self._sender = Sender(connection, self._disk)
        self.is_closed = False
        self._dropped = weakref.finalize(self, self._sender.end)
        self._dropped.atexit = False
        # unlike atexit's, it is also called at the end of processes of multiprocessing
        self._at_exit = multiprocessing.util.Finalize(
            None, _close, (weakref.ref(self),), exitpriority=100
        )

    def begin(self, first: Start, *, fresh: bool) -> Start:
        """Where to begin: where the run is by the service, or by this machine, or ``first``.

        Raises what the service refuses.
        """
        until = time.monotonic() + self._budget
        try:
            left = self._look_at_disk(until)
            if self._plan.decides == "service":
                start = self._begin_joined(first if fresh else None, left, until) or first
            else:
                start = self._begin_alone(first, left, until, fresh=fresh)
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
        self._leftovers.are_read.wait(self._budget)
        self._drop()
        if not self._sender.join(until) or self._sender.left:
            _log.warning(
                "%s: not all is sent; the next process of this run sends what is in %s",
                self._plan.run,
                self._journal.folder,
            )

    def _drop(self) -> None:
        self.is_closed = True
        self._at_exit.cancel()
        self._dropped.detach()
        self._sender.end()

    def _begin_alone(self, first: Start, left: Left, until: float, *, fresh: bool) -> Start:
        start, how = first, "begins at"
        if not fresh:
            look = self._sender.look(self._plan.run, until, asks_when=left.has_unsent)
            if look.refusal is not None:
                left.release()
                raise look.refusal
            here = _going_on(left.going_on(look), self._plan)
            if here is not None:
                start, how = here, "goes on as this machine left it, from"
            else:
                start = _going_on(look.start, self._plan) or first
        self._leftovers = Leftovers(left.sessions, self._sender, self._disk)
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

    def _begin_joined(self, start: Start | None, left: Left, until: float) -> Start | None:
        self._leftovers = Leftovers(left.sessions, self._sender, self._disk)
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

    def _is_open(self, session: Session, until: float) -> bool:
        self._sender.wait(lambda: session.opened is not None or session.refusal is not None, until)
        if session.refusal is not None:
            raise session.refusal
        return self._sender.give_up(session)

    def _begin_session(self, start: Start | None, *, is_late: bool = False) -> Session:
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
        self._session = Session(plan, self._disk)
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
    ) -> Session:
        if before != self._at:  # a checkpoint was loaded
            self._begin_session(before, is_late=True)
        session = self._session
        self._number += 1
        journal, known = self._journal, before.state if after is not None else None
        one = Pass(self._number, statistics.to_bytes(), after, known)
        # asked for before it can be sent, so that it is written before it is forgotten
        kept = self._disk.ask(lambda: session.keep(one, journal))
        self._sender.add(session, one, until if wants else None)
        self._warn_of_disk(kept, until)
        return session

    def _warn_of_disk(self, errand: Errand[None], until: float) -> None:
        try:
            errand.result(until)
        except Exception as error:  # noqa: BLE001 - whatever it is, training goes on
            if self._warned:
                return
            self._warned = True
            _log.warning(
                "%s: cannot write to %s (%s): what is not sent is lost when this process ends",
                self._plan.run,
                self._journal.folder,
                f"not in {self._budget:g} s" if isinstance(error, Late) else error,
            )

    def _look_at_disk(self, until: float) -> Left:
        run, journal = self._plan.run, self._journal
        try:
            left = self._disk.ask(lambda: left_of(run, journal)).result(until)
        except Exception as error:  # noqa: BLE001 - whatever it is, training begins
            told = "it takes too long" if isinstance(error, Late) else error
            _log.warning("cannot read %s: %s", journal.folder, told)
            return Left()
        self._begun = left.begun
        return left


def connection_of(client: Service) -> Connection | None:
    """How a client reaches the service, or a URL is reached; None if there is none."""
    if client is None or isinstance(client, Connection):
        return client
    if isinstance(client, str):
        return Connection.make(client, None, timeout=30.0, patience=0.0)
    if isinstance(client, Client | AsyncClient):
        return client.connection
    raise TypeError(f"client must be a Client, a URL or None, got {type(client).__name__}")


def _going_on(start: Start | None, plan: Plan) -> Start | None:
    """Where a run of this plan can go on; if it cannot, the service says what is wrong."""
    if start is None or plan.settings is None:
        return start and Start(start.step)
    is_same = start.state is not None and start.state.settings == plan.settings
    return start if is_same else None


def _close(link: weakref.ref[Link]) -> None:
    found = link()
    if found is not None:
        found.close()
