"""Bodies that routes read whole, and large answers, admitted within budgets of memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.concurrency.memory_budget import CallHold, CallMemory
from service.errors import TooMany
from service.http.middleware.body_limits import refuse
from service.http.middleware.fair_turns import owner_of

# small bodies and answers are not counted: the number of requests is limited
FREE_BYTES = 1 << 16
COPIES = 5  # a body as a whole beside its pieces, what it is decoded to, and what is calculated
HOLD = "memory_hold"
# bodies that are written to disk as they come; texts of a fit are read whole
UPLOADS, FITS = "/v1/datasets", "/fits"

T = TypeVar("T")


class BodyMemory:
    """Raw ASGI middleware: let large bodies come as far as there is memory for them.

    A request holds the length of its body while it arrives, several times as much once it has
    arrived, until its answer was sent; an answer that is made whole holds its length. Routes whose
    bodies or answers may be larger than that count them with ``hold_unpacked`` and ``read_body``.
    """

    def __init__(self, app: ASGIApp, memory: CallMemory, text_types: tuple[bytes, ...]) -> None:
        self.app = app
        self._memory = memory
        self._text_types = text_types

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app with a ``receive`` that counts; what is too much is raised there."""
        if scope["type"] != "http" or _is_streamed(scope, self._text_types):
            await self.app(scope, receive, send)
            return
        hold = scope[HOLD] = CallHold(self._memory, owner_of(scope))
        received, counted = 0, FREE_BYTES

        async def counting_receive() -> Message:
            nonlocal received, counted
            message = await receive()
            received += len(message.get("body", b""))
            if received > counted:
                # all of it at once: of many bodies that grow together none would end
                counted = max(2 * received, _stated_length(scope))
                await hold.body.grow_to(max(received, _stated_length(scope)))
            if received > FREE_BYTES and not message.get("more_body", False):
                await hold.work.grow_to(COPIES * received)
            return message

        try:
            # large answers that need no key are files, which all callers share
            is_shared = "principal" not in scope
            sending = send if is_shared else _counting_send(hold, scope, receive, send)
            await self.app(scope, counting_receive, sending)
        finally:
            hold.release()


def _counting_send(hold: CallHold, scope: Scope, receive: Receive, send: Send) -> Send:
    """Return a ``send`` that counts a large answer before any of it leaves, or refuses it."""
    begun: list[Message] = []
    is_refused = False

    async def counting_send(message: Message) -> None:
        nonlocal is_refused
        if is_refused:
            return
        if message["type"] == "http.response.start" and _length(message["headers"]) > FREE_BYTES:
            begun.append(message)
            return
        size = len(message.get("body", b""))
        if begun and size > FREE_BYTES:
            try:
                await hold.answer.grow_to(size)
            except TooMany as error:
                is_refused = True
                await refuse(scope, receive, send, error)
                return
        while begun:
            await send(begun.pop())
        await send(message)

    return counting_send


def _is_streamed(scope: Scope, text_types: tuple[bytes, ...]) -> bool:
    """Return whether a request's body goes to disk piece by piece."""
    path = scope["path"]
    if path.startswith(UPLOADS):
        return True
    if not path.endswith(FITS):
        return False
    kinds = (value for name, value in scope["headers"] if name == b"content-type")
    return not next(kinds, b"").strip().lower().startswith(text_types)


def _stated_length(scope: Scope) -> int:
    """Return the Content-Length, which was checked before; 0 if the body is chunked."""
    return _length(scope["headers"])


def _length(headers: Iterable[tuple[bytes, bytes]]) -> int:
    found = (value for name, value in headers if name == b"content-length")
    return int(next(found, b"0"))


async def hold_unpacked(scope: Scope, size: int) -> None:
    """Count a body that unpacks to ``size`` bytes; raise TooMany if there is no memory for it."""
    hold: CallHold | None = scope.get(HOLD)
    if hold is not None and size > FREE_BYTES:
        await hold.work.grow_to(COPIES * size)


async def read_body(
    scope: Scope, read: Callable[[], Awaitable[T]], answer_size: Callable[[T], int]
) -> T:
    """Read what a body holds, and count the answer to it before it is made.

    If memory for the answer has to be waited for, what was read is dropped, and read again then:
    meanwhile the call holds its body alone. Raises TooMany if there is none.
    """
    found = await read()
    size = answer_size(found)
    hold: CallHold | None = scope.get(HOLD)
    if hold is None or size <= FREE_BYTES or hold.answer.grow_now(size):
        return found
    del found
    work = hold.work.release()
    await hold.answer.grow_to(size)
    await hold.work.grow_to(work)
    return await read()


def end_work(scope: Scope) -> None:
    """Give back what a call held to make its answer, which is sent now."""
    hold: CallHold | None = scope.get(HOLD)
    if hold is not None:
        hold.end_work()
