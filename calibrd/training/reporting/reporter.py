"""Report a training job as a run: find its starting position, and submit its steps."""

from __future__ import annotations

import logging
import multiprocessing.util
import queue
import time
import weakref
from concurrent.futures import Future, wait
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from calibrators.adafocal import AdaFocalState, BinStatistics
from calibrd.client import AsyncClient, Client
from calibrd.training.reporting.outbox import Outbox, Recovered
from calibrd.training.reporting.sender import RunPosition, Sender, Session
from calibrd.training.reporting.sessions import Pass, SessionPlan, Start, new_session
from calibrd.transport.connection import Connection

_log = logging.getLogger("calibrd")

# the service stores times less precisely, and a continued session begins slightly later
SAME_SECONDS = 0.1
# how training proceeds from a step known to the service
GOES_ON = "continues after"

T = TypeVar("T")
Service = Client | AsyncClient | Connection | str | None


class Reporter:
    """Submission of a run's passes to the outbox, which stores them on disk, and to the sender.

    No call waits longer than ``budget`` seconds, even if the disk or the network hangs.
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
        self._plan = plan
        self._session: Session | None = None
        self._count = self._number = 0
        self._begun = 0.0
        self._at = Start()
        self._decision: tuple[int, AdaFocalState] | None = None
        self._has_warned = self._is_closed = False
        self._outbox = Outbox.of(connection, plan.run, folder)
        self._sender = Sender(connection, self._outbox)
        self._dropped = weakref.finalize(self, self._sender.end)
        self._dropped.atexit = False
        # unlike atexit, this also runs at the end of a multiprocessing child process
        self._at_exit = multiprocessing.util.Finalize(
            None, _close, (weakref.ref(self),), exitpriority=100
        )

    def begin(self, first: Start, *, fresh: bool) -> Start:
        """Open a session; return its start: the run's position, or ``first`` if there is none.

        The position is the one on the service or the one on this machine, whichever is newer. If
        the service rejects the session, raise its error.
        """
        until = time.monotonic() + self._budget
        try:
            recovered = self._recovered(until)
            start: Start | None = first
            how = "begins at"
            if not fresh and self._plan.decides == "service":
                start = None
            elif not fresh:
                start, how = self._position(first, recovered, until)
            self._send_left(recovered)
            opened = _result(self._begin_session(start).opening, until)
        except BaseException:
            self._end()
            raise
        self._at = start or first
        if opened is None:
            self._warn(
                "no response from the service within %g s (%s): training %s step %d, and its steps "
                "will be sent later",
                self._budget,
                self._sender.last_error or "no response",
                how,
                self._at.step,
            )
        elif self._plan.decides == "service":
            self._at = Start(opened.step, opened.state)
        elif how == GOES_ON:
            self._warn(
                "this run continues from step %d; pass fresh=True to start over",
                self._at.step,
            )
        elif how != "begins at":
            _log.info("%s: training %s step %d", self._plan.run, how, self._at.step)
        return self._at

    def record(self, statistics: BinStatistics, before: Start, after: AdaFocalState | None) -> None:
        """Submit a pass and the state after it; wait until it is on disk, within the budget."""
        self._hand_over(statistics, before, after, time.monotonic() + self._budget)
        self._at = Start(before.step + 1, after)

    def exchange(
        self,
        statistics: BinStatistics,
        before: Start,
    ) -> AdaFocalState:
        """Submit a rank's pass; return the service's state, or this rank's own after a timeout."""
        until = time.monotonic() + self._budget
        session = self._hand_over(statistics, before, None, until, is_wanted=True)
        while self._decision is None or self._decision[1].step < self._decision[0] + self._number:
            try:
                self._decision = session.decisions.get(timeout=_seconds_to(until))
            except queue.Empty:
                after = self._newest(before).update(statistics)
                self._warn(
                    "no merged state within %g s (%s): rank %d continues with its own state "
                    "at step %d",
                    self._budget,
                    self._sender.last_error or "other ranks have not sent their statistics",
                    self._plan.rank,
                    after.step,
                )
                break
        else:
            after = self._decision[1]
        self._at = Start(after.step, after)
        return after

    def close(self) -> None:
        """Send as many steps as possible within the budget; the rest stays on disk."""
        if self._is_closed:
            return
        self._end()
        ended = self._sender.ended
        wait([ended], self._budget)
        if not ended.done() or not ended.result():
            self._warn(
                "not all steps were sent; the next process of this run will send the rest, from %s",
                self._outbox.path,
            )

    def _end(self) -> None:
        self._is_closed = True
        self._at_exit.cancel()
        self._dropped.detach()
        self._sender.end()

    def _recovered(self, until: float) -> Recovered:
        reading = self._outbox.submit(self._outbox.recover)
        try:
            recovered = reading.result(_seconds_to(until))
        except Exception as error:  # noqa: BLE001 - no error may prevent training
            reason = error if reading.done() else f"not read within {self._budget:g} s"
            self._warn("cannot read %s: %s", self._outbox.path, reason)
            reading.add_done_callback(self._send_late)
            return Recovered()
        self._begun = recovered.begun
        return recovered

    def _send_late(self, reading: Future[Recovered]) -> None:
        """Send the steps left behind by other processes, once they have been read."""
        if reading.exception() is None:
            self._send_left(reading.result())

    def _send_left(self, recovered: Recovered) -> None:
        for key, plan in recovered.sessions:
            self._sender.begin(Session(plan, key))

    def _position(self, first: Start, recovered: Recovered, until: float) -> tuple[Start, str]:
        """Return the run's position, here or on the service, and its description for the log."""
        query = self._sender.query(self._plan.run, with_begun=recovered.has_unsent)
        known = _result(query, until) or RunPosition()
        is_needed = recovered.has_unsent or query.cancelled()
        if is_needed and known.begun <= recovered.begun + SAME_SECONDS:
            here = self._fitting(recovered.last)
            if here is not None:
                return here, "continues where this machine left off, from"
        there = self._fitting(known.start)
        return (there, GOES_ON) if there is not None and there.step else (first, "begins at")

    def _fitting(self, start: Start | None) -> Start | None:
        """Return the position if this plan can continue from it, else None."""
        if start is None or self._plan.settings is None:
            return start and Start(start.step)
        is_same = start.state is not None and start.state.settings == self._plan.settings
        return start if is_same else None

    def _begin_session(self, start: Start | None) -> Session:
        if self._session is not None:
            self._sender.leave(self._session)
        name = self._plan.session
        id = (f"{name}.{self._count}" if self._count else name) if name else new_session()
        self._count += 1
        self._number, self._decision = 0, None
        # later sessions must have later times, even if the clock is set back
        self._begun = max(time.time(), self._begun + 0.001)
        plan = replace(self._plan, session=id, start=start, begun=self._begun)
        self._session = Session(plan)
        self._sender.begin(self._session)
        return self._session

    def _hand_over(
        self,
        statistics: BinStatistics,
        before: Start,
        after: AdaFocalState | None,
        until: float,
        *,
        is_wanted: bool = False,
    ) -> Session:
        session = self._session
        if session is None or before != self._at:  # a checkpoint has been loaded
            session = self._begin_session(before)
            session.opening.cancel()
        self._number += 1
        known = before.state if after is not None else None
        one = Pass(self._number, statistics.to_bytes(), after, known)
        # queue the write before the pass is sent, because a sent pass is deleted
        written = self._outbox.submit(self._outbox.add, session.key, one)
        self._sender.add(session, one, until if is_wanted else 0.0)
        try:
            written.result(_seconds_to(until))
        except Exception as error:  # noqa: BLE001 - no error may stop training
            if not self._has_warned:
                self._warn(
                    "cannot write to %s (%s): unsent steps are lost when this process ends",
                    self._outbox.path,
                    error if written.done() else f"not written within {self._budget:g} s",
                )
            self._has_warned = True
        return session

    def _newest(self, before: Start) -> AdaFocalState:
        assert before.state is not None  # noqa: S101 - only AdaFocal calls exchange
        known = self._decision and self._decision[1]
        return known if known is not None and known.step >= before.step else before.state

    def _warn(self, message: str, *args: object) -> None:
        _log.warning(f"%s: {message}", self._plan.run, *args)


def connection_of(client: Service) -> Connection | None:
    """Return the connection of a client, or a new one for a URL; None if ``client`` is None."""
    if client is None or isinstance(client, Connection):
        return client
    if isinstance(client, str):
        return Connection.make(client, None, timeout=30.0, retry_seconds=0.0)
    if isinstance(client, Client | AsyncClient):
        return client.connection
    raise TypeError(f"client must be a Client, a URL or None, got {type(client).__name__}")


def _result(future: Future[T], until: float) -> T | None:
    """Return the result of a future; if it is not ready by ``until``, cancel it and return None."""
    try:
        return future.result(_seconds_to(until))
    except TimeoutError:
        return None if future.cancel() else future.result()


def _seconds_to(until: float) -> float:
    return max(0.0, until - time.monotonic())


def _close(reporter: weakref.ref[Reporter]) -> None:
    found = reporter()
    if found is not None:
        found.close()
