"""One large JSON text at a time: its parser holds the interpreter until it has ended."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

SMALL_BYTES = 1 << 16

_turn = threading.RLock()


@contextmanager
def parsing_turn(size: int) -> Iterator[None]:
    """Wait until no other thread turns a large text into objects or numbers.

    Threads that hold the interpreter for a tenth of a second each hand it to each other, and the
    event loop would wait for all of them.
    """
    if size <= SMALL_BYTES:
        yield
        return
    with _turn:
        yield
