"""A budget of memory for bodies and answers that are held whole."""

from __future__ import annotations

import asyncio
from collections import Counter

from service.errors import TooMany

WAIT_SECONDS = 10.0


class MemoryBudget:
    """Let calls proceed while what they hold together stays within a number of bytes.

    One owner (a workspace) gets half of it, so that it cannot keep out the others. A call that is
    larger than its share runs when its owner holds nothing else. A call that waits longer than
    ``wait_seconds`` gets TooMany.
    """

    def __init__(self, total: int, *, wait_seconds: float = WAIT_SECONDS) -> None:
        self._total = total
        self._share = total // 2
        self._wait_seconds = wait_seconds
        self._held: Counter[str] = Counter()
        self._freed = asyncio.Event()

    @property
    def held(self) -> int:
        """Return how many bytes are held by all."""
        return self._held.total()

    async def grow(self, owner: str, held: int, size: int) -> None:
        """Let a call of an owner hold ``size`` bytes in place of the ``held`` that it has."""
        try:
            async with asyncio.timeout(self._wait_seconds):
                while not self._fits(owner, held, size):
                    self._freed.clear()
                    await self._freed.wait()
        except TimeoutError:
            raise TooMany(
                "too_much_in_flight",
                f"large calls hold all memory set aside for them ({self._total} bytes): "
                "read answers as they come, send fewer at once, or smaller ones",
            ) from None
        self._held[owner] += size - held

    def release(self, owner: str, held: int) -> None:
        """Give back what a call held."""
        self._held[owner] -= held
        if not self._held[owner]:
            del self._held[owner]
        self._freed.set()

    def _fits(self, owner: str, held: int, size: int) -> bool:
        mine, by_all = self._held[owner] - held, self._held.total() - held
        within_share = not mine or mine + size <= self._share
        return within_share and (not by_all or by_all + size <= self._total)


class MemoryHold:
    """What one call holds of a budget: nothing at first."""

    __slots__ = ("_budget", "_owner", "_size")

    def __init__(self, budget: MemoryBudget, owner: str) -> None:
        self._budget = budget
        self._owner = owner
        self._size = 0

    async def grow_to(self, size: int) -> None:
        """Wait until at least ``size`` bytes can be held; raise TooMany if that takes too long."""
        if size > self._size:
            await self._budget.grow(self._owner, self._size, size)
            self._size = size

    def release(self) -> None:
        """Give back everything."""
        if self._size:
            self._budget.release(self._owner, self._size)
            self._size = 0
