"""Bodies that routes read whole, admitted within a budget of memory."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.core.memory_budget import MemoryBudget, MemoryHold

# small bodies are not counted: the number of requests is limited
FREE_BYTES = 1 << 20
COPIES = 6  # a body in pieces and as a whole, what it is decoded to, and an answer in JSON
HOLD = "memory_hold"
UPLOADS = "/v1/datasets"  # written to disk as they come


class BodyMemory:
    """Raw ASGI middleware: let large bodies come as far as there is memory for them.

    A request holds what has arrived, several times over, until its answer was sent. Routes that
    unpack a body ask for more: ``scope["memory_hold"]``.
    """

    def __init__(self, app: ASGIApp, budget: MemoryBudget) -> None:
        self.app = app
        self._budget = budget

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app with a ``receive`` that counts; what is too much is raised there."""
        if scope["type"] != "http" or scope["path"].startswith(UPLOADS):
            await self.app(scope, receive, send)
            return
        principal = scope.get("principal")
        owner = "public" if principal is None else principal.workspace
        hold = scope[HOLD] = MemoryHold(self._budget, owner)
        received, counted = 0, FREE_BYTES

        async def counting_receive() -> Message:
            nonlocal received, counted
            message = await receive()
            received += len(message.get("body", b""))
            if received > counted:
                counted = 2 * received
                await hold.grow_to(COPIES * received)
            return message

        try:
            await self.app(scope, counting_receive, send)
        finally:
            hold.release()


async def hold_unpacked(scope: Scope, size: int) -> None:
    """Count a body that unpacks to ``size`` bytes; raise TooMany if there is no memory for it."""
    hold: MemoryHold | None = scope.get(HOLD)
    if hold is not None and size > FREE_BYTES:
        await hold.grow_to(COPIES * size)
