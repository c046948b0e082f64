"""Size and pace limits for request bodies, enforced before any route."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import NamedTuple, NoReturn

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.access.permissions import Principal
from service.errors import (
    Malformed,
    ServiceError,
    TooLarge,
    TooSlow,
    Unauthenticated,
    Unsupported,
)
from service.http.middleware.fair_turns import take_turn
from service.http.problems import problem_response

LINGER_SECONDS = 1.0
LINGER_BYTES = 1 << 20
SMALL_BYTES = 1 << 16
MAX_LENGTH_DIGITS = 18  # larger than any limit, but cheap for int()

_log = structlog.get_logger("calibrd.api")


class BodyPace(NamedTuple):
    """The pace at which a body must arrive."""

    timeout: float
    least_rate: float
    most_seconds: float


class BodyGuard:
    """Raw ASGI middleware that rejects bodies that are too large or too slow.

    A rejected body raises an error in the code that reads it. The app's response is then replaced,
    because frameworks turn errors that occur while reading a body into their own responses.

    Parameters
    ----------
    limit_of
        Function that returns the maximum size of a request's body in bytes. It is only called if
        there is a body.
    timeout
        Seconds to wait for the next byte.
    least_rate
        Minimum average bytes per second after ``timeout`` seconds of waiting.
    most_seconds
        Maximum seconds for a whole body.
    check_caller
        Function that raises Unauthenticated if the caller's key was revoked while the body was
        arriving.
    """

    def __init__(
        self,
        app: ASGIApp,
        limit_of: Callable[[Scope], int],
        timeout: float,
        least_rate: float,
        most_seconds: float = math.inf,
        check_caller: Callable[[Principal], None] | None = None,
    ) -> None:
        self.app = app
        self.limit_of = limit_of
        self.pace = BodyPace(timeout, least_rate, most_seconds)
        self.check_caller = check_caller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Reject a request because of its headers, or run the app with a monitored body."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            length = _stated_length(scope)
            if length == 0:
                await self.app(scope, receive, send)
                return
            limit = self.limit_of(scope)
            if length is not None and length > limit:
                raise _too_large(limit)
        except (Malformed, TooLarge, Unsupported) as refusal:
            await refuse(scope, receive, send, refusal, has_ended=False)
            return
        check = self._caller_check(scope)
        body = _WatchedBody(scope, receive, send, limit, self.pace, check)
        if length is None or length > SMALL_BYTES:
            await body.run(self.app)
        else:
            await self._run_with_small_body(body, scope, receive, send)

    def _caller_check(self, scope: Scope) -> Callable[[], None]:
        principal, check = scope.get("principal"), self.check_caller
        if principal is None or check is None:
            return lambda: None
        return partial(check, principal)

    async def _run_with_small_body(
        self, body: _WatchedBody, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Read a small body whole before running the app, which is faster for most requests."""
        try:
            whole = await body.read_whole()
        except (TooLarge, TooSlow, Unauthenticated) as refusal:
            await refuse(scope, receive, send, refusal)
            return
        unread = [whole]

        async def replay() -> Message:
            return unread.pop() if unread else await receive()

        await self.app(scope, replay, send)


class _WatchedBody:
    """The body of one request, monitored while the app reads it."""

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        limit: int,
        pace: BodyPace,
        check_caller: Callable[[], None],
    ) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._limit = limit
        self._pace = pace
        self._check_caller = check_caller
        self._began = monotonic()
        self._ended = False
        self._client_left = False
        self._answering = False
        self._refusal: ServiceError | None = None
        self._received = 0
        self._waited = 0.0

    async def run(self, app: ASGIApp) -> None:
        try:
            await app(self._scope, self.receive, self.send)
        except Exception:
            # suppress only errors that were caused by the end of the body
            if not self._client_left and (self._refusal is None or self._answering):
                raise
        if self._refusal is not None and not self._answering:
            await refuse(self._scope, self._receive, self._send, self._refusal, self._ended)

    async def read_whole(self) -> Message:
        """Return the whole body as one message, or ``http.disconnect`` if the client has left."""
        message = await self.receive()
        pieces = [message.get("body", b"")]
        while not self._ended:
            message = await self.receive()
            pieces.append(message.get("body", b""))
        if len(pieces) > 1 and message["type"] == "http.request":
            return {"type": "http.request", "body": b"".join(pieces), "more_body": False}
        return message

    async def send(self, message: Message) -> None:
        if self._refusal is not None and not self._answering:
            return
        self._answering = True
        await self._send(message)

    async def receive(self) -> Message:
        if self._refusal is not None:
            raise self._refusal
        if self._ended:
            return await self._receive()
        message = await self._next_message()
        has_left = message["type"] == "http.disconnect"
        if has_left or not message.get("more_body", False):
            # hundreds of bodies may end together
            await take_turn(self._scope)
        if has_left:
            self._on_disconnect()
            return message
        self._received += len(message.get("body", b""))
        self._ended = not message.get("more_body", False)
        if self._received > self._limit:
            self._stop(_too_large(self._limit))
        if not self._ended:
            self._check_progress()
        return message

    async def _next_message(self) -> Message:
        # the time that the app takes between reads is not the client's fault, so only waits count
        began = monotonic()
        try:
            async with asyncio.timeout(self._pace.timeout):
                message = await self._receive()
        except TimeoutError:
            self._stop(_silent(self._pace.timeout, self._received))
        self._waited += monotonic() - began
        return message

    def _check_progress(self) -> None:
        """Stop a body that is too slow or takes too long, or whose key was revoked."""
        pace = self._pace
        if self._waited > pace.timeout and self._received < pace.least_rate * self._waited:
            self._stop(_too_slow(pace.least_rate, self._received))
        if monotonic() - self._began > pace.most_seconds:
            self._stop(_too_long(pace.most_seconds, self._received))
        try:
            self._check_caller()
        except Unauthenticated as revoked:
            self._stop(revoked)

    def _stop(self, refusal: ServiceError) -> NoReturn:
        self._refusal = refusal
        raise refusal

    def _on_disconnect(self) -> None:
        self._ended = self._client_left = True
        _log.info(
            "client_left_in_body",
            request_id=self._scope.get("request_id"),
            method=self._scope["method"],
            path=self._scope["path"],
            received_bytes=self._received,
        )


def _stated_length(scope: Scope) -> int | None:
    """Return the Content-Length; 0 if there is no body, None if it is chunked."""
    length: bytes | None = None
    is_chunked = False
    for name, value in scope["headers"]:
        if name == b"content-encoding" and not scope["path"].startswith("/v2"):
            raise Unsupported(
                "unsupported_encoding", "compressed bodies are not supported: decompress them"
            )
        if name == b"content-length":
            if length is not None or not value.isdigit():
                raise Malformed(
                    "invalid_content_length",
                    "the Content-Length must be a non-negative integer, sent only once",
                )
            length = value
        elif name == b"transfer-encoding":
            is_chunked = True
    if is_chunked:
        if length is not None:
            raise Malformed(
                "invalid_content_length",
                "a request must not have both a Content-Length and a Transfer-Encoding",
            )
        return None
    if length is None:
        return 0
    return int(length[:MAX_LENGTH_DIGITS]) if len(length) <= MAX_LENGTH_DIGITS else 1 << 63


def _too_large(limit: int) -> TooLarge:
    return TooLarge(
        "body_too_large", f"the body is larger than the {limit} bytes allowed here", limit=limit
    )


def _silent(timeout: float, received: int) -> TooSlow:
    return TooSlow(
        "body_timeout",
        f"no bytes of the body arrived for {timeout:g} seconds: send it again without pauses",
        received=received,
    )


def _too_slow(least_rate: float, received: int) -> TooSlow:
    return TooSlow(
        "body_too_slow",
        f"the body arrived at less than {least_rate:g} bytes per second: "
        "send it faster or in parts",
        received=received,
    )


def _too_long(seconds: float, received: int) -> TooSlow:
    return TooSlow(
        "body_too_long",
        f"the body took longer than {seconds:g} seconds: send it in parts",
        received=received,
    )


async def refuse(
    scope: Scope, receive: Receive, send: Send, refusal: Exception, has_ended: bool = False
) -> None:
    """Send an error response; give a client that is still sending time to read it before closing.

    Closing with unread bytes resets the connection, and a reset can overtake the response.
    """
    response = problem_response(scope, refusal)
    headers = [*response.raw_headers, (b"connection", b"close")]
    await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
    await send({"type": "http.response.body", "body": response.body, "more_body": True})
    if not has_ended and not _waits_for_permission(scope):
        await _drain(receive)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _waits_for_permission(scope: Scope) -> bool:
    return any(
        name == b"expect" and value.lower() == b"100-continue" for name, value in scope["headers"]
    )


async def _drain(receive: Receive) -> None:
    dropped = 0
    try:
        async with asyncio.timeout(LINGER_SECONDS):
            while dropped < LINGER_BYTES:
                message = await receive()
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return
                dropped += len(message.get("body", b""))
    except TimeoutError:
        return
