"""HTTP as ``serve`` speaks it: uvicorn's, with limits on headers and errors as problem+json."""

from __future__ import annotations

import asyncio
from itertools import chain

from starlette.exceptions import HTTPException
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from service.api.problems import problem_response
from service.errors import Malformed, TooSlow

MAX_HEAD_BYTES = 1 << 16
MAX_HEADERS = 100
MOST_PIPELINED = 16
MOST_PIECES = 4096  # of one read, which has at most 256 kB
LINGER_SECONDS = 1.0
LINGER_BYTES = 1 << 20


class HttpProtocol(HttpToolsProtocol):
    """One connection.

    The parser keeps headers, and trailers of a chunked body, until they end, at a cost that grows
    with the square of their length: so bytes that bring a request no further are counted.
    """

    head_seconds = 10.0
    write_seconds = 20.0

    _in_head = False
    _got_further = False
    _pieces = 0
    _bytes_without_progress = 0
    _refusal: Exception | None = None
    _is_refused = False
    _clock: asyncio.TimerHandle | None = None
    _write_clock: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Expect the first request soon."""
        super().connection_made(transport)
        self._start_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the client."""
        self._stop_clock()
        self._stop_write_clock()
        self.pipeline.clear()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Wait for a client that reads slowly, but not for ever."""
        super().pause_writing()
        self._start_write_clock()

    def resume_writing(self) -> None:
        """Go on: the client has read most of what was waiting."""
        self._stop_write_clock()
        super().resume_writing()

    def on_response_complete(self) -> None:
        """Do not let a client that never reads keep a connection that is being closed."""
        super().on_response_complete()
        if self.transport.is_closing() and self.transport.get_write_buffer_size():
            self._start_write_clock()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, with what its client has not read."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def data_received(self, data: bytes) -> None:
        """Parse it; refuse what gets too long."""
        if self._is_refused:
            self._drop(data)
            return
        self._got_further = False
        self._pieces = 0
        super().data_received(data)
        if self._got_further:
            self._bytes_without_progress = 0
        else:
            self._bytes_without_progress += len(data)
        if self._is_refused:
            return
        if self._bytes_without_progress > MAX_HEAD_BYTES:
            self._refuse(_too_large())
        elif self._in_head and self._clock is None:
            self._start_clock()

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        self._in_head = True

    def on_headers_complete(self) -> None:
        """Hand the request over, unless its head is too large, or too many requests wait."""
        size = len(self.url) + sum(map(len, chain.from_iterable(self.headers)))
        if size > MAX_HEAD_BYTES or len(self.headers) > MAX_HEADERS:
            self._refusal = _too_large()
        elif self._get_upgrade() == b"websocket":
            self._refusal = _no_websockets()
        elif len(self.pipeline) >= MOST_PIPELINED:
            self._refusal = _too_many_pipelined()
        if self._refusal is not None:
            raise self._refusal
        super().on_headers_complete()
        self._in_head = False
        self._got_further = True
        self._stop_clock()

    def on_body(self, body: bytes) -> None:
        """A piece of a body; pieces of a few bytes cost more than they bring."""
        self._pieces += 1
        if self._pieces > MOST_PIECES:
            self._refusal = _too_small_chunks()
            raise self._refusal
        super().on_body(body)
        self._got_further = True

    def on_message_complete(self) -> None:
        """The end of a request."""
        super().on_message_complete()
        self._got_further = True

    def _should_upgrade_to_ws(self) -> bool:
        """Never switch protocols, whatever WebSocket libraries are installed."""
        return False

    def _unsupported_upgrade_warning(self) -> None:
        """Ignore other upgrades, such as h2c: the request is answered with HTTP/1.1."""

    def send_400_response(self, msg: str) -> None:
        """Refuse what the parser did not take."""
        self._refuse(self._refusal or _malformed())

    def _refuse(self, error: Exception) -> None:
        """Answer if it cannot be taken for the answer to an earlier request, and hang up."""
        self._is_refused = True
        if self.transport.is_closing():
            return
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            if self._in_head and not self.pipeline:
                cycle.keep_alive = False  # the request before this one is answered still
                return
            if self._in_head or self.pipeline or cycle.response_started:
                self.pipeline.clear()
                self.transport.abort()
                return
            cycle.disconnected = True  # the app must not answer once more
            cycle.message_event.set()
        self.flow.resume_reading()
        self.transport.write(self._written(error))
        self.transport.write_eof()
        # closed while bytes come in, the connection is reset and the answer may get lost
        self._stop_clock()
        self._clock = self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def _drop(self, data: bytes) -> None:
        self._bytes_without_progress += len(data)
        if self._bytes_without_progress > LINGER_BYTES:
            self.transport.close()

    def _written(self, error: Exception) -> bytes:
        answer = problem_response({"path": ""}, error)
        headers = (
            *self.server_state.default_headers,
            *answer.raw_headers,
            (b"connection", b"close"),
        )
        lines = [b"%b: %b\r\n" % header for header in headers]
        return b"".join([STATUS_LINE[answer.status_code], *lines, b"\r\n", bytes(answer.body)])

    def _start_write_clock(self) -> None:
        if self._write_clock is None:
            self._write_clock = self.loop.call_later(self.write_seconds, self.transport.abort)

    def _stop_write_clock(self) -> None:
        if self._write_clock is not None:
            self._write_clock.cancel()
            self._write_clock = None

    def _start_clock(self) -> None:
        self._clock = self.loop.call_later(self.head_seconds, self._time_is_up)

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _time_is_up(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._start_clock()  # it is our answer to an earlier request that takes so long
        elif self._in_head:
            self._refuse(_too_slow(self.head_seconds))
        else:
            self.transport.close()


def protocol_with(write_seconds: float) -> type[HttpProtocol]:
    """Return the protocol with a time-out for clients that do not read their answers."""
    return type("HttpProtocol", (HttpProtocol,), {"write_seconds": write_seconds})


def _malformed() -> Malformed:
    return Malformed(
        "malformed_request",
        "this is not an HTTP/1.1 request: its first line, a header or the framing of its body"
        " breaks the rules",
    )


def _no_websockets() -> Malformed:
    return Malformed(
        "no_websockets",
        "no route takes WebSockets: send the request without the Upgrade header; events of a fit"
        " are streamed by GET /v1/fits/{id}/events",
    )


def _too_many_pipelined() -> Malformed:
    return Malformed(
        "malformed_request",
        f"at most {MOST_PIPELINED} requests may wait on a connection: read the answers first",
    )


def _too_small_chunks() -> Malformed:
    return Malformed(
        "malformed_request", "the body comes in chunks of a few bytes: send larger ones"
    )


def _too_large() -> HTTPException:
    rule = f"at most {MAX_HEADERS} headers, and {MAX_HEAD_BYTES} bytes with the request line"
    return HTTPException(431, f"the headers are too large: {rule}; send less")


def _too_slow(seconds: float) -> TooSlow:
    return TooSlow("headers_timeout", f"the headers must end within {seconds:g} seconds")
