"""A thread that does one thing after the other, so that who asks for it need not wait for long."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Late(Exception):
    """It was not done in time; it goes on."""


class Errand(Generic[T]):
    """Something that is done elsewhere."""

    def __init__(self, do: Callable[[], T]) -> None:
        self._do = do
        self._done = threading.Event()
        self._found: T | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """Do it."""
        try:
            self._found = self._do()
        except Exception as error:  # noqa: BLE001 - who asked is told
            self._error = error
        self._done.set()

    def result(self, until: float) -> T:
        """What it gave, waited for until then (by the monotonic clock); Late if it goes on."""
        if not self._done.wait(max(0.0, until - time.monotonic())):
            raise Late
        if self._error is not None:
            raise self._error
        return self._found  # type: ignore[return-value]


class Errands:
    """The thread: it ends when it is told to, and does not keep the interpreter from ending."""

    def __init__(self, name: str) -> None:
        self._queue: queue.SimpleQueue[Errand[object] | None] = queue.SimpleQueue()
        threading.Thread(target=_work, args=(self._queue,), name=name, daemon=True).start()

    def ask(self, do: Callable[[], T]) -> Errand[T]:
        """Have it done after what was asked before."""
        errand = Errand(do)
        self._queue.put(errand)  # type: ignore[arg-type]
        return errand

    def end(self) -> None:
        """Do what was asked, and no more; may be called by the garbage collector."""
        self._queue.put(None)


def _work(asked: queue.SimpleQueue[Errand[object] | None]) -> None:
    while (errand := asked.get()) is not None:
        errand.run()
        del errand  # what it holds may go
