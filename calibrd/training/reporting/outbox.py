"""The queue of a run on disk: what a process has not sent when it ends, a later one sends.

A folder for each run, in it one for each session: ``session.json`` says how it is opened, a file
for each pass what is to be sent, and a lock is held on ``lock`` for as long as its process lives.
``last.json`` says where the run was after the last pass of all, and stays when that is sent.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import sys
from pathlib import Path
from typing import IO, Any

import platformdirs

from calibrd.training.reporting.messages import Pass, Plan, Start, state_of
from calibrd.transport.connection import Connection
from calibrd.transport.disk_cache import write_whole

_log = logging.getLogger("calibrd")

PLAN, LOCK, LAST = "session.json", "lock", "last.json"
PASSES = "[0-9]*.json"
UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError)


class Drawer:
    """The folder of one session, held by this process."""

    def __init__(self, folder: Path, lock: IO[bytes]) -> None:
        self.folder = folder
        self._lock = lock

    @classmethod
    def open(cls, folder: Path, plan: Plan) -> Drawer:
        """A folder for a session that begins; OSError if there can be none."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (folder / LOCK).touch(mode=0o600)
        lock = _locked(folder)
        if lock is None:
            raise OSError(f"{folder} is in use by another process: the session's id must be new")
        _write(folder / PLAN, plan.to_dict())
        return cls(folder, lock)

    @property
    def is_there(self) -> bool:
        """Whether nobody has deleted it."""
        return (self.folder / PLAN).exists() and (self.folder / LOCK).exists()

    def files(self) -> list[Path]:
        """Those of its passes, in their order."""
        return _passes(self.folder)

    def read(self, file: Path) -> Pass | None:
        """A pass; one that cannot be read is told and laid aside."""
        try:
            return Pass.from_dict(json.loads(file.read_bytes()))
        except UNREADABLE as error:
            _log.warning("%s cannot be read, its step is lost: %s", file, error)
        with contextlib.suppress(OSError):
            file.rename(file.with_suffix(".damaged"))
        return None

    def keep(self, one: Pass) -> None:
        """Write a pass, if it is not there; OSError if that is not possible."""
        if not self._file(one).exists():
            _write(self._file(one), one.to_dict())

    def note(self, plan: Plan, last: Start | None) -> None:
        """Write how it is opened now; and when it began, if this is where the run is."""
        with contextlib.suppress(OSError):
            _write(self.folder / PLAN, plan.to_dict())
            if last is not None:
                Journal(self.folder.parent).note_last(last, plan.begun)

    def forget(self, one: Pass) -> None:
        """It has been sent."""
        with contextlib.suppress(OSError):
            self._file(one).unlink(missing_ok=True)

    def remove(self) -> None:
        """Leave nothing of it, if everything has been sent."""
        with contextlib.suppress(OSError):
            if self.files():
                return
            (self.folder / PLAN).unlink(missing_ok=True)
            (self.folder / LOCK).unlink(missing_ok=True)
            self.folder.rmdir()

    def release(self) -> None:
        """Leave it to a later process."""
        self._lock.close()

    def _file(self, one: Pass) -> Path:
        return self.folder / f"{one.number:08d}.json"


Leftover = tuple[Plan, Drawer]


class Journal:
    """The sessions of one run that are, or may be, not sent yet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def of(cls, connection: Connection, run: str, folder: str | Path | None) -> Journal:
        """That of a run, a service and a key, which stands for its workspace."""
        place = _short(f"{connection.url}\n{run}")
        key = _short(f"{connection.url}\n{connection.api_key or ''}\n{run}")
        base = state_folder() if folder is None else Path(folder)
        return cls(base / f"{run}-{place}-{key}")

    def open(self, plan: Plan) -> Drawer:
        """A folder for a session that begins; OSError if there can be none."""
        return Drawer.open(self.folder / f"{plan.session}-{plan.rank}", plan)

    def note_last(self, start: Start, begun: float) -> None:
        """Write where the run is now, in a session begun then; OSError if that is not possible."""
        state = start.state and start.state.to_dict()
        _write(self.folder / LAST, {"step": start.step, "state": state, "begun": begun})

    def last(self) -> tuple[Start, float] | None:
        """What ``note_last`` wrote last, if it can be read."""
        try:
            found = json.loads((self.folder / LAST).read_bytes())
            return Start(int(found["step"]), state_of(found["state"])), float(found["begun"])
        except FileNotFoundError:
            return None
        except UNREADABLE as error:
            _log.warning("cannot read %s: %s", self.folder / LAST, error)
            return None

    def has_unsent(self) -> bool:
        """Whether a pass waits, of whichever process."""
        return any(map(_passes, self.folder.glob("*")))

    def leftovers(self) -> list[Leftover]:
        """What dead processes left behind, the oldest session first; now held."""
        folders = [path.parent for path in sorted(self.folder.glob(f"*/{PLAN}"))]
        found = [left for folder in folders if (left := self._left(folder)) is not None]
        return sorted(found, key=lambda one: (one[0].begun, one[0].session))

    def of_other_keys(self) -> list[Path]:
        """Where dead processes left something of this run and service with other keys."""
        name = self.folder.name.rpartition("-")[0]
        others = [one for one in self.folder.parent.glob(f"{name}-*") if one != self.folder]
        return [one for one in sorted(others) if any(map(_is_left, one.glob(f"*/{PLAN}")))]

    def _left(self, folder: Path) -> Leftover | None:
        try:
            lock = _locked(folder)
        except FileNotFoundError:  # its process has just sent all, and removed it
            return None
        except OSError as error:
            _log.warning("cannot read what is left in %s: %s", folder, error)
            return None
        if lock is None:
            return None
        drawer = Drawer(folder, lock)
        try:
            plan = Plan.from_dict(json.loads((folder / PLAN).read_bytes()))
        except UNREADABLE as error:
            _log.warning("cannot read what is left in %s: %s", folder, error)
            drawer.release()
            return None
        if not drawer.files():
            drawer.remove()
            drawer.release()
            return None
        return plan, drawer


def state_folder() -> Path:
    """CALIBRD_STATE_DIR, or where this system keeps what programs must not lose."""
    given = os.environ.get("CALIBRD_STATE_DIR")
    base = Path(given) if given else platformdirs.user_state_path("calibrd", ensure_exists=False)
    return base / "runs"


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _passes(folder: Path) -> list[Path]:
    """The files of a session's passes, in their order; none if it has just been removed."""
    try:
        return sorted(folder.glob(PASSES))
    except FileNotFoundError:
        return []


def _is_left(plan: Path) -> bool:
    """Whether something is left in the folder of a plan, and nobody holds it."""
    if not _passes(plan.parent):
        return False
    with contextlib.suppress(OSError):
        lock = _locked(plan.parent)
        if lock is not None:
            lock.close()
            return True
    return False


def _write(path: Path, document: dict[str, Any]) -> None:
    write_whole(path, json.dumps(document).encode())


def _locked(folder: Path) -> IO[bytes] | None:
    """The open lock of a folder, or None if a living process holds it.

    FileNotFoundError if there is none, or no longer.
    """
    file = (folder / LOCK).open("rb+")
    try:
        _lock(file)
    except OSError:
        file.close()
        return None
    try:
        is_there = os.path.samestat(os.fstat(file.fileno()), (folder / LOCK).stat())
    except OSError:
        file.close()
        raise
    if is_there:
        return file
    file.close()
    return None


if sys.platform == "win32":
    import msvcrt

    def _lock(file: IO[bytes]) -> None:
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _lock(file: IO[bytes]) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
