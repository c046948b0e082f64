"""Turns at writing to SQLite, which has one write lock and no queue for it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

# the workspace that the current call is of, empty if it is not known
OWNER: ContextVar[str] = ContextVar("owner", default="")


class WriteTurns:
    """Let one thread of the process write at a time; owners take turns, calls of one in order.

    However many calls of an owner wait, a call of another waits for one of them at most.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_taken = False
        self._waiting: dict[str, deque[threading.Event]] = {}

    @contextmanager
    def turn(self, seconds: float) -> Iterator[None]:
        """Wait for a turn and hold it; raise TimeoutError if none comes in time."""
        self._take(OWNER.get(), seconds)
        try:
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
        """Wait no more; return False if the turn has come meanwhile."""
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
                self._waiting[owner] = queue  # behind all others
