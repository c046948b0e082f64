"""What earlier processes of a run left on this machine: where it was, and what is to be sent."""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from calibrd.training.reporting.executor import Errands
from calibrd.training.reporting.messages import Start
from calibrd.training.reporting.outbox import Drawer, Journal, Leftover
from calibrd.training.reporting.sender import Sender
from calibrd.training.reporting.sessions import Look, Session

_log = logging.getLogger("calibrd")

# the service knows times less exactly, and what goes on as another session begins a bit later
SAME_SECONDS = 0.1


@dataclass(frozen=True)
class Left:
    """Where the run was here, when that session began, and what waits.

    ``has_unsent`` is of all processes, ``sessions`` are those of dead ones, now held.
    """

    last: Start | None = None
    begun: float = 0.0
    has_unsent: bool = False
    sessions: list[Leftover] = field(default_factory=list)

    def going_on(self, look: Look) -> Start | None:
        """Where the run was here, if the service does not say, or will say so when all is sent."""
        is_needed = self.has_unsent or not look.is_known
        return self.last if is_needed and look.begun <= self.begun + SAME_SECONDS else None

    def release(self) -> None:
        """Leave it to a later process."""
        for _, drawer in self.sessions:
            drawer.release()


def left_of(run: str, journal: Journal) -> Left:
    """What is left of a run."""
    for folder in journal.of_other_keys():
        _log.warning(
            "%s: what was left with another API key is sent with that key; it waits in %s",
            run,
            folder,
        )
    has_unsent, sessions = journal.has_unsent(), journal.leftovers()
    last, begun = journal.last() or _last_of(sessions)
    return Left(last, begun, has_unsent, sessions)


def _last_of(sessions: list[Leftover]) -> tuple[Start | None, float]:
    """Where the run was by what was left, should nothing else say so."""
    for plan, drawer in reversed(sessions):
        one = drawer.read(drawer.files()[-1])
        if one is not None and plan.before is not None and plan.decides == "trainer":
            return Start(plan.before + one.number, one.state), plan.begun
    return None, 0.0


class Leftovers:
    """Has the sessions that were left opened at once; reads their passes one after the other.

    What is to be written meanwhile need not wait until all of them are read.
    """

    def __init__(self, left: list[Leftover], sender: Sender, disk: Errands) -> None:
        self._sender = sender
        self._disk = disk
        self._files: deque[tuple[Session, Drawer, Path]] = deque()
        self._sessions = [
            (Session(plan, disk, drawer, is_left=True), drawer) for plan, drawer in left
        ]
        self.are_read = threading.Event()
        for session, _ in self._sessions:
            sender.begin(session)
        disk.ask(self._list)

    def _list(self) -> None:
        for session, drawer in self._sessions:
            self._files.extend((session, drawer, file) for file in drawer.files())
        self._read()

    def _read(self) -> None:
        if not self._files:
            for session, _ in self._sessions:
                self._sender.leave(session)
            self.are_read.set()
            return
        session, drawer, file = self._files.popleft()
        one = drawer.read(file)
        if one is not None:
            self._sender.add(session, one)
        self._disk.ask(self._read)
