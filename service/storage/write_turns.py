"""Fair turns for writing to SQLite, whose single write lock has no queue."""

from __future__ import annotations

import fcntl
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import IO

# the workspace of the current call, empty if unknown
OWNER: ContextVar[str] = ContextVar("owner", default="")

POLL_SECONDS = 0.001
GATE_SECONDS = 1.0


class WriteTurns:
    """Write lock for one thread at a time; owners take turns, each first in, first out.

    No matter how many calls of one owner are waiting, the next call of another owner waits for at
    most one of them.

    With ``file``, the path of the database, the processes that write to it take turns as well.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._is_taken = False
        self._waiting: dict[str, deque[threading.Event]] = {}

    @contextmanager
    def turn(self, seconds: float) -> Iterator[None]:
        """Wait for a turn and hold it; raise TimeoutError if none comes within ``seconds``."""
        deadline = time.monotonic() + seconds
        self._take(OWNER.get(), seconds)
        try:
            with ExitStack() as held:
                if self._file is not None:
                    held.enter_context(_process_turn(self._file, deadline))
                yield
        finally:
            self._pass_on()

    def _take(self, owner: str, seconds: float) -> None:
        with self._lock:
            if not self._is_taken:
                self._is_taken = True
                return
            ticket = threading.Event()
            self._waiting.setdefault(owner, deque()).append(ticket)
        if not ticket.wait(seconds) and self._withdraw(owner, ticket):
            raise TimeoutError

    def _withdraw(self, owner: str, ticket: threading.Event) -> bool:
        """Stop waiting; return False if the turn has been granted in the meantime."""
        with self._lock:
            if ticket.is_set():
                return False
            queue = self._waiting[owner]
            queue.remove(ticket)
            if not queue:
                del self._waiting[owner]
            return True

    def _pass_on(self) -> None:
        with self._lock:
            if not self._waiting:
                self._is_taken = False
                return
            owner = next(iter(self._waiting))
            queue = self._waiting.pop(owner)
            queue.popleft().set()
            if queue:
                self._waiting[owner] = queue  # after all others


@contextmanager
def _process_turn(file: Path, deadline: float) -> Iterator[None]:
    """Hold this process's turn to write until the context exits.

    A process holds the gate while it waits for the turn. The process that wrote last must pass
    the gate again, so it cannot overtake the one that is waiting. The kernel releases both locks
    if a process dies; a gate held by a stopped process is ignored after ``GATE_SECONDS``.

    SQLite's own lock protects the data; these locks only order the writers. If their files cannot
    be created, the process continues without them.
    """
    with ExitStack() as held:
        try:
            gate = held.enter_context(Path(f"{file}.gate").open("ab"))
            turn = held.enter_context(Path(f"{file}.turn").open("ab"))
        except OSError:
            yield
            return
        with suppress(TimeoutError):
            _lock(gate, min(deadline, time.monotonic() + GATE_SECONDS))
        _lock(turn, deadline)
        gate.close()
        yield


def _lock(file: IO[bytes], deadline: float) -> None:
    """Lock a file; raise TimeoutError at the deadline, because a stopped process may hold it."""
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise TimeoutError from None
            time.sleep(POLL_SECONDS)
        else:
            return
