"""Limits on what one caller may have in flight: requests, threads and long waits."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from starlette.responses import StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import ServiceError, TooMany
from service.http.middleware.body_limits import refuse
from service.http.middleware.fair_turns import owner_of, take_turn

# requests of one workspace that use the framework's 40 threads at the same time
MAX_RUNNING = 4
# they respond from memory or receive long bodies, and have executors of their own
OWN_EXECUTORS = re.compile(r".*/(predict|infer|datasets|fits|stats|parts/\d+)")
ALWAYS_ANSWERED = frozenset({"/healthz", "/readyz", "/v2/health/live", "/v2/health/ready"})
SLOT = "slot"
# far longer than any valid path; matching routes takes time quadratic in the length
LONGEST_PATH = 1024


@dataclass
class CallerLoad:
    """The requests and waits that one caller has in flight."""

    running: asyncio.Semaphore
    requests: int = 0
    waits: int = 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in flight."""
        return not self.requests and not self.waits


class Slot:
    """A request's place among those of its caller, released once."""

    def __init__(self, load: CallerLoad) -> None:
        self.load = load
        self._is_running = False
        self._is_held = True

    async def run(self) -> None:
        """Wait for a thread of the caller's share; do nothing once the slot is released."""
        if not self._is_held:
            return
        await self.load.running.acquire()
        self._is_running = True
        if not self._is_held:
            self.end_run()

    def end_run(self) -> None:
        """Return the thread to the caller's share."""
        if self._is_running:
            self._is_running = False
            self.load.running.release()

    def release(self) -> None:
        """Release the slot; a second call does nothing."""
        if self._is_held:
            self._is_held = False
            self.load.requests -= 1
            self.end_run()


class RequestLimits:
    """Raw ASGI middleware that refuses requests beyond a caller's limit with 429.

    A caller is a key, or an address without one, and may have ``most_requests`` in flight. The
    keys of a workspace share its threads.
    """

    def __init__(self, app: ASGIApp, most_requests: int) -> None:
        self.app = app
        self._most_requests = most_requests
        self._loads: dict[str, CallerLoad] = {}
        self._threads: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the request, or refuse it."""
        path: str = scope.get("path", "")
        is_health_check = path in ALWAYS_ANSWERED and scope["method"] in ("GET", "HEAD")
        if scope["type"] != "http" or is_health_check:
            await self.app(scope, receive, send)
            return
        if len(path) > LONGEST_PATH:
            await refuse(scope, receive, send, _too_long())
            return
        owner = _caller_of(scope)
        load = self._loads.get(owner)
        if load is None:
            load = self._loads[owner] = CallerLoad(self._threads_of(owner_of(scope)))
        if load.requests >= self._most_requests:
            await refuse(scope, receive, send, _too_many(self._most_requests))
            return
        load.requests += 1
        slot = scope[SLOT] = Slot(load)
        try:
            await self.app(scope, receive, send)
        finally:
            slot.release()
            if load.is_idle and self._loads.get(owner) is load:
                del self._loads[owner]

    def _threads_of(self, workspace: str) -> asyncio.Semaphore:
        """Return the semaphore for the threads of a workspace."""
        found = self._threads.get(workspace)
        if found is None:
            found = self._threads[workspace] = asyncio.Semaphore(MAX_RUNNING)
        return found


class ThreadLimits:
    """Raw ASGI middleware: MAX_RUNNING requests of a workspace use threads, the others wait.

    A request has no thread while its body arrives, so a slow sender blocks nobody.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the request when its turn comes."""
        slot: Slot | None = scope.get(SLOT)
        if slot is not None and _uses_threads(scope):
            await slot.run()
            await take_turn(scope)
            receive, send = _without_thread(slot, receive), _until_answered(slot, send)
        await self.app(scope, receive, send)


def _until_answered(slot: Slot, send: Send) -> Send:
    """Return a ``send`` that frees the thread with the first byte of the response.

    A slow reader therefore blocks nobody.
    """

    async def freeing_send(message: Message) -> None:
        slot.end_run()
        await send(message)

    return freeing_send


def _without_thread(slot: Slot, receive: Receive) -> Receive:
    """Return a ``receive`` that lets others use the thread until the body has arrived."""
    has_arrived = False

    async def freeing_receive() -> Message:
        nonlocal has_arrived
        if has_arrived:
            return await receive()
        slot.end_run()
        message = await receive()
        has_arrived = not message.get("more_body", False)
        if has_arrived:
            await slot.run()
        return message

    return freeing_receive


def _caller_of(scope: Scope) -> str:
    principal = scope.get("principal")
    return owner_of(scope) if principal is None else f"key {principal.owner}"


def _uses_threads(scope: Scope) -> bool:
    if scope["method"] in ("GET", "HEAD"):
        return "principal" in scope and not scope["path"].endswith("/predict")
    return not OWN_EXECUTORS.fullmatch(scope["path"])


@contextmanager
def waiting(scope: Scope, most: int) -> Iterator[None]:
    """Count a stream or long poll as a wait of its caller; raise TooMany beyond ``most``.

    The request releases its slot: it only waits from now on.
    """
    slot: Slot = scope[SLOT]
    load = slot.load
    if load.waits >= most:
        raise TooMany(
            "too_many_waits",
            f"this key has {load.waits} event streams and waiting requests open, at most {most} "
            "are allowed: close some, or poll without waiting",
            limit=most,
        )
    load.waits += 1
    slot.release()
    try:
        yield
    finally:
        load.waits -= 1


class WaitingResponse(StreamingResponse):
    """A stream that counts as a wait of its caller for as long as it lasts."""

    def __init__(self, most: int, *args: Any, **kwargs: Any) -> None:
        self._most = most
        super().__init__(*args, **kwargs)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream; raise TooMany if the caller has too many waits."""
        with waiting(scope, self._most):
            await super().__call__(scope, receive, send)


def _too_long() -> ServiceError:
    return ServiceError(
        "request_uri_too_long", f"a path has at most {LONGEST_PATH} characters here"
    )


def _too_many(most: int) -> TooMany:
    return TooMany(
        "too_many_requests",
        f"this key has {most} requests in flight, the maximum: wait for responses "
        "before sending more",
        limit=most,
    )
