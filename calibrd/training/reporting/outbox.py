"""The outbox of a run: unsent validation passes in an SQLite database.

A later process sends the passes that an earlier one left behind. Each live process holds a lock on
a file next to the database; if the lock is free, another process takes over the sessions.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import queue
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, ParamSpec, TypeVar

import platformdirs

from calibrators.adafocal import AdaFocalState, BinStatistics
from calibrd.maps.refresh import reset_after_fork
from calibrd.training.reporting.sessions import UNREADABLE, Pass, SessionPlan, Start, state_of
from calibrd.transport.connection import Connection
from calibrd.transport.disk_cache import locked

_log = logging.getLogger("calibrd")

P = ParamSpec("P")
T = TypeVar("T")
Tasks = queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]

DATABASE = "outbox.sqlite3"
BUSY_SECONDS = 10.0
OLD_LOCK_SECONDS = 86_400.0
PAGE_BYTES, MAX_BYTES = 4096, 1 << 30
# the newest pass of a session is kept after it is sent, because it records the run's position
OPENING = (
    f"PRAGMA page_size = {PAGE_BYTES}",
    f"PRAGMA max_page_count = {MAX_BYTES // PAGE_BYTES}",
    "PRAGMA auto_vacuum = FULL",
    "PRAGMA synchronous = NORMAL",
    "BEGIN IMMEDIATE",
    "CREATE TABLE IF NOT EXISTS sessions (key TEXT NOT NULL UNIQUE, owner TEXT NOT NULL,"
    " begun REAL NOT NULL, plan TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS passes (key TEXT NOT NULL, number INTEGER NOT NULL,"
    " is_sent INTEGER NOT NULL, statistics BLOB NOT NULL, state TEXT, before TEXT,"
    " PRIMARY KEY (key, number))",
)
UNSENT = "EXISTS (SELECT 1 FROM passes WHERE passes.key = sessions.key AND NOT is_sent)"


@dataclass(frozen=True)
class Recovered:
    """The run's last position on this machine, and the sessions left to send.

    ``begun`` is the start time of the session at that position. ``has_unsent`` is True if any
    process has unsent passes; ``sessions`` contains only sessions taken over from dead processes.
    """

    last: Start | None = None
    begun: float = 0.0
    has_unsent: bool = False
    sessions: tuple[tuple[str, SessionPlan], ...] = ()


class Outbox:
    """The database of one run, and the thread that runs its statements one at a time.

    Only that thread can be blocked by a hanging disk. Each call reopens the database, so the
    file may be deleted in between and is never open during a fork.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock_path = path.with_name(f"{secrets.token_hex(8)}.lock")
        self._lock: IO[bytes] | None = None
        self._plans: dict[str, tuple[float, str]] = {}  # start time, and plan as JSON
        self._tasks: Tasks = queue.SimpleQueue()
        threading.Thread(
            target=_work, args=(self._tasks,), name="calibrd-outbox", daemon=True
        ).start()
        reset_after_fork(self)

    @classmethod
    def of(cls, connection: Connection, run: str, folder: str | Path | None) -> Outbox:
        """Return the outbox for a run, a service and an API key, which identifies the workspace."""
        place = _short(f"{connection.url}\n{run}")
        key = _short(f"{connection.url}\n{connection.api_key or ''}\n{run}")
        base = state_folder() if folder is None else Path(folder)
        return cls(base / f"{run}-{place}-{key}" / DATABASE)

    def submit(self, call: Callable[P, T], *args: P.args, **options: P.kwargs) -> Future[T]:
        """Queue a call to one of the methods below on the outbox's thread; return its future."""
        future: Future[T] = Future()
        self._tasks.put((future, lambda: call(*args, **options)))
        return future

    def shutdown(self) -> Future[None]:
        """Finish the submitted calls, then stop; a later process can send the unsent passes."""
        released = self.submit(self._release)
        self._tasks.put(None)
        return released

    def after_fork(self) -> None:
        """Close this process's handle to the lock, which the parent process still holds."""
        if self._lock is not None:
            self._lock.close()

    def recover(self) -> Recovered:
        """Take over the sessions of dead processes; return them with the run's last position."""
        for path in self._of_other_keys():
            _log.warning(
                "%s contains unsent steps of another API key: only that key can send them", path
            )
        for lock in self.path.parent.glob("*.lock"):  # remove the locks of long-dead processes
            with contextlib.suppress(OSError):
                if time.time() - lock.stat().st_mtime > OLD_LOCK_SECONDS and not _is_held(lock):
                    lock.unlink()
        if not self.path.exists():
            return Recovered()
        try:
            with self._opened() as database:
                return self._recovered(database)
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError as error:
            damaged = self.path.replace(self.path.with_suffix(f".damaged-{secrets.token_hex(4)}"))
            _log.warning("cannot read %s, renamed to %s: %s", self.path, damaged.name, error)
            return Recovered()

    def plan(self, key: str, plan: SessionPlan) -> None:
        """Store the plan with which this process or a later one opens a session."""
        self._plans[key] = (plan.begun, plan.to_json())
        if self.path.exists():
            with self._opened() as database:
                values = (*self._plans[key], key)
                database.execute("UPDATE sessions SET begun = ?, plan = ? WHERE key = ?", values)

    def add(self, key: str, *passes: Pass) -> None:
        """Write passes of a planned session unless they are already stored."""
        self._hold_lock()
        with self._opened() as database:
            database.execute(
                "INSERT OR IGNORE INTO sessions VALUES (?, ?, ?, ?)",
                (key, self._lock_path.name, *self._plans[key]),
            )
            database.executemany(
                "INSERT OR IGNORE INTO passes VALUES (?, ?, 0, ?, ?, ?)",
                [
                    (key, one.number, one.statistics, _text(one.state), _text(one.before))
                    for one in passes
                ],
            )

    def read(self, key: str, after: int) -> Pass | None:
        """Return the first unsent pass after number ``after``; log and delete damaged passes."""
        with self._opened() as database:
            for number, statistics, state, before in database.execute(
                "SELECT number, statistics, state, before FROM passes"
                " WHERE key = ? AND number > ? AND NOT is_sent ORDER BY number",
                (key, after),
            ).fetchall():
                try:
                    BinStatistics.from_bytes(statistics)  # checks the bytes
                    return Pass(number, statistics, _state(state), _state(before))
                except UNREADABLE as error:
                    _log.warning("cannot read a pass in %s; its step is lost: %s", self.path, error)
                database.execute("DELETE FROM passes WHERE key = ? AND number = ?", (key, number))
        return None

    def mark_sent(self, key: str, number: int) -> None:
        """Delete a sent pass; if it is the newest pass, keep only its state."""
        if not self.path.exists():
            return
        with self._opened() as database:
            database.execute(
                "UPDATE passes SET is_sent = 1, statistics = x'' WHERE key = ? AND number = ?",
                (key, number),
            )
            database.execute(
                "DELETE FROM passes WHERE key = ? AND is_sent AND number <"
                " (SELECT max(number) FROM passes WHERE key = ?)",
                (key, key),
            )
            database.execute(
                f"DELETE FROM sessions WHERE NOT {UNSENT}"  # noqa: S608 - a constant
                " AND rowid < (SELECT max(rowid) FROM sessions)"
            )
            database.execute("DELETE FROM passes WHERE key NOT IN (SELECT key FROM sessions)")

    def _recovered(self, database: sqlite3.Connection) -> Recovered:
        unsent = database.execute(f"SELECT DISTINCT owner FROM sessions WHERE {UNSENT}").fetchall()  # noqa: S608
        for (owner,) in unsent:
            try:
                if _is_held(self.path.with_name(owner)):
                    continue
            except OSError as error:
                _log.warning(
                    "cannot check whether %s is locked: %s", self.path.with_name(owner), error
                )
                continue
            self._hold_lock()
            me = self._lock_path.name
            database.execute("UPDATE sessions SET owner = ? WHERE owner = ?", (me, owner))
            self.path.with_name(owner).unlink(missing_ok=True)
        sessions = []
        for key, text in database.execute(
            f"SELECT key, plan FROM sessions WHERE owner = ? AND {UNSENT} ORDER BY begun",  # noqa: S608
            (self._lock_path.name,),
        ):
            try:
                plan = SessionPlan.from_json(text)
                sessions.append((key, plan))
                self._plans[key] = (plan.begun, text)
            except UNREADABLE as error:
                _log.warning("cannot read an unsent session in %s: %s", self.path, error)
        last, begun = self._last(database)
        return Recovered(last, begun, bool(unsent), tuple(sessions))

    def _last(self, database: sqlite3.Connection) -> tuple[Start | None, float]:
        """Return the position after the newest readable pass, and the start time of its session.

        Sessions in which the service decides have no known position.
        """
        for text, number, state in database.execute(
            "SELECT plan, number, state FROM sessions JOIN passes USING (key)"
            " ORDER BY sessions.rowid DESC, number DESC"
        ):
            try:
                plan = SessionPlan.from_json(text)
                if plan.decides == "trainer" and plan.before is not None:
                    return Start(plan.before + number, _state(state)), plan.begun
            except UNREADABLE as error:
                _log.warning("cannot read the last position of the run in %s: %s", self.path, error)
        return None, 0.0

    def _of_other_keys(self) -> list[Path]:
        """Return this run's outboxes of other keys that hold unsent passes of dead processes."""
        folder = self.path.parent
        name = folder.name.rpartition("-")[0]
        others = sorted(folder.parent.glob(f"{name}-*/{DATABASE}"))
        return [one for one in others if one != self.path and _has_unsent_of_the_dead(one)]

    @contextlib.contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """Open the database for one transaction."""
        opened = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None)
        with contextlib.closing(opened) as database:
            for statement in OPENING:
                database.execute(statement)
            with database:
                yield database

    def _hold_lock(self) -> None:
        if self._lock is not None and self._lock_path.exists():
            return
        self._release()  # in case the folder has been deleted
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock_path.touch(mode=0o600)
        self._lock = locked(self._lock_path)

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock_path.unlink(missing_ok=True)


def state_folder() -> Path:
    """Return the folder of all outboxes, in CALIBRD_STATE_DIR or the system's state folder."""
    path = os.environ.get("CALIBRD_STATE_DIR")
    base = Path(path) if path else platformdirs.user_state_path("calibrd", ensure_exists=False)
    return base / "runs"


def _work(tasks: Tasks) -> None:
    while (task := tasks.get()) is not None:
        future, call = task
        try:
            future.set_result(call())
        except Exception as error:  # noqa: BLE001 - raised by the future's result()
            future.set_exception(error)
        del task, future, call  # so that the objects they refer to can be freed


def _is_held(lock: Path) -> bool:
    """Return whether a live process holds a lock; raise OSError if that cannot be determined."""
    try:
        file = locked(lock)
    except FileNotFoundError:
        return False
    if file is not None:
        file.close()
    return file is None


def _has_unsent_of_the_dead(path: Path) -> bool:
    with contextlib.suppress(sqlite3.Error, OSError):
        opened = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)
        with contextlib.closing(opened) as database:
            owners = database.execute(f"SELECT owner FROM sessions WHERE {UNSENT}").fetchall()  # noqa: S608
        return any(not _is_held(path.with_name(owner)) for (owner,) in owners)
    return False


def _text(state: AdaFocalState | None) -> str | None:
    return None if state is None else json.dumps(state.to_dict())


def _state(text: str | None) -> AdaFocalState | None:
    return None if text is None else state_of(json.loads(text))


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
