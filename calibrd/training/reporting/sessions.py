"""A session as this process knows it, what it asks the service, and the thread of its disk."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from calibrators.adafocal import AdaFocalState
from calibrd.client import Client
from calibrd.errors import CalibrdError, NotCalibrd, Refused, ServerTrouble, TooSlow
from calibrd.run_models import RunSession
from calibrd.training.reporting.outbox import (
    Outbox,
    Pass,
    SessionFolder,
    SessionPlan,
    Start,
    new_session,
)

OLD_SECONDS = 30.0

T = TypeVar("T")
Tasks = queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]


class BackgroundExecutor:
    """Single-threaded background executor that does not keep the interpreter from exiting."""

    def __init__(self, name: str) -> None:
        self._tasks: Tasks = queue.SimpleQueue()
        threading.Thread(target=_work, args=(self._tasks,), name=name, daemon=True).start()

    def submit(self, function: Callable[[], T]) -> Future[T]:
        """Call a function after those submitted before."""
        future: Future[T] = Future()
        self._tasks.put((future, function))
        return future

    def shutdown(self) -> None:
        """End after what was submitted; safe to call from the garbage collector."""
        self._tasks.put(None)


def _work(tasks: Tasks) -> None:
    while (task := tasks.get()) is not None:
        future, function = task
        try:
            future.set_result(function())
        except Exception as error:  # noqa: BLE001 - raised by the future's result()
            future.set_exception(error)
        del task, future, function  # so that what they hold can be freed


@dataclass
class RunQuery:
    """Where is a run? ``start`` is None if it is new; not ``is_known`` if nobody has answered.

    ``begun`` is when its session began, if ``asks_when``.
    """

    run: str
    until: float
    asks_when: bool
    start: Start | None = None
    begun: float = 0.0
    refusal: CalibrdError | None = None
    is_known: bool = False
    is_done: bool = False

    def ask(self, client: Client) -> None:
        """Ask the service once; raises what may be otherwise at the next try."""
        try:
            found = client.run_state(self.run)
            if self.asks_when:
                known = {one.id: one.begun_at for one in client.get_run(self.run).sessions or []}
                begun = known.get(found.session)
                self.begun = begun.timestamp() if begun else 0.0
            self.start = Start(found.step, found.state)
            self.is_known = True
        except CalibrdError as error:
            if error.code == "no_such_run":
                self.is_known = True
                return
            if not is_refusal(error) and not isinstance(error, NotCalibrd):
                raise
            self.refusal = error


class ReportingSession:
    """A session of the run as this process knows it; ``base`` is its step before its first pass.

    Only the thread ``disk`` touches the disk, so that nobody else waits for it.
    """

    def __init__(
        self,
        plan: SessionPlan,
        disk: BackgroundExecutor,
        folder: SessionFolder | None = None,
        *,
        is_left: bool = False,
    ) -> None:
        self.plan = plan
        self._disk = disk
        self.folder = folder
        self.is_left = is_left
        self.is_past = False  # nothing more will come for it
        self.is_stuck = False
        self.waiting: deque[Pass] = deque()
        self.opened: RunSession | None = None
        self.base = plan.before
        self._has = 0  # the passes that the service has
        self.decided: AdaFocalState | None = None
        self.refusal: CalibrdError | None = None
        self.is_late = is_left
        self.is_resting = False
        self._last: Start | None = None
        self.wanted = 0
        self.wanted_until = 0.0

    @property
    def has_work(self) -> bool:
        """Return whether there is something to send or to wait for that was not refused."""
        return not self.is_resting and (self.opened is None or bool(self.waiting) or self.is_wanted)

    @property
    def is_awaited(self) -> bool:
        """Whether who has made it waits until it is opened."""
        return self.opened is None and not self.is_late

    @property
    def is_old(self) -> bool:
        """Whether it began some time ago; if not, the service's clock says better when it did."""
        return self.is_left or time.time() - self.plan.begun > OLD_SECONDS

    def has_sent(self, one: Pass) -> None:
        """Note that the service has a pass."""
        self.waiting.popleft()
        self._has = one.number

        def delete() -> None:
            if self.folder is not None:
                self.folder.delete(one)

        self._disk.submit(delete)

    def has_opened(self, opened: RunSession) -> None:
        """Note that the service has opened it, and where it is."""
        self.opened = opened
        if opened.begun_at is not None:  # by the service's clock
            self.replan(replace(self.plan, begun=opened.begun_at.timestamp()))
        self._has = opened.step - (self.base or 0)

    def lacks_one_before(self, one: Pass) -> bool:
        """Return whether the service would wait for ever for one that was lost before this."""
        return self.plan.decides == "trainer" and one.number > self._has + 1

    def lacks_some(self, step: int) -> bool:
        """Return whether a step waits because the service has lost those before."""
        first = self.plan.start and self.plan.start.step
        return self.plan.decides == "trainer" and step - 1 != first

    def begin_again(self) -> None:
        """Go on as another session, that begins with what waits."""
        one = self.waiting[0]
        start = Start((self.base or 0) + one.number - 1, one.before)
        self.opened = None
        plan = replace(self.plan, session=new_session(), start=start, base=self.base)
        # just after this one, and before all that began later
        self.replan(replace(plan, begun=plan.begun + 0.001))

    def replan(self, plan: SessionPlan) -> None:
        """Open it in another way from now on, also by a later process."""
        self.plan = plan

        def write() -> None:
            if self.folder is not None:
                self.folder.write_plan(self.plan, None if self.is_past else self._last)

        self._disk.submit(write)

    def write(self, one: Pass, outbox: Outbox) -> None:
        """Write a pass, on the thread of the disk; raise OSError if it is not possible."""
        if self.folder is None:
            self.folder = outbox.create(self.plan)
        self._existing_folder().write(one)
        if self.plan.decides == "trainer":
            self._last = Start((self.base or 0) + one.number, one.state)
            outbox.write_last(self._last, self.plan.begun)

    def _existing_folder(self) -> SessionFolder:
        """Return its folder, made anew if somebody has deleted it."""
        assert self.folder is not None  # noqa: S101 - checked by both callers
        if not self.folder.exists:
            self.folder.release()
            self.folder = SessionFolder.create(self.folder.path, self.plan)
        return self.folder

    def put_away(self) -> None:
        """Send no more of it from this process: what is left, a later one sends."""
        self._disk.submit(self._put_away)

    def _put_away(self) -> None:
        if self.folder is None:
            return
        with contextlib.suppress(OSError):
            for one in self.waiting:
                self._existing_folder().write(one)
        self.folder.remove_if_empty()
        self.folder.release()

    @property
    def is_wanted(self) -> bool:
        """Whether somebody waits for the service's decision of a pass."""
        if not self.wanted or self.is_decided(self.wanted):
            return False
        return time.monotonic() < self.wanted_until

    def is_decided(self, number: int) -> bool:
        """Return whether the service has decided a pass."""
        if self.base is None or self.decided is None:
            return False
        return self.decided.step >= self.base + number

    def goes_on_from(self, step: int, state: AdaFocalState | None) -> bool:
        """Return whether this is where it goes on, if that is for the trainer to say."""
        if self.plan.decides == "service" or self.is_left:
            return True
        return self.plan.start == Start(step, state)


def opened_by(client: Client, plan: SessionPlan, *, is_old: bool) -> RunSession:
    """Open the session of a plan; only of an old one is said when it began."""
    start = plan.start or Start()
    needs_step = plan.start is not None and start.state is None
    return client.open_run(
        plan.run,
        kind=plan.kind,
        settings=plan.settings,
        world_size=plan.world_size,
        decides=plan.decides,
        session=plan.session,
        state=start.state,
        from_step=start.step if needs_step else None,
        begun=plan.begun if is_old else None,
    )


def is_refusal(error: CalibrdError) -> bool:
    """Return whether the next try would end in the same way."""
    return isinstance(error, Refused) and not isinstance(error, ServerTrouble | TooSlow)


def in_a_line(error: Exception) -> str:
    """Return the message without the hint on a line of its own."""
    return str(error).partition("\n")[0]
