"""Open connections of a server: count them by address and choose which to close."""

from __future__ import annotations

import resource
from collections import Counter
from pathlib import Path
from typing import Protocol

MEGABYTE = 1 << 20
# for the database, blobs, uploads and workers
RESERVED_FILES = 192
MAX_HEAD_BYTES = 64 * MEGABYTE
MAX_HEAD_BYTES_OF_ONE = 16 * MEGABYTE


class Closable(Protocol):
    """A connection that can be closed."""

    def drop(self) -> None:
        """Close the connection at once."""


class Connections:
    """Connections and unfinished heads by address; idle connections make room for new ones.

    A connection is idle while it has no request in flight. If an address has more than
    ``most_of_one`` connections, its oldest idle one is closed. If there are more than ``most`` in
    total, the oldest idle one of the address with the most idle connections is closed. If there is
    no idle connection to close, the new one is closed.
    """

    def __init__(self, most_of_one: int, most: int | None = None) -> None:
        self._most_of_one = most_of_one
        self._most = files_left() if most is None else most
        self._open: Counter[str] = Counter()
        self._total = 0
        self._idle: dict[str, dict[Closable, None]] = {}
        self._dropped: set[Closable] = set()
        self._heads: dict[str, dict[Closable, int]] = {}
        self._head_bytes: Counter[str] = Counter()
        self._all_head_bytes = 0

    def add(self, one: Closable, address: str) -> None:
        """Count a new, idle connection and make room for it."""
        if self._open[address] >= self._most_of_one:
            self._drop_oldest(address)
        elif self._total >= self._most and self._idle:
            self._drop_oldest(max(self._idle, key=lambda other: len(self._idle[other])))
        self._open[address] += 1
        self._total += 1
        self.set_idle(one, address)
        if self._open[address] > self._most_of_one or self._total > self._most:
            self._drop(one, address)

    def remove(self, one: Closable, address: str) -> None:
        """Stop counting a connection that has ended."""
        if one in self._dropped:
            self._dropped.discard(one)
            return
        self.set_busy(one, address)
        self._total -= 1
        self._open[address] -= 1
        if not self._open[address]:
            del self._open[address]

    def set_idle(self, one: Closable, address: str) -> None:
        """Mark a connection as idle: no request is in flight."""
        idle = self._idle.get(address)
        if idle is None:
            idle = self._idle[address] = {}
        idle[one] = None

    def set_busy(self, one: Closable, address: str) -> None:
        """Mark a connection as busy: a request is in flight."""
        idle = self._idle.get(address)
        if idle is not None:
            idle.pop(one, None)
            if not idle:
                del self._idle[address]

    def hold_head(self, one: Closable, address: str, size: int) -> bool:
        """Set the bytes of a connection's unfinished head; return whether there is room for them.

        If all heads together take too much, the address that holds most loses its oldest ones.
        """
        heads = self._heads.setdefault(address, {})
        change = size - heads.get(one, 0)
        heads[one] = size
        if not size:
            del heads[one]
        if not heads:
            del self._heads[address]
        self._head_bytes[address] += change
        self._all_head_bytes += change
        if not self._head_bytes[address]:
            del self._head_bytes[address]
        if self._head_bytes[address] > MAX_HEAD_BYTES_OF_ONE:
            return False
        while change > 0 and self._all_head_bytes > MAX_HEAD_BYTES:
            largest = max(self._head_bytes, key=self._head_bytes.__getitem__)
            if largest == address:
                return False
            oldest = next(iter(self._heads[largest]))
            self.hold_head(oldest, largest, 0)
            self._drop(oldest, largest)
        return True

    def _drop_oldest(self, address: str) -> None:
        idle = self._idle.get(address)
        if idle:
            self._drop(next(iter(idle)), address)

    def _drop(self, one: Closable, address: str) -> None:
        """Close a connection; its slot is free before the event loop has closed the socket."""
        self.remove(one, address)
        self._dropped.add(one)
        one.drop()


def files_left() -> int:
    """Return the number of connections that this process may keep open."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most == resource.RLIM_INFINITY:
        return 1 << 20
    try:
        opened = len(list(Path("/proc/self/fd").iterdir()))
    except OSError:
        opened = 64
    # an upload needs a file in addition to its connection
    return max(64, (most - opened - RESERVED_FILES) // 2)
