"""Memory budgets for buffered request bodies and large responses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.concurrency.memory_budget import CallHold, CallMemory
from service.errors import TooMany
from service.http.body_kinds import BodyKind, body_kind, media_type
from service.http.middleware.body_limits import refuse
from service.http.middleware.fair_turns import owner_of

# small bodies and responses are not counted, because the number of requests is limited
FREE_BYTES = 1 << 16
COPIES = 5  # the pieces of a body, the joined body, the decoded arrays and intermediate results
HOLD = "memory_hold"
JSON = "application/json"

T = TypeVar("T")


class BodyMemory:
    """Raw ASGI middleware that admits large bodies only while there is memory for them.

    While a body arrives, its request reserves the length of the body; from then on, it reserves
    several times as much until the response is sent. A buffered response reserves its own length.
    Routes whose bodies or responses need more memory call ``hold_unpacked`` and ``read_body``.
    """

    def __init__(self, app: ASGIApp, memory: CallMemory) -> None:
        self.app = app
        self._memory = memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app with a ``receive`` that counts bytes and raises TooMany beyond the budget."""
        if scope["type"] != "http" or is_streamed(scope):
            await self.app(scope, receive, send)
            return
        hold = scope[HOLD] = CallHold(self._memory, owner_of(scope))
        received, counted = 0, FREE_BYTES

        async def counting_receive() -> Message:
            nonlocal received, counted
            stated = _stated_length(scope)
            if stated > counted:
                # reserve memory before reading, so that waiting calls do not hold unfinished bodies
                counted = stated
                await hold.body.grow_to(stated)
            message = await receive()
            received += len(message.get("body", b""))
            if received > counted:
                counted = 2 * received
                await hold.body.grow_to(received)
            if received > FREE_BYTES and not message.get("more_body", False):
                await hold.work.grow_to(COPIES * received)
            return message

        try:
            # large responses to callers without a key are static files, shared by all callers
            is_shared = "principal" not in scope
            app_send = send if is_shared else _counting_send(hold, scope, receive, send)
            await self.app(scope, counting_receive, app_send)
        finally:
            hold.release()


def _counting_send(hold: CallHold, scope: Scope, receive: Receive, send: Send) -> Send:
    """Return a ``send`` that reserves memory for a large response, or rejects the request."""
    pending_start: list[Message] = []
    is_refused = False

    async def counting_send(message: Message) -> None:
        nonlocal is_refused
        if is_refused:
            return
        if message["type"] == "http.response.start" and _length(message["headers"]) > FREE_BYTES:
            pending_start.append(message)
            return
        size = len(message.get("body", b""))
        if pending_start and size > FREE_BYTES:
            try:
                await hold.answer.grow_to(size, is_built=True)
            except TooMany as error:
                is_refused = True
                await refuse(scope, receive, send, error)
                return
        while pending_start:
            await send(pending_start.pop())
        await send(message)

    return counting_send


def is_streamed(scope: Scope) -> bool:
    """Return whether a request's body is streamed to disk."""
    kind = body_kind(scope)
    if kind is BodyKind.FIT:
        return media_type(scope) != JSON
    return kind in (BodyKind.DATASET, BodyKind.PART)


def _stated_length(scope: Scope) -> int:
    """Return the Content-Length, which has been checked; 0 if the body is chunked."""
    return _length(scope["headers"])


def _length(headers: Iterable[tuple[bytes, bytes]]) -> int:
    found = (value for name, value in headers if name == b"content-length")
    return int(next(found, b"0"))


async def hold_unpacked(scope: Scope, size: int) -> None:
    """Reserve memory for a body that unpacks to ``size`` bytes; raise TooMany if there is none."""
    hold: CallHold | None = scope.get(HOLD)
    if hold is not None and size > FREE_BYTES:
        await hold.work.grow_to(COPIES * size)


async def read_body(
    scope: Scope, read: Callable[[], Awaitable[T]], answer_size: Callable[[T], int]
) -> T:
    """Read a body and reserve memory for its response before building it.

    If there is not enough memory yet, the result is dropped while the call waits, and the body is
    read again afterwards. Raises TooMany if the memory does not become free in time.
    """
    result = await read()
    size = answer_size(result)
    hold: CallHold | None = scope.get(HOLD)
    if hold is None or size <= FREE_BYTES or hold.answer.grow_now(size):
        return result
    del result
    work = hold.work.release()
    await hold.answer.grow_to(size)
    await hold.work.grow_to(work)
    return await read()


def end_work(scope: Scope) -> None:
    """Release the memory that a call held to build its response, except for the response itself."""
    hold: CallHold | None = scope.get(HOLD)
    if hold is not None:
        hold.end_work()
