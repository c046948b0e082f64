"""The HTTP protocol of ``serve``: uvicorn's, with limits on heads and problem+json errors."""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from service.http.middleware.fair_turns import TURN, network_of, owner_of
from service.http.problems import problem_response
from service.http.server import head_limits as refusals
from service.http.server.connections import Connections
from service.http.server.head_limits import (
    MAX_COOKIE_BYTES,
    MAX_HEAD_BYTES,
    MAX_HEADERS,
    MAX_PARAMETERS,
    MAX_PATH_BYTES,
    MAX_PIPELINED,
    MAX_PIPELINED_HEAD,
    MAX_TARGET_BYTES,
    MAX_VALUE_BYTES,
)
from service.http.server.read_turns import REQUEST_SECONDS, ReadTurns, TurnReader

MAX_PIECES = 1000  # per read, which has at most 256 kB
HEADER_OVERHEAD = 200  # bytes of memory that a header takes in addition to its text
CALIBRATORS, LONG_TARGETS = b"/v1/calibrators/", b"/predict"
UPGRADE_HEADERS = (b"upgrade", b"connection", b"http2-settings")
LINGER_SECONDS = 1.0
LINGER_BYTES = 1 << 20


class HttpProtocol(TurnReader):
    """One connection, with limits on what its parser buffers.

    The parser buffers headers, and the trailers of a chunked body, until they are complete. Its
    cost is quadratic in their length, so bytes that complete nothing are counted and limited.
    """

    head_seconds = 10.0
    leftover_seconds = 60.0

    open_connections = Connections(1 << 20)

    _in_head = False
    _made_progress = False
    _has_head = False
    _running: RequestResponseCycle | None = None
    _is_downgraded = False
    _address = "unknown"
    _data = b""
    _pieces = 0
    _header_bytes = 0
    _held_head = 0
    _bytes_without_progress = 0
    _refusal: Exception | None = None
    _is_refused = False
    _clock: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Register the connection, and start the deadline for its first request."""
        super().connection_made(transport)
        if self.client is not None:
            self._address = network_of(self.client[0])
        self._start_clock()
        self.open_connections.add(self, self._address)

    @property
    def is_in_body(self) -> bool:
        """True if the next bytes belong to a body that the app is reading."""
        cycle = self.cycle
        return cycle is not None and cycle.more_body and not cycle.response_complete

    @property
    def is_answering(self) -> bool:
        """True while the response to an earlier request is incomplete."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def owner(self) -> str:
        """The owner whose turns are used: the workspace of the last request, or the address."""
        scope: Any = {"client": self.client} if self.cycle is None else self.cycle.scope
        return owner_of(scope)

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the resources of the connection, and notify the running request."""
        self.open_connections.remove(self, self._address)
        self._hold_head(0)
        self._stop_clock()
        self.pipeline.clear()
        if self._running is not None:  # uvicorn only notifies the connection's last request
            self._running.disconnected = True
            self._running.message_event.set()
            scope: Any = self._running.scope
            if TURN in scope:
                scope[TURN].leave()
        # after a reset, uvicorn leaves its timer, which holds this object for 75 s
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Start a request at once, or in its turn if it was pipelined behind another."""
        self._running = cycle
        if self._data:  # the request is part of the bytes being parsed, so it already has a turn
            super()._start_asgi_task(cycle, app)
        elif self.read_turns.has_time:
            self._start_next(cycle, app)
        else:
            self.read_turns.wait(partial(self._start_next, cycle, app), self.owner)

    def _start_next(self, cycle: RequestResponseCycle, app: Any) -> None:
        if not self.transport.is_closing():
            self.read_turns.count(REQUEST_SECONDS)
            super()._start_asgi_task(cycle, app)

    def drop(self) -> None:
        """Close the connection at once, to make room for others."""
        self.transport.abort()

    def eof_received(self) -> None:
        """Reject a body that ends too early; the client may still be reading.

        If hundreds of bodies end at once, most connections are closed without a response, because
        sending so many would take too long.
        """
        cycle = self.cycle
        if cycle is None or cycle.response_complete or not cycle.more_body:
            return
        if not self._is_refused and not self._in_head and self.read_turns.has_time:
            self.read_turns.count(REQUEST_SECONDS)
            self._refuse(refusals.truncated())

    def on_response_complete(self) -> None:
        """Mark the connection as idle, unless more requests are waiting on it."""
        super().on_response_complete()
        if self.cycle.response_complete and not self.pipeline:
            self._forget_request()
            self.open_connections.set_idle(self, self._address)

    def _forget_request(self) -> None:
        """Keep only the owner of a finished request; the rest may occupy 200 kB."""
        scope: Any = self.cycle.scope
        self.cycle.body = bytearray()
        self.cycle.scope = {name: scope.get(name) for name in ("principal", "client")}  # type: ignore[assignment]
        if not self._in_head:  # otherwise the head belongs to the next request
            self._forget_head()

    def _forget_head(self) -> None:
        self.scope = self.cycle.scope
        self.url, self.headers = b"", []

    def parse(self, data: bytes) -> None:
        """Parse received bytes; reject a head that becomes too long."""
        if self._is_refused:
            self._drop(data)
            return
        self._made_progress = self._has_head = False
        self._pieces = 0
        self._data = data
        super().parse(data)
        self._data = b""
        if self._made_progress:
            self._bytes_without_progress = 0
        else:
            self._bytes_without_progress += len(data)
        if self._is_refused:
            return
        cycle = self.cycle
        if cycle is not None and cycle.more_body:
            if cycle.response_complete:
                self._read_leftover()
            elif self._has_head or cycle.body:
                self.flow.pause_reading()  # until the app reads the body
        if self._bytes_without_progress > MAX_HEAD_BYTES:
            self._refuse(refusals.too_large())
        elif self._in_head:
            self._wait_for_head()
        elif not (self._made_progress or self.is_answering or self._clock):
            self._start_clock()  # empty lines: uvicorn has ended its own clock

    def _read_leftover(self) -> None:
        """Read the rest of a body, slowly and with a deadline; the response was already sent."""
        self.slow_down()
        if self._clock is None:
            self._clock = self.loop.call_later(self.leftover_seconds, self.transport.close)

    def _wait_for_head(self) -> None:
        """Count the memory of an unfinished head, and limit its time."""
        size = self._bytes_without_progress + self._header_bytes
        if not self._hold_head(size + HEADER_OVERHEAD * len(self.headers)):
            self._refuse(refusals.too_many_heads())
        elif self._clock is None:
            self._start_clock()

    def _hold_head(self, size: int) -> bool:
        if size == self._held_head:
            return True
        self._held_head = size
        return self.open_connections.hold_head(self, self._address, size)

    def on_message_begin(self) -> None:
        """Start the head of a new request."""
        super().on_message_begin()
        self._in_head = True
        self._header_bytes = 0

    def on_url(self, url: bytes) -> None:
        """Add a part of the request's target; reject long targets before they are decoded."""
        self.url += url
        if len(self.url) > MAX_PATH_BYTES:
            self._check_target()

    def _check_target(self) -> None:
        path, has_query, _ = self.url.partition(b"?")
        if len(path) > MAX_PATH_BYTES:
            self._stop(refusals.too_long_path())
        if len(self.url) <= MAX_TARGET_BYTES or not has_query:
            return
        is_predict = path.startswith(CALIBRATORS) and path.endswith(LONG_TARGETS)
        may_be_long = is_predict and self.parser.get_method() == b"GET"
        if not may_be_long or len(self.url) > MAX_HEAD_BYTES:
            self._stop(refusals.too_long_query())

    def on_header(self, name: bytes, value: bytes) -> None:
        """Check and add a header; drop trailers of a chunked body."""
        self._header_bytes += len(name) + len(value)
        if not self._in_head:
            return
        name = name.lower()
        if len(self.headers) >= MAX_HEADERS or self._header_bytes > MAX_HEAD_BYTES:
            self._stop(refusals.too_large())
        if len(value) > (MAX_COOKIE_BYTES if name == b"cookie" else MAX_VALUE_BYTES):
            self._stop(refusals.too_long_value(name))
        if name == b"transfer-encoding" and value.strip().lower() != b"chunked":
            self._stop(refusals.unknown_coding())
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start the request, unless its head is too large or too many requests are waiting."""
        if len(self.url) + self._header_bytes > MAX_HEAD_BYTES:
            self._stop(refusals.too_large())
        if self.url.count(b"&") >= MAX_PARAMETERS:
            self._stop(refusals.too_long_query())
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT":
            if self._get_upgrade() == b"websocket":
                self._stop(refusals.no_websockets())
            self._is_downgraded = True  # see _unsupported_upgrade_warning
            return
        size = len(self.url) + self._header_bytes
        is_long = size > MAX_PIPELINED_HEAD and self.is_answering
        if is_long or len(self.pipeline) >= MAX_PIPELINED:
            self._stop(refusals.too_many_pipelined())
        super().on_headers_complete()
        self._in_head = False
        self._made_progress = self._has_head = True
        self.read_turns.count(REQUEST_SECONDS)
        self.open_connections.set_busy(self, self._address)
        self._hold_head(0)
        self._stop_clock()

    def on_body(self, body: bytes) -> None:
        """Add a chunk of a body; reject bodies in too many tiny chunks."""
        self._pieces += 1
        if self._pieces > MAX_PIECES:
            self._stop(refusals.too_small_chunks())
        self._made_progress = True
        cycle = self.cycle
        if cycle.response_complete:
            return
        cycle.body += body
        cycle.message_event.set()

    def on_message_complete(self) -> None:
        """Mark the request as complete."""
        if self._is_downgraded:
            return
        super().on_message_complete()
        self.cycle.more_body = False  # uvicorn leaves it set if the response is already complete
        self._made_progress = True
        self._stop_clock()

    def _stop(self, error: Exception) -> None:
        """Abort parsing; ``send_400_response`` responds with the error."""
        self._refusal = error
        raise error

    def _should_upgrade_to_ws(self) -> bool:
        """Never switch protocols, regardless of which WebSocket libraries are installed."""
        return False

    def _unsupported_upgrade_warning(self) -> None:
        """Ignore other upgrades, such as h2c: the request is answered with HTTP/1.1.

        The parser treats the bytes after such a head as another protocol. Therefore a new parser
        reads the head again without the upgrade headers, and then the body.
        """
        if not self._is_downgraded:
            return
        self._is_downgraded = False
        (parsed,) = getattr(sys.exception(), "args", (len(self._data),))
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        lines += [b"%b: %b" % one for one in self.headers if one[0] not in UPGRADE_HEADERS]
        if not self.parser.should_keep_alive():
            lines.append(b"connection: close")
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._data = b"\r\n".join([*lines, b"", self._data[parsed:]])
        super().parse(self._data)

    def send_400_response(self, msg: str) -> None:
        """Send an error for a request that the parser rejected."""
        error, self._refusal = self._refusal, None  # its traceback holds the bytes being parsed
        self._refuse(error or refusals.malformed())

    def _refuse(self, error: Exception) -> None:
        """Send an error and close the connection.

        Nothing is sent if the error could be taken for the response to another request.
        """
        self._is_refused = True
        if self.transport.is_closing():
            return
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            if self._in_head and not self.pipeline:
                cycle.keep_alive = False  # the previous request still gets its response
                self._forget_head()  # the client may read the response slowly
                return
            if self._in_head or self.pipeline or cycle.response_started:
                self.pipeline.clear()
                if self._running is not None:
                    self._running.disconnected = True
                self.transport.abort()
                return
            cycle.disconnected = True  # the app must not respond as well
            cycle.message_event.set()
        self.flow.resume_reading()
        self.transport.write(self._response_bytes(error))
        self.transport.write_eof()
        # closing while bytes are arriving resets the connection, and the response may be lost
        self._stop_clock()
        self._clock = self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def _drop(self, data: bytes) -> None:
        self._bytes_without_progress += len(data)
        if self._bytes_without_progress > LINGER_BYTES:
            self.transport.close()

    def _response_bytes(self, error: Exception) -> bytes:
        path = (self.url or b"").partition(b"?")[0][:MAX_PATH_BYTES]
        response = problem_response({"path": str(path, "latin-1")}, error)
        headers = (
            *self.server_state.default_headers,
            *response.raw_headers,
            (b"connection", b"close"),
        )
        lines = [b"%b: %b\r\n" % header for header in headers]
        return b"".join([STATUS_LINE[response.status_code], *lines, b"\r\n", bytes(response.body)])

    def _start_clock(self) -> None:
        self._clock = self.loop.call_later(self.head_seconds, self._on_deadline)

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _on_deadline(self) -> None:
        """End a connection whose time is up; thousands may end together, so they take turns."""
        if self.read_turns.has_time:
            self.read_turns.count(REQUEST_SECONDS)
            self._end_late(self._clock)
        else:
            self.read_turns.wait(partial(self._end_late, self._clock), self.owner)

    def _end_late(self, clock: asyncio.TimerHandle | None) -> None:
        if self.transport.is_closing() or self._clock is not clock:
            return  # it ended, or its request arrived, while it waited for its turn
        if self.cycle is not None and not self.cycle.response_complete:
            self._start_clock()  # not the client's delay: an earlier request is still running
        elif self._in_head:
            self._refuse(refusals.too_slow(self.head_seconds))
        else:
            self.transport.close()


def protocol_with(write_seconds: float, most_of_one_address: int) -> type[HttpProtocol]:
    """Return an HttpProtocol subclass configured for one server.

    ``write_seconds`` is the timeout for clients that do not read their responses, and
    ``most_of_one_address`` the maximum number of connections per address.
    """
    shared = {
        "write_seconds": write_seconds,
        "open_connections": Connections(most_of_one_address),
        "read_turns": ReadTurns(),
    }
    return type("HttpProtocol", (HttpProtocol,), shared)
