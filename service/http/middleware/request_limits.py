"""Limits per caller on requests, threads and long waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from starlette.responses import StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import ServiceError, TooMany
from service.http.body_kinds import BodyKind, body_kind
from service.http.middleware.body_limits import refuse
from service.http.middleware.fair_turns import owner_of, take_turn

# number of the framework's 40 threads that one workspace may use at a time
MAX_RUNNING = 4
# how many of them all requests without a key may use together, whatever addresses they come from
MAX_RUNNING_WITHOUT_KEY = 8
ALWAYS_ANSWERED = frozenset({"/healthz", "/readyz", "/v2/health/live", "/v2/health/ready"})
SLOT = "slot"
# all keys of a workspace together may have this many times as many requests and waits as one key
KEYS_AT_ONCE = 2
# far longer than any valid path; the time to match routes is quadratic in the length
LONGEST_PATH = 1024


@dataclass(eq=False)
class WorkspaceLoad:
    """The threads that the keys of a workspace share, and their requests and waits in flight.

    A request needs a place in each of the semaphores ``threads``.
    """

    threads: tuple[asyncio.Semaphore, ...]
    requests: int = 0
    waits: int = 0


@dataclass
class CallerLoad:
    """The requests and waits that one caller has in flight."""

    workspace: WorkspaceLoad
    requests: int = 0
    waits: int = 0

    @property
    def is_idle(self) -> bool:
        """True if nothing is in flight."""
        return not self.requests and not self.waits


class Slot:
    """A slot for one of a caller's requests, released once."""

    def __init__(self, load: CallerLoad) -> None:
        self.load = load
        load.requests += 1
        load.workspace.requests += 1
        self._acquired: list[asyncio.Semaphore] = []
        self._is_held = True
        self._is_answered = False

    async def run(self) -> None:
        """Wait for a thread of the caller's share.

        This does nothing once the response has begun or the slot has been released: code that only
        listens for a disconnect needs no thread.
        """
        if self._is_answered or not self._is_held:
            return
        for threads in self.load.workspace.threads:
            await threads.acquire()
            self._acquired.append(threads)
        if self._is_answered or not self._is_held:
            self.end_run()

    def end_run(self) -> None:
        """Return the thread to the caller's share."""
        while self._acquired:
            self._acquired.pop().release()

    def answer(self) -> None:
        """Return the thread for good, because the response is starting."""
        self._is_answered = True
        self.end_run()

    def release(self) -> None:
        """Release the slot; a second call does nothing."""
        if self._is_held:
            self._is_held = False
            self.load.requests -= 1
            self.load.workspace.requests -= 1
            self.end_run()


class RequestLimits:
    """Raw ASGI middleware that rejects requests beyond a caller's limit with 429.

    A caller is a key, or the client's address if there is no key. It may have at most
    ``most_requests`` requests in flight. The keys of a workspace together may have KEYS_AT_ONCE
    times as many, and they share its threads.
    """

    def __init__(self, app: ASGIApp, most_requests: int) -> None:
        self.app = app
        self._most_requests = most_requests
        self._loads: dict[str, CallerLoad] = {}
        self._workspaces: WeakValueDictionary[str, WorkspaceLoad] = WeakValueDictionary()
        self._without_key = asyncio.Semaphore(MAX_RUNNING_WITHOUT_KEY)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the request or reject it."""
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
            load = self._loads[owner] = CallerLoad(self._workspace_of(scope))
        most = self._most_requests
        if load.requests >= most or load.workspace.requests >= KEYS_AT_ONCE * most:
            await refuse(scope, receive, send, _too_many(load, most))
            return
        slot = scope[SLOT] = Slot(load)
        try:
            await self.app(scope, receive, send)
        finally:
            slot.release()
            if load.is_idle and self._loads.get(owner) is load:
                del self._loads[owner]

    def _workspace_of(self, scope: Scope) -> WorkspaceLoad:
        """Return the load of the caller's workspace, created if it is new."""
        name = owner_of(scope)
        found = self._workspaces.get(name)
        if found is None:
            own = asyncio.Semaphore(MAX_RUNNING)
            threads = (own,) if "principal" in scope else (own, self._without_key)
            found = self._workspaces[name] = WorkspaceLoad(threads)
        return found


class ThreadLimits:
    """Raw ASGI middleware that limits each workspace to MAX_RUNNING requests on threads at a time.

    A request has no thread while its body is arriving, so a slow sender does not block others.
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
    """Return a ``send`` that frees the thread when the response begins.

    A client that reads slowly therefore does not block others.
    """

    async def freeing_send(message: Message) -> None:
        slot.answer()
        await send(message)

    return freeing_send


def _without_thread(slot: Slot, receive: Receive) -> Receive:
    """Return a ``receive`` that frees the thread until the body has arrived."""
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
    if scope["method"] in ("GET", "HEAD") and "principal" not in scope:
        return False
    # the others respond from memory or receive long bodies, and have executors of their own
    return body_kind(scope) in (None, BodyKind.VERSION)


@asynccontextmanager
async def waiting(scope: Scope, most: int) -> AsyncIterator[None]:
    """Count a stream or long poll as a wait of its caller; raise TooMany beyond ``most``.

    The request releases its slot, because from now on it only waits. Hundreds of waits may end at
    the same time, so each takes a turn before its request continues.
    """
    slot: Slot = scope[SLOT]
    load = slot.load
    workspace = load.workspace
    if load.waits >= most or workspace.waits >= KEYS_AT_ONCE * most:
        who, count, limit = _beyond(load.waits, workspace.waits, most)
        raise TooMany(
            "too_many_waits",
            f"{who} {count} event streams and waiting requests open, but at most {limit} "
            "are allowed: close some, or poll without waiting",
            limit=limit,
        )
    load.waits += 1
    workspace.waits += 1
    slot.release()
    try:
        yield
    finally:
        load.waits -= 1
        workspace.waits -= 1
    await take_turn(scope)


class WaitingResponse(StreamingResponse):
    """A streaming response that counts as a wait of its caller until it ends."""

    def __init__(self, most: int, *args: Any, **kwargs: Any) -> None:
        self._most = most
        super().__init__(*args, **kwargs)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream; raise TooMany if the caller has too many waits."""
        async with waiting(scope, self._most):
            await super().__call__(scope, receive, send)


def _too_long() -> ServiceError:
    return ServiceError(
        "request_uri_too_long", f"the path has more than {LONGEST_PATH} characters: shorten it"
    )


def _too_many(load: CallerLoad, most: int) -> TooMany:
    who, _, limit = _beyond(load.requests, load.workspace.requests, most)
    return TooMany(
        "too_many_requests",
        f"{who} {limit} requests in flight, which is the maximum: wait for responses before "
        "sending more",
        limit=limit,
    )


def _beyond(of_key: int, of_workspace: int, most: int) -> tuple[str, int, int]:
    """Return who has reached a limit, their current count, and the limit."""
    if of_key >= most:
        return "this key has", of_key, most
    return "the keys of this workspace have", of_workspace, KEYS_AT_ONCE * most
