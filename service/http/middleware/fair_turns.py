"""Fair turns on the event loop: the requests of one caller start one after another."""

from __future__ import annotations

import asyncio
from collections import deque

from starlette.types import Scope

TURN = "turn"
# answered from memory faster than a turn is granted
UNTIMED = frozenset({"/healthz", "/v2/health/live"})


class Turns:
    """Let one request per caller run in each pass of the event loop.

    However many requests of one caller are ready at once, other callers' requests and the loop's
    own reads and writes run in between.
    """

    def __init__(self) -> None:
        self.number = 0
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}

    async def take(self, owner: str) -> None:
        """Wait for a turn in which no other request of the owner runs."""
        queue = self._queues.get(owner)
        loop = asyncio.get_running_loop()
        if queue is None:
            if not self._queues:
                loop.call_soon(self._begin_next)
            self._queues[owner] = deque()
            return
        mine = loop.create_future()
        queue.append(mine)
        await mine

    def _begin_next(self) -> None:
        """Begin the next turn: wake one waiting request of each owner."""
        self.number += 1
        for owner, queue in list(self._queues.items()):
            while queue and queue[0].done():  # the client has left
                queue.popleft()
            if queue:
                queue.popleft().set_result(None)
            else:
                del self._queues[owner]
        if self._queues:
            asyncio.get_running_loop().call_soon(self._begin_next)


class Turn:
    """The turn of one request among the requests of its caller."""

    __slots__ = ("_number", "_owner", "_turns")

    def __init__(self, turns: Turns, owner: str) -> None:
        self._turns = turns
        self._owner = owner
        self._number = -1

    async def take(self) -> None:
        """Wait for a turn, unless the request already has the current one."""
        if self._number != self._turns.number:
            await self._turns.take(self._owner)
            self._number = self._turns.number


async def take_turn(scope: Scope) -> None:
    """Wait for a turn before long work on the event loop, such as parsing a body."""
    turn: Turn | None = scope.get(TURN)
    if turn is not None:
        await turn.take()


def owner_of(scope: Scope) -> str:
    """Return the workspace, or the address, against whose limits a request counts."""
    principal = scope.get("principal")
    if principal is not None:
        return f"workspace {principal.workspace}"
    return f"address {(scope.get('client') or ('unknown',))[0]}"


def is_untimed(scope: Scope) -> bool:
    """Return whether a request is a liveness check, which does not wait for a turn."""
    return scope["path"] in UNTIMED and scope["method"] in ("GET", "HEAD")
