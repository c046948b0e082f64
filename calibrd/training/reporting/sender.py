"""The thread that talks to the service, so that training does not."""

from __future__ import annotations

import contextlib
import logging
import queue
import random
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from calibrators.adafocal import AdaFocalState
from calibrd.client import Client
from calibrd.errors import CalibrdError, NotCalibrd, NotFound, Refused, ServerTrouble
from calibrd.maps.refresh import begin_anew_after_fork
from calibrd.run_models import RunSession
from calibrd.training.reporting.outbox import Pass, SessionPlan
from calibrd.training.reporting.sessions import (
    BackgroundExecutor,
    ReportingSession,
    RunQuery,
    in_a_line,
    is_refusal,
    opened_by,
)
from calibrd.transport.connection import FIRST_PAUSE, Connection

_log = logging.getLogger("calibrd")

ANSWER_SECONDS = 10.0
LONGEST_PAUSE = 15.0
POLL_SECONDS = 1.0
GONE = ("no_such_run", "no_such_session")


class Sender:
    """Sends sessions in the order in which they began, for as long as it takes."""

    def __init__(self, connection: Connection, disk: BackgroundExecutor) -> None:
        timeout = min(connection.timeout, ANSWER_SECONDS)
        self._connection = replace(connection, patience=0.0, timeout=timeout)
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._sessions: list[ReportingSession] = []
        self._queries: deque[RunQuery] = deque()
        self._client: Client | None = None
        self._trouble = ""
        self._was_reached = False
        self.left = 0
        self._disk = disk
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="calibrd-sender", daemon=True).start()
        begin_anew_after_fork(self)

    # asked by others

    def begin(self, session: ReportingSession) -> None:
        """Open a session, after those that began before."""
        self._inbox.put(lambda: self._sessions.append(session))

    def leave(self, session: ReportingSession) -> None:
        """Expect nothing more for a session."""

        def left() -> None:
            session.is_past = True

        self._inbox.put(left)

    def add(self, session: ReportingSession, one: Pass, wanted_until: float | None = None) -> None:
        """Send a pass; until then, somebody waits for what the service decides."""

        def added() -> None:
            session.waiting.append(one)
            session.is_resting = session.is_resting and session.is_left
            if wanted_until is not None:
                session.wanted, session.wanted_until = one.number, wanted_until

        self._inbox.put(added)

    def query(self, run: str, until: float, *, asks_when: bool) -> RunQuery:
        """Ask where a run is, again and again until then, and wait for it."""
        query = RunQuery(run, until, asks_when)
        self._inbox.put(lambda: self._queries.append(query))
        self.wait(lambda: query.is_done, until)
        return query

    def wait(self, what: Callable[[], bool], until: float) -> bool:
        """Wait until something is so, at most until then."""
        with self._changed:
            return self._changed.wait_for(what, max(0.0, until - time.monotonic()))

    def give_up(self, session: ReportingSession) -> bool:
        """Stop waiting for a session to be opened; return whether it is."""
        with self._changed:
            session.is_late = session.opened is None
            return not session.is_late

    def end(self) -> None:
        """Send what can be sent now, and end, as the disk's thread does then.

        May be called by the garbage collector.
        """
        self._inbox.put(None)

    def join(self, until: float) -> bool:
        """Wait until then for its end; return whether it has ended."""
        return self._ended.wait(max(0.0, until - time.monotonic()))

    @property
    def trouble(self) -> str:
        """Return why the service cannot be reached, if it cannot."""
        return self._trouble

    def after_fork(self) -> None:
        """Leave all to the process that this one was forked from."""
        for session in self._sessions:
            if session.folder is not None:
                session.folder.release()

    # on its thread

    def _run(self) -> None:
        pause, is_ending = FIRST_PAUSE, False
        while not is_ending:
            has_work = bool(self._queries) or any(one.has_work for one in self._sessions)
            is_ending = self._take(pause if has_work else None)
            try:
                is_stuck = self._work()
                pause = min(2 * pause, self._longest_pause()) if is_stuck else FIRST_PAUSE
            except Exception as error:  # noqa: BLE001 - whatever it is, training goes on
                self._note(error)
                pause = min(2 * pause, self._longest_pause())
        self._finish()

    def _longest_pause(self) -> float:
        """Return how long to wait between tries; less while somebody waits for an answer."""
        if self._queries:
            return FIRST_PAUSE
        is_wanted = any(one.is_wanted for one in self._sessions)
        return POLL_SECONDS if is_wanted else LONGEST_PAUSE

    def _take(self, seconds: float | None) -> bool:
        """Take what has come, waited for so long; return whether it is the end."""
        jitter = random.uniform(0.75, 1.25)  # noqa: S311 - no secret
        with contextlib.suppress(queue.Empty):
            message = self._inbox.get(timeout=None if seconds is None else seconds * jitter)
            while message is not None:
                message()
                message = self._inbox.get_nowait()
            return True
        return False

    def _work(self) -> bool:
        """Do all that can be done; raise what keeps it from being done now.

        Return whether there are sessions of the past that must be tried again.
        """
        self._answer_queries()
        stuck = False
        for session in list(self._sessions):
            try:
                self._forward(session)
            except CalibrdError as error:
                if isinstance(error, NotFound) and error.code in GONE:
                    self._begin_again(session, error)
                elif is_refusal(error) or (session.is_awaited and isinstance(error, NotCalibrd)):
                    self._refused(session, error)
                elif session.is_left and isinstance(error, ServerTrouble):
                    stuck = True  # which may be of this one alone
                    self._is_stuck(session, error)
                else:
                    raise
            except Exception as error:
                if not session.is_left:
                    raise
                self._refused(session, error)
            if session.is_past and not session.waiting:
                self._sessions.remove(session)
                session.put_away()
        return stuck

    def _forward(self, session: ReportingSession) -> None:
        if session.is_resting:
            return
        opened = session.opened or self._open(session)
        plan, client = session.plan, self._reached()
        while session.waiting:
            one = session.waiting[0]
            if session.lacks_one_before(one):
                _log.warning("%s: a step of %s is lost: the rest is a new session", *_named(plan))
                session.begin_again()
                plan, opened = session.plan, self._open(session)
            step = (session.base or 0) + one.number
            told = client.send_statistics(
                plan.run, step, one.statistics, session=opened, rank=plan.rank, state=one.state
            )
            self._heard()
            if told.status == "waiting" and session.lacks_some(step):
                _log.warning("%s: steps of %s are lost: the rest is a new session", *_named(plan))
                session.begin_again()
                plan, opened = session.plan, self._open(session)
                continue
            session.has_sent(one)
            self._tell(session, told.state)
            if session.is_left and not self._inbox.empty():
                return  # others need not wait until all of it is sent
        self._follow(session, opened)

    def _open(self, session: ReportingSession) -> RunSession:
        plan = session.plan
        opened = opened_by(self._reached(), plan, is_old=session.is_old)
        if not session.goes_on_from(opened.step, opened.state):
            # a session of this id has gone on elsewhere: this one is another
            plan = replace(plan, session=f"{plan.session}.{secrets.token_hex(3)}")
            opened = opened_by(self._reached(), plan, is_old=session.is_old)
            session.replan(plan)
        self._heard()
        with self._changed:
            if plan.decides == "service":
                # who comes in time goes on where the others are
                at = opened.base_step if session.is_late else opened.step
                session.base = at if plan.base is None else plan.base
                session.decided = opened.state
            session.has_opened(opened)
            self._changed.notify_all()
        if plan.decides == "service":
            session.replan(replace(session.plan, base=session.base))
        return opened

    def _follow(self, session: ReportingSession, opened: RunSession) -> None:
        """Wait for a decision of the service, as long as somebody waits and has sent no more."""
        while session.is_wanted and self._inbox.empty():
            known = (session.base or 0) if session.decided is None else session.decided.step
            left = max(0.0, session.wanted_until - time.monotonic())
            wait = round(min(left, POLL_SECONDS), 2)
            told = self._reached().run_state(opened.run, after=known, wait=wait, session=opened)
            if told.step > known:
                self._tell(session, told.state)

    def _answer_queries(self) -> None:
        while self._queries:
            query = self._queries[0]
            if time.monotonic() < query.until:
                query.ask(self._reached())
                self._heard()
            with self._changed:
                query.is_done = True
                self._changed.notify_all()
            self._queries.popleft()

    def _reached(self) -> Client:
        if self._client is None:
            self._client = Client.over(self._connection)
        return self._client

    def _tell(self, session: ReportingSession, state: AdaFocalState | None) -> None:
        with self._changed:
            if state is not None and session.plan.decides == "service":
                session.decided = state
            self._changed.notify_all()

    def _heard(self) -> None:
        if self._trouble and self._was_reached:
            _log.info("%s answers again", self._connection.url)
        self._trouble, self._was_reached = "", True

    def _note(self, error: Exception) -> None:
        if not isinstance(error, CalibrdError):
            _log.error("what is to be sent waits, because of an unexpected error", exc_info=error)
        elif not self._trouble and self._was_reached:
            _log.warning("training goes on, and what is to be sent waits: %s", in_a_line(error))
        self._trouble = in_a_line(error)

    def _begin_again(self, session: ReportingSession, error: Refused) -> None:
        """Go on with another session: the service has lost this one, as by a restored backup."""
        plan = session.plan
        if session.opened is None or not session.waiting or plan.decides == "service":
            self._refused(session, error)
            return
        _log.warning("%s: the rest goes to a new session: %s", plan.run, in_a_line(error))
        session.begin_again()

    def _is_stuck(self, session: ReportingSession, error: CalibrdError) -> None:
        if not session.is_stuck:
            told = in_a_line(error)
            _log.warning("%s: what is left of %s waits: %s", *_named(session.plan), told)
        session.is_stuck = True

    def _refused(self, session: ReportingSession, error: Exception) -> None:
        is_known = session.refusal is not None
        with self._changed:
            session.refusal = error if isinstance(error, CalibrdError) else None
            session.is_resting = True
            self._changed.notify_all()
        # who makes it is told by an exception
        if not is_known and not session.is_awaited:
            place = "memory" if session.folder is None else session.folder.path
            told = in_a_line(error)
            _log.warning("%s: refused, kept in %s: %s", session.plan.run, place, told)

    def _finish(self) -> None:
        for session in self._sessions:
            session.put_away()
        self.left = sum(len(session.waiting) for session in self._sessions)
        if self._client is not None:
            self._client.close()
        self._disk.submit(self._ended.set)
        self._disk.shutdown()


def _named(plan: SessionPlan) -> tuple[str, str]:
    return plan.run, plan.session
