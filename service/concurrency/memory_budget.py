"""Memory budgets for request bodies, the work on them, and buffered responses."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from service.errors import TooMany

WAIT_SECONDS = 10.0
# waiting calls per owner; each holds what it has read so far
MAX_WAITING = 100


@dataclass(eq=False)
class _Waiter:
    """A call that is waiting to grow from ``held`` to ``size`` bytes.

    ``is_built`` is True if the call already occupies these bytes.
    """

    owner: str
    held: int
    size: int
    is_built: bool
    admitted: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class MemoryBudget:
    """A limit on the total memory of concurrent calls.

    One owner (a workspace) gets at most half of the total, so that it cannot block the others. A
    call that needs more than half runs only when its owner holds nothing else. Owners take turns.

    Parameters
    ----------
    total
        Maximum bytes held by all calls together.
    in_order
        Admit calls in order of arrival, so that every call waits for the slowest one before it.
        Otherwise a large call may wait for as long as small ones keep arriving.
    wait_seconds
        Maximum seconds that a call waits before it raises TooMany.
    """

    def __init__(
        self, total: int, *, in_order: bool = False, wait_seconds: float = WAIT_SECONDS
    ) -> None:
        self._total = total
        self._share = total // 2
        self._in_order = in_order
        self._wait_seconds = wait_seconds
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[_Waiter]] = {}

    @property
    def share(self) -> int:
        """The maximum number of bytes that one owner may hold."""
        return self._share

    @property
    def held(self) -> int:
        """The bytes held by all owners."""
        return self._held.total()

    async def grow(self, owner: str, held: int, size: int, *, is_built: bool = False) -> None:
        """Wait until a call can grow from ``held`` to ``size`` bytes.

        Raises TooMany after the timeout. It is raised at once if too many of the owner's calls are
        waiting, or if those that already occupy their bytes (``is_built``) exceed the owner's
        share.
        """
        waiter = _Waiter(owner, held, size, is_built)
        self._waiting.setdefault(owner, deque()).append(waiter)
        self._admit()
        if waiter.admitted.done():
            return
        queue = self._waiting[owner]
        built = sum(one.size for one in queue if one.is_built)
        if len(queue) > MAX_WAITING or (is_built and built > self._share):
            self._leave(waiter)
            raise self._refusal()
        try:
            # wait() does not cancel the future: it may be admitted until this call resumes
            admitted, _ = await asyncio.wait([waiter.admitted], timeout=self._wait_seconds)
        except asyncio.CancelledError:
            self._leave(waiter)
            raise
        if not admitted:
            self._leave(waiter)
            raise self._refusal()

    def grow_now(self, owner: str, held: int, size: int) -> bool:
        """Grow from ``held`` to ``size`` bytes if there is room now; return whether there was."""
        if self._waiting or not self._has_room(owner, held, size):
            return False
        self._held[owner] += size - held
        return True

    def release(self, owner: str, held: int) -> None:
        """Release the ``held`` bytes of a call."""
        self._held[owner] -= held
        if not self._held[owner]:
            del self._held[owner]
        self._admit()

    def _leave(self, waiter: _Waiter) -> None:
        """Remove a waiting call; release its memory if it was just admitted."""
        if waiter.admitted.done():
            self.release(waiter.owner, waiter.size - waiter.held)
            return
        queue = self._waiting.get(waiter.owner, deque())
        with suppress(ValueError):
            queue.remove(waiter)
        if not queue:
            self._waiting.pop(waiter.owner, None)
        self._admit()

    def _admit(self) -> None:
        """Admit calls that fit, round-robin over owners."""
        while (owner := next(self._admissible(), None)) is not None:
            queue = self._waiting.pop(owner)
            first = queue.popleft()
            if queue:
                self._waiting[owner] = queue  # at the end, after the other owners
            self._held[owner] += first.size - first.held
            first.admitted.set_result(None)

    def _admissible(self) -> Iterator[str]:
        for owner, queue in self._waiting.items():
            first = queue[0]
            if self._has_room(owner, first.held, first.size):
                yield owner
            elif self._in_order and self._is_within_share(owner, first.held, first.size):
                return

    def _has_room(self, owner: str, held: int, size: int) -> bool:
        by_all = self._held.total() - held
        has_space = not by_all or by_all + size <= self._total
        return has_space and self._is_within_share(owner, held, size)

    def _is_within_share(self, owner: str, held: int, size: int) -> bool:
        """Return whether a call fits into the owner's share alongside its other calls."""
        mine = self._held[owner] - held
        return not mine or mine + size <= self._share

    def _refusal(self) -> TooMany:
        return TooMany(
            "too_much_in_flight",
            f"large requests are using all the memory reserved for them ({self._total} bytes): "
            "read responses as they arrive, and send fewer or smaller requests at a time",
        )


class MemoryHold:
    """One call's share of a memory budget, initially 0 bytes."""

    __slots__ = ("_budget", "_owner", "_size")

    def __init__(self, budget: MemoryBudget, owner: str) -> None:
        self._budget = budget
        self._owner = owner
        self._size = 0

    async def grow_to(self, size: int, *, is_built: bool = False) -> None:
        """Wait until at least ``size`` bytes can be held; raise TooMany if that takes too long."""
        size = min(size, self._budget.share)
        if size > self._size:
            await self._budget.grow(self._owner, self._size, size, is_built=is_built)
            self._size = size

    def grow_now(self, size: int) -> bool:
        """Grow to at least ``size`` bytes if there is room now; return whether there was."""
        size = min(size, self._budget.share)
        if size <= self._size:
            return True
        if not self._budget.grow_now(self._owner, self._size, size):
            return False
        self._size = size
        return True

    def release(self) -> int:
        """Release everything; return the number of bytes that were held."""
        held, self._size = self._size, 0
        if held:
            self._budget.release(self._owner, held)
        return held


class CallMemory:
    """The memory budgets of a process: for incoming bodies, work and outgoing responses.

    The budgets are separate, so that a slow client only occupies memory for the body that it sends
    or the response that it reads. A call that holds memory for work never waits for a client.
    """

    def __init__(self, total: int, *, wait_seconds: float = WAIT_SECONDS) -> None:
        self.bodies = MemoryBudget(total // 4, wait_seconds=wait_seconds)
        self.answers = MemoryBudget(total // 4, wait_seconds=wait_seconds)
        self.work = MemoryBudget(total // 2, in_order=True, wait_seconds=wait_seconds)


class CallHold:
    """The memory that one call holds from each budget.

    ``body`` and ``answer`` may be held for a long time; ``work`` must not.
    """

    __slots__ = ("answer", "body", "work")

    def __init__(self, memory: CallMemory, owner: str) -> None:
        self.body = MemoryHold(memory.bodies, owner)
        self.answer = MemoryHold(memory.answers, owner)
        self.work = MemoryHold(memory.work, owner)

    def end_work(self) -> None:
        """Release everything except the response."""
        self.body.release()
        self.work.release()

    def release(self) -> None:
        """Release everything."""
        self.end_work()
        self.answer.release()
