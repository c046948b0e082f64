"""The outbox of a run: validation passes that are to be sent, and their copies on disk.

What a process has not sent when it ends, a later one sends. There is a folder for each run, and in
it one for each session: ``session.json`` says how it is opened, a file for each pass what is to be
sent, and a lock is held on ``lock`` while its process lives. ``last.json`` says where the run was
after the last pass of all, and stays when that is sent.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import logging
import os
import re
import secrets
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

import platformdirs

from calibrators.adafocal import AdaFocalState, BinStatistics, Settings
from calibrd.transport.connection import Connection
from calibrd.transport.disk_cache import locked, write_whole

_log = logging.getLogger("calibrd")

Kind = Literal["adafocal", "monitor"]

PLAN, LOCK, LAST = "session.json", "lock", "last.json"
PASSES = "[0-9]*.json"
UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError)
# the service takes 100, of which some are for what is added where a session goes on as another
SESSION = re.compile(r"[A-Za-z0-9._-]{1,80}")


@dataclass(frozen=True)
class Start:
    """Where a run goes on: after ``step``; with a state, unless it only monitors."""

    step: int = 0
    state: AdaFocalState | None = None


@dataclass(frozen=True)
class SessionPlan:
    """How a session of a run is opened.

    ``start`` is None where the service knows better. ``base`` is the step before the first pass,
    if that is not where it starts.
    """

    run: str
    kind: Kind
    settings: Settings | None
    rank: int
    world_size: int
    decides: str
    session: str
    start: Start | None
    base: int | None = None
    begun: float = field(default_factory=time.time)

    @property
    def before(self) -> int | None:
        """Return the step before the first pass, if it is known."""
        return self.start.step if self.base is None and self.start is not None else self.base

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        found = asdict(self)
        found["start"] = None
        if self.start is not None:
            state = self.start.state
            found["start"] = {"step": self.start.step, "state": state and state.to_dict()}
        return found

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> SessionPlan:
        """Return the plan that ``to_dict`` wrote."""
        given = dict(document)
        settings, start = given.pop("settings"), given.pop("start")
        return cls(
            settings=None if settings is None else Settings(**settings),
            start=None if start is None else Start(start["step"], state_of(start["state"])),
            **given,
        )


@dataclass(frozen=True)
class Pass:
    """A validation pass: its number in the session, its statistics as bytes, the state after it.

    ``before`` is the state before it, from which a session can go on if all else is lost. Both are
    None where they are for the service to say, and of monitors.
    """

    number: int
    statistics: bytes
    state: AdaFocalState | None = None
    before: AdaFocalState | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        text = base64.b64encode(self.statistics).decode()
        state, before = self.state and self.state.to_dict(), self.before and self.before.to_dict()
        return {"number": self.number, "statistics": text, "state": state, "before": before}

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> Pass:
        """Return the pass that ``to_dict`` wrote."""
        data = base64.b64decode(document["statistics"], validate=True)
        BinStatistics.from_bytes(data)  # which checks them
        state, before = state_of(document["state"]), state_of(document["before"])
        return cls(document["number"], data, state, before)


def state_of(document: dict[str, Any] | None) -> AdaFocalState | None:
    """Return the state of a JSON document, if there is one."""
    return None if document is None else AdaFocalState.from_dict(document)


def checked_session(session: str | None) -> str | None:
    """Return the id of a session, or None; raise ValueError for all else."""
    if session is not None and not SESSION.fullmatch(session):
        raise ValueError(
            "session must be of 1 to 80 letters A-Z and a-z, digits, '.', '_' and '-', "
            f"got {session!r}"
        )
    return session


def new_session() -> str:
    """Return an id that no other session has."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(4)}"


class SessionFolder:
    """The folder of one session, locked by this process."""

    def __init__(self, path: Path, lock: IO[bytes]) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def create(cls, path: Path, plan: SessionPlan) -> SessionFolder:
        """Create the folder of a session that begins; raise OSError if there can be none."""
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        (path / LOCK).touch(mode=0o600)
        lock = locked(path / LOCK)
        if lock is None:
            raise OSError(f"{path} is in use by another process: the session's id must be new")
        _write(path / PLAN, plan.to_dict())
        return cls(path, lock)

    @property
    def exists(self) -> bool:
        """Whether nobody has deleted it."""
        return (self.path / PLAN).exists() and (self.path / LOCK).exists()

    def files(self) -> list[Path]:
        """Return the files of its passes, in their order."""
        return files_of_passes(self.path)

    def read(self, file: Path) -> Pass | None:
        """Read a pass; one that cannot be read is logged and renamed."""
        try:
            return Pass.from_dict(json.loads(file.read_bytes()))
        except UNREADABLE as error:
            _log.warning("%s cannot be read, its step is lost: %s", file, error)
        with contextlib.suppress(OSError):
            file.rename(file.with_suffix(".damaged"))
        return None

    def write(self, one: Pass) -> None:
        """Write a pass, unless it is there; raise OSError if that is not possible."""
        if not self._file(one).exists():
            _write(self._file(one), one.to_dict())

    def write_plan(self, plan: SessionPlan, last: Start | None) -> None:
        """Write how the session is opened now; and when it began, if this is where the run is."""
        with contextlib.suppress(OSError):
            _write(self.path / PLAN, plan.to_dict())
            if last is not None:
                Outbox(self.path.parent).write_last(last, plan.begun)

    def delete(self, one: Pass) -> None:
        """Delete a pass that has been sent."""
        with contextlib.suppress(OSError):
            self._file(one).unlink(missing_ok=True)

    def remove_if_empty(self) -> None:
        """Remove the folder if every pass has been sent."""
        with contextlib.suppress(OSError):
            if self.files():
                return
            (self.path / PLAN).unlink(missing_ok=True)
            (self.path / LOCK).unlink(missing_ok=True)
            self.path.rmdir()

    def release(self) -> None:
        """Leave it to a later process."""
        self._lock.close()

    def _file(self, one: Pass) -> Path:
        return self.path / f"{one.number:08d}.json"


class Outbox:
    """The folder of one run: the sessions of which something is, or may be, not sent yet."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of(cls, connection: Connection, run: str, folder: str | Path | None) -> Outbox:
        """Return that of a run, a service and a key, which stands for its workspace."""
        place = _short(f"{connection.url}\n{run}")
        key = _short(f"{connection.url}\n{connection.api_key or ''}\n{run}")
        base = state_folder() if folder is None else Path(folder)
        return cls(base / f"{run}-{place}-{key}")

    def create(self, plan: SessionPlan) -> SessionFolder:
        """Create the folder of a session that begins; raise OSError if there can be none."""
        return SessionFolder.create(self.path / f"{plan.session}-{plan.rank}", plan)

    def write_last(self, start: Start, begun: float) -> None:
        """Write where the run is now, in a session begun then; raise OSError if not possible."""
        state = start.state and start.state.to_dict()
        _write(self.path / LAST, {"step": start.step, "state": state, "begun": begun})

    def read_last(self) -> tuple[Start, float] | None:
        """Return what ``write_last`` wrote last, if it can be read."""
        try:
            found = json.loads((self.path / LAST).read_bytes())
            return Start(int(found["step"]), state_of(found["state"])), float(found["begun"])
        except FileNotFoundError:
            return None
        except UNREADABLE as error:
            _log.warning("cannot read %s: %s", self.path / LAST, error)
            return None


def files_of_passes(folder: Path) -> list[Path]:
    """Return the files of a session's passes, in their order; none if it was just removed."""
    try:
        return sorted(folder.glob(PASSES))
    except FileNotFoundError:
        return []


def state_folder() -> Path:
    """Return CALIBRD_STATE_DIR, or where this system keeps what programs must not lose."""
    given = os.environ.get("CALIBRD_STATE_DIR")
    base = Path(given) if given else platformdirs.user_state_path("calibrd", ensure_exists=False)
    return base / "runs"


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _write(path: Path, document: dict[str, Any]) -> None:
    write_whole(path, json.dumps(document).encode())
