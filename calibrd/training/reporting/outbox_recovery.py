"""Recover what earlier processes of a run left on this machine: where it was, what is unsent."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from calibrd.training.reporting.outbox import (
    LOCK,
    PLAN,
    UNREADABLE,
    Outbox,
    SessionFolder,
    SessionPlan,
    Start,
    files_of_passes,
)
from calibrd.training.reporting.sender import Sender
from calibrd.training.reporting.sessions import BackgroundExecutor, ReportingSession, RunQuery
from calibrd.transport.disk_cache import locked

_log = logging.getLogger("calibrd")

# the service knows times less exactly, and what goes on as another session begins a bit later
SAME_SECONDS = 0.1

UnsentSession = tuple[SessionPlan, SessionFolder]


@dataclass(frozen=True)
class Recovered:
    """Where the run was here, when that session began, and what waits.

    ``has_unsent`` is of all processes, ``sessions`` are those of dead ones, now locked.
    """

    last: Start | None = None
    begun: float = 0.0
    has_unsent: bool = False
    sessions: list[UnsentSession] = field(default_factory=list)

    def going_on(self, query: RunQuery) -> Start | None:
        """Return where the run was here, if the service does not say, or not until all is sent."""
        is_needed = self.has_unsent or not query.is_known
        return self.last if is_needed and query.begun <= self.begun + SAME_SECONDS else None

    def release(self) -> None:
        """Leave it to a later process."""
        for _, folder in self.sessions:
            folder.release()


def recover(run: str, outbox: Outbox) -> Recovered:
    """Return what is left of a run."""
    for folder in _of_other_keys(outbox):
        _log.warning(
            "%s: what was left with another API key is sent with that key; it waits in %s",
            run,
            folder,
        )
    is_unsent, sessions = has_unsent(outbox), unsent_sessions(outbox)
    last, begun = outbox.read_last() or _last_of(sessions)
    return Recovered(last, begun, is_unsent, sessions)


def has_unsent(outbox: Outbox) -> bool:
    """Return whether a pass waits, of whichever process."""
    return any(map(files_of_passes, outbox.path.glob("*")))


def unsent_sessions(outbox: Outbox) -> list[UnsentSession]:
    """Lock and return what dead processes left behind, the oldest session first."""
    folders = [path.parent for path in sorted(outbox.path.glob(f"*/{PLAN}"))]
    found = [unsent for folder in folders if (unsent := _unsent(folder)) is not None]
    return sorted(found, key=lambda one: (one[0].begun, one[0].session))


def _of_other_keys(outbox: Outbox) -> list[Path]:
    """Return where dead processes left something of this run and service with other keys."""
    name = outbox.path.name.rpartition("-")[0]
    others = [one for one in outbox.path.parent.glob(f"{name}-*") if one != outbox.path]
    return [one for one in sorted(others) if any(map(_is_left, one.glob(f"*/{PLAN}")))]


def _is_left(plan: Path) -> bool:
    """Return whether something is left in the folder of a plan, and no process has locked it."""
    if not files_of_passes(plan.parent):
        return False
    with contextlib.suppress(OSError):
        lock = locked(plan.with_name(LOCK))
        if lock is not None:
            lock.close()
            return True
    return False


def _unsent(path: Path) -> UnsentSession | None:
    try:
        lock = locked(path / LOCK)
    except FileNotFoundError:  # its process has just sent all, and removed it
        return None
    except OSError as error:
        _log.warning("cannot read what is left in %s: %s", path, error)
        return None
    if lock is None:
        return None
    folder = SessionFolder(path, lock)
    try:
        plan = SessionPlan.from_dict(json.loads((path / PLAN).read_bytes()))
    except UNREADABLE as error:
        _log.warning("cannot read what is left in %s: %s", path, error)
        folder.release()
        return None
    if not folder.files():
        folder.remove_if_empty()
        folder.release()
        return None
    return plan, folder


def _last_of(sessions: list[UnsentSession]) -> tuple[Start | None, float]:
    """Return where the run was by what was left, should nothing else say so."""
    for plan, folder in reversed(sessions):
        one = folder.read(folder.files()[-1])
        if one is not None and plan.before is not None and plan.decides == "trainer":
            return Start(plan.before + one.number, one.state), plan.begun
    return None, 0.0


class OutboxReplay:
    """Sends what was left: opens all sessions at once, reads their passes one after the other.

    What is to be written meanwhile need not wait until all of them are read.
    """

    def __init__(
        self, unsent: list[UnsentSession], sender: Sender, disk: BackgroundExecutor
    ) -> None:
        self._sender = sender
        self._disk = disk
        self._files: deque[tuple[ReportingSession, SessionFolder, Path]] = deque()
        self._sessions = [
            (ReportingSession(plan, disk, folder, is_left=True), folder) for plan, folder in unsent
        ]
        self.is_read = threading.Event()
        for session, _ in self._sessions:
            sender.begin(session)
        disk.submit(self._list)

    def _list(self) -> None:
        for session, folder in self._sessions:
            self._files.extend((session, folder, file) for file in folder.files())
        self._read()

    def _read(self) -> None:
        if not self._files:
            for session, _ in self._sessions:
                self._sender.leave(session)
            self.is_read.set()
            return
        session, folder, file = self._files.popleft()
        one = folder.read(file)
        if one is not None:
            self._sender.add(session, one)
        self._disk.submit(self._read)
