"""A thread that sends steps to the service, so that training does not wait."""

from __future__ import annotations

import contextlib
import logging
import queue
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

from calibrators.adafocal import AdaFocalState
from calibrators.backoff import Backoff
from calibrd.client import Client
from calibrd.errors import CalibrdError, NotCalibrd, Refused, ServerError, TooSlow
from calibrd.run_models import RunSession
from calibrd.training.reporting.outbox import Outbox
from calibrd.training.reporting.sessions import Pass, SessionPlan, Start, new_session
from calibrd.transport.connection import Connection

_log = logging.getLogger("calibrd")

RESPONSE_SECONDS = 10.0
LONGEST_PAUSE = 15.0
QUERY_SECONDS = 0.2
POLL_SECONDS = 1.0
OLD_SECONDS = 30.0
MAX_IN_MEMORY = 1000  # passes, of at most 40 kB each
LOST = ("no_such_run", "no_such_session")


class RunPosition(NamedTuple):
    """A run's position on the service (None for a new run), and the start time of its session."""

    start: Start | None = None
    begun: float = 0.0


class Session:
    """A session of the run; threads other than the sender's use only its key, future and queue.

    A session created with a key was taken over from another process; its passes are only in the
    outbox.
    """

    def __init__(self, plan: SessionPlan, key: str = "") -> None:
        self.key = key or secrets.token_hex(8)
        self.opening: Future[RunSession] = Future()  # cancelled if no caller is waiting
        self.decisions: queue.SimpleQueue[tuple[int, AdaFocalState]] = queue.SimpleQueue()
        self.plan = plan
        self.is_left = self.is_past = self.has_more = bool(key)
        self.is_resting = self.is_stuck = self.has_warned = False
        self.waiting: deque[Pass] = deque()
        self.opened: RunSession | None = None
        self.base = plan.before
        self.has = self.taken = 0  # numbers of the last pass sent and the last in memory
        self.decided: AdaFocalState | None = None
        self.wanted, self.wanted_until = 0, 0.0
        if self.is_left:
            self.opening.cancel()

    @property
    def has_work(self) -> bool:
        """True if there is something to send or to wait for, and nothing was rejected."""
        is_idle = self.opened is not None and self.is_sent and not self.is_wanted
        return not self.is_resting and not is_idle

    @property
    def is_sent(self) -> bool:
        """True if all passes have been sent."""
        return not self.waiting and not self.has_more

    @property
    def is_wanted(self) -> bool:
        """True if a caller is waiting for the service's decision on a pass."""
        is_known = self.decided and self.decided.step >= (self.base or 0) + self.wanted
        return not is_known and time.monotonic() < self.wanted_until

    def add(self, one: Pass, wanted_until: float) -> None:
        """Add a pass; if too many are in memory, it is read from the outbox later."""
        self.has_more = self.has_more or len(self.waiting) >= MAX_IN_MEMORY
        if not self.has_more:
            self.waiting.append(one)
            self.taken = one.number
        self.wanted, self.wanted_until = one.number, wanted_until
        self.is_resting = False

    def continues_from(self, step: int, state: AdaFocalState | None) -> bool:
        """Return whether the session may continue from the service's position."""
        if self.plan.decides == "service" or self.is_left:
            return True
        return self.plan.start == Start(step, state)

    def is_awaited(self) -> bool:
        """Return whether a caller is still waiting for the session to open."""
        return not self.opening.done() and self.opening.set_running_or_notify_cancel()


class Sender:
    """Sender of sessions, with retries, in the order in which they began.

    Other threads communicate with it through messages, futures and queues; all other attributes are
    used only by its own thread.
    """

    def __init__(self, connection: Connection, outbox: Outbox) -> None:
        timeout = min(connection.timeout, RESPONSE_SECONDS)
        self._connection = replace(connection, retry_seconds=0.0, timeout=timeout)
        self._outbox = outbox
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._sessions: list[Session] = []
        self._queries: deque[tuple[Future[RunPosition], str, bool]] = deque()
        self._was_reached = False
        self._last_error = deque([""], maxlen=1)
        self.ended: Future[bool] = Future()  # True if everything was sent
        threading.Thread(target=self._run, name="calibrd-sender", daemon=True).start()

    def begin(self, session: Session) -> None:
        """Open a session after the earlier ones."""
        self._outbox.submit(self._outbox.plan, session.key, session.plan)
        self._inbox.put(lambda: self._sessions.append(session))

    def leave(self, session: Session) -> None:
        """Mark a session as complete: no more passes will be added."""
        self._inbox.put(lambda: setattr(session, "is_past", True))

    def add(self, session: Session, one: Pass, wanted_until: float) -> None:
        """Send a pass; until ``wanted_until``, a caller is waiting for the service's decision."""
        self._inbox.put(lambda: session.add(one, wanted_until))

    def query(self, run: str, *, with_begun: bool) -> Future[RunPosition]:
        """Return a future for a run's position; the query is retried until it is cancelled."""
        answer: Future[RunPosition] = Future()
        self._inbox.put(lambda: self._queries.append((answer, run, with_begun)))
        return answer

    def end(self) -> None:
        """Send what can be sent now, then stop; safe to call from the garbage collector."""
        self._inbox.put(None)

    @property
    def last_error(self) -> str:
        """The reason why the service is unreachable; empty if it is reachable."""
        return self._last_error[0]

    def _run(self) -> None:
        backoff, is_ending, has_failed = Backoff(), False, False
        while not is_ending or (self._is_busy() and not has_failed):
            has_work = bool(self._queries) or any(one.has_work for one in self._sessions)
            goes_on = self._is_busy() and not has_failed
            pause = backoff.pause(self._longest_pause()) if has_work and not goes_on else None
            is_ending |= self._take(0.0 if goes_on else pause)
            try:
                self._work(tries_stuck=not goes_on)
                has_failed = False
            except Exception as error:  # noqa: BLE001 - no error may stop training
                self._note(error)
                has_failed = True
            if not has_failed and not any(one.is_stuck for one in self._sessions):
                backoff.reset()
        is_all_sent = all(session.is_sent for session in self._sessions)
        try:
            for session in self._sessions:
                if session.waiting:
                    self._outbox.submit(self._outbox.add, session.key, *session.waiting)
            if "_client" in vars(self):
                self._client.close()
        finally:
            done = self._outbox.shutdown()
            done.add_done_callback(lambda _: self.ended.set_result(is_all_sent))

    def _is_busy(self) -> bool:
        """Return whether the next round can start without waiting."""
        return any(one.has_work and not one.is_stuck for one in self._sessions)

    def _longest_pause(self) -> float:
        """Return the longest pause between attempts, which is shorter while a caller is waiting."""
        if self._queries:
            return QUERY_SECONDS
        is_wanted = any(one.is_wanted for one in self._sessions)
        return POLL_SECONDS if is_wanted else LONGEST_PAUSE

    def _take(self, seconds: float | None) -> bool:
        """Handle messages, waiting at most ``seconds`` for the first; return whether to stop."""
        with contextlib.suppress(queue.Empty):
            message = self._inbox.get(timeout=seconds)
            while message is not None:
                message()
                message = self._inbox.get_nowait()
            return True
        return False

    @cached_property
    def _client(self) -> Client:
        return Client.from_connection(self._connection)

    def _work(self, *, tries_stuck: bool) -> None:
        """Send everything that can be sent now; raise errors that concern all sessions."""
        while self._queries:
            self._answer(*self._queries[0])
            self._queries.popleft()
        for session in list(self._sessions):
            if session.is_resting or (session.is_stuck and not tries_stuck):
                continue
            session.is_stuck = False
            try:
                self._forward(session)
            except CalibrdError as error:
                self._handle(session, error)
            except TimeoutError:  # the disk is too slow
                session.is_stuck = True
            except Exception as error:
                if not session.is_left:
                    raise
                self._refused(session, error)
            if session.is_past and session.is_sent:
                self._sessions.remove(session)

    def _forward(self, session: Session) -> None:
        opened = session.opened or self._open(session)
        while (one := self._next(session)) is not None:
            plan, step = session.plan, (session.base or 0) + one.number
            is_trainers = plan.decides == "trainer"
            if is_trainers and one.number > session.has + 1:
                opened = self._open_again(session, "earlier steps are lost")
            answer = self._client.send_statistics(
                plan.run, step, one.statistics, session=opened, rank=plan.rank, state=one.state
            )
            self._mark_reached()
            first = session.plan.start and session.plan.start.step
            if is_trainers and answer.status == "waiting" and step - 1 != first:
                opened = self._open_again(session, "earlier steps are lost")
                continue
            session.waiting.popleft()
            session.has = one.number
            self._outbox.submit(self._outbox.mark_sent, session.key, one.number)
            self._publish(session, answer.state)
            if session.is_left:
                return  # so that other sessions get their turn
        while session.is_wanted and self._inbox.empty():
            known = (session.base or 0) if session.decided is None else session.decided.step
            left = max(0.0, session.wanted_until - time.monotonic())
            wait = round(min(left, POLL_SECONDS), 2)
            now = self._client.run_state(opened.run, after=known, wait=wait, session=opened)
            if now.step > known:
                self._publish(session, now.state)

    def _next(self, session: Session) -> Pass | None:
        if not session.waiting and session.has_more:
            reading = self._outbox.submit(self._outbox.read, session.key, session.taken)
            found = reading.result(RESPONSE_SECONDS)
            session.has_more = found is not None
            if found is not None:
                session.waiting.append(found)
                session.taken = found.number
        return session.waiting[0] if session.waiting else None

    def _open(self, session: Session) -> RunSession:
        plan = session.plan
        # the service's clock sets the start time of a session that has just begun
        is_old = session.is_left or time.time() - plan.begun > OLD_SECONDS
        opened = self._client.open_run(**plan.opening(is_old=is_old))
        if not session.continues_from(opened.step, opened.state):
            # another process has continued the session with this id: use another id
            plan = replace(plan, session=f"{plan.session}.{secrets.token_hex(3)}")
            opened = self._client.open_run(**plan.opening(is_old=is_old))
        self._mark_reached()
        is_awaited = session.is_awaited()
        if plan.decides == "service" and plan.base is None:
            # a rank that joins in time starts at the position of the others
            plan = replace(plan, base=opened.step if is_awaited else opened.base_step)
        if opened.begun_at is not None:
            plan = replace(plan, begun=opened.begun_at.timestamp())
        session.opened, session.base = opened, plan.before
        session.has = opened.step - (session.base or 0)
        self._replan(session, plan)
        self._publish(session, opened.state)
        if is_awaited:
            session.opening.set_result(opened)
        return opened

    def _open_again(self, session: Session, reason: str) -> RunSession:
        """Continue in a new session that begins with the first waiting pass."""
        plan, one = session.plan, session.waiting[0]
        _log.warning("%s: %s continues as a new session: %s", plan.run, plan.session, reason)
        start = Start((session.base or 0) + one.number - 1, one.before)
        begun = plan.begun + 0.001  # just after this session, and before all later ones
        self._replan(
            session,
            replace(plan, session=new_session(), start=start, base=session.base, begun=begun),
        )
        session.opened = None
        return self._open(session)

    def _replan(self, session: Session, plan: SessionPlan) -> None:
        session.plan = plan
        self._outbox.submit(self._outbox.plan, session.key, plan)

    def _publish(self, session: Session, state: AdaFocalState | None) -> None:
        if state is not None and session.plan.decides == "service":
            session.decided = state
            session.decisions.put((session.base or 0, state))

    def _answer(self, answer: Future[RunPosition], run: str, with_begun: bool) -> None:
        if answer.cancelled():
            return
        found, refusal = RunPosition(), None
        try:
            now, begun = self._client.run_state(run), None
            if with_begun:
                sessions = self._client.get_run(run).sessions or []
                begun = {one.id: one.begun_at for one in sessions}.get(now.session)
            found = RunPosition(Start(now.step, now.state), begun.timestamp() if begun else 0.0)
            self._mark_reached()
        except CalibrdError as error:
            if not is_refusal(error) and not isinstance(error, NotCalibrd):
                raise
            refusal = None if getattr(error, "code", "") == "no_such_run" else error
        if answer.set_running_or_notify_cancel():
            answer.set_exception(refusal) if refusal else answer.set_result(found)

    def _handle(self, session: Session, error: CalibrdError) -> None:
        """Handle an error from one session; raise it if it concerns all sessions."""
        is_lost = isinstance(error, Refused) and error.code in LOST
        can_begin_again = session.opened and session.waiting and session.plan.decides == "trainer"
        if is_lost and can_begin_again:
            self._open_again(session, first_line(error))
        elif is_refusal(error) or (isinstance(error, NotCalibrd) and not session.opening.done()):
            self._refused(session, error)
        elif session.is_left and isinstance(error, ServerError):  # it may concern only this session
            session.is_stuck = True
            self._warn_once(session, f"cannot send the steps of {session.plan.session} yet", error)
        else:
            raise error

    def _refused(self, session: Session, error: Exception) -> None:
        session.is_resting = True
        if session.is_awaited():
            session.opening.set_exception(error)
        else:
            self._warn_once(session, f"rejected; the steps are kept in {self._outbox.path}", error)

    def _warn_once(self, session: Session, what: str, error: Exception) -> None:
        if not session.has_warned:
            _log.warning("%s: %s: %s", session.plan.run, what, first_line(error))
        session.has_warned = True

    def _mark_reached(self) -> None:
        if self.last_error and self._was_reached:
            _log.info("%s is reachable again", self._connection.url)
        self._last_error.append("")
        self._was_reached = True

    def _note(self, error: Exception) -> None:
        if not isinstance(error, CalibrdError):
            _log.error("steps cannot be sent because of an unexpected error", exc_info=error)
        elif not self.last_error and self._was_reached:
            _log.warning("training continues, but steps cannot be sent now: %s", first_line(error))
        self._last_error.append(first_line(error))


def is_refusal(error: CalibrdError) -> bool:
    """Return whether the service rejected the request, so that a retry would fail too."""
    return isinstance(error, Refused) and not isinstance(error, ServerError | TooSlow)


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, without the hint."""
    return str(error).partition("\n")[0]
