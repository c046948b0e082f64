"""Bodies that routes read whole, admitted within a budget of memory."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.concurrency.memory_budget import MemoryBudget, MemoryHold

# small bodies are not counted: the number of requests is limited
FREE_BYTES = 1 << 16
COPIES = 6  # a body in pieces and as a whole, what it is decoded to, and an answer in JSON
HOLD = "memory_hold"
# bodies that are written to disk as they come; JSON and CSV of a fit are read whole
UPLOADS, FITS = "/v1/datasets", "/fits"
READ_WHOLE = (b"application/json", b"text/csv")


class BodyMemory:
    """Raw ASGI middleware: let large bodies come as far as there is memory for them.

    A request holds the length of its body, several times over, until its answer was sent. Routes
    that unpack a body ask for more: ``scope["memory_hold"]``.
    """

    def __init__(self, app: ASGIApp, budget: MemoryBudget) -> None:
        self.app = app
        self._budget = budget

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app with a ``receive`` that counts; what is too much is raised there."""
        if scope["type"] != "http" or _is_streamed(scope):
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
                # all of it at once: of many bodies that grow together none would end
                counted = max(2 * received, _stated_length(scope))
                await hold.grow_to(COPIES * max(received, _stated_length(scope)))
            return message

        try:
            await self.app(scope, counting_receive, send)
        finally:
            hold.release()


def _is_streamed(scope: Scope) -> bool:
    """Return whether a request's body goes to disk piece by piece."""
    path = scope["path"]
    if path.startswith(UPLOADS):
        return True
    if not path.endswith(FITS):
        return False
    kinds = (value for name, value in scope["headers"] if name == b"content-type")
    return not next(kinds, b"").strip().lower().startswith(READ_WHOLE)


def _stated_length(scope: Scope) -> int:
    """Return the Content-Length, which was checked before; 0 if the body is chunked."""
    found = (value for name, value in scope["headers"] if name == b"content-length")
    return int(next(found, b"0"))


async def hold_unpacked(scope: Scope, size: int) -> None:
    """Count a body that unpacks to ``size`` bytes; raise TooMany if there is no memory for it."""
    hold: MemoryHold | None = scope.get(HOLD)
    if hold is not None and size > FREE_BYTES:
        await hold.grow_to(COPIES * size)
