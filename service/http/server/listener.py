"""Accept a bounded number of connections in each pass of the event loop, and read from them.

By default, uvloop accepts one connection per pass, so that new callers wait behind all others.
asyncio accepts all pending connections, so that all other callers wait for them.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from service.http.middleware.fair_turns import ADDRESS, RoundRobin, network_of
from service.http.server.connections import files_left
from service.http.server.reset_check import has_left

if TYPE_CHECKING:
    from service.http.server.protocol import HttpProtocol

MAX_AT_ONCE = 256
# accepted connections that are handed to protocols in one pass, which takes about 2 ms
SERVED_AT_ONCE = 16
MAX_WAITING = 8192  # of all addresses; further ones stay in the queue of the operating system
FULL_SECONDS = 0.5
READ_BYTES = 1 << 18
# bytes that follow a head in the same read are held until the request's turn comes
HEAD_READ_BYTES = 1 << 14
BUSY_READ_BYTES = 1 << 12

_log = structlog.get_logger("calibrd.service")


class ReadAdapter(asyncio.BufferedProtocol):
    """An adapter that reads on behalf of another protocol.

    While connections are waiting to be parsed, chunks are small, because bytes that have been read
    but not parsed are held in memory.
    """

    _buffer = memoryview(bytearray(READ_BYTES))  # shared, because bytes are copied at once

    def __init__(self, protocol: HttpProtocol) -> None:
        self._protocol = protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Pass the connection on to the protocol."""
        self._protocol.connection_made(transport)  # type: ignore[arg-type]

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end of the connection."""
        self._protocol.connection_lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next read, a small one while others are waiting."""
        if self._protocol.is_crowded:
            return self._buffer[:BUSY_READ_BYTES]
        return self._buffer if self._protocol.is_in_body else self._buffer[:HEAD_READ_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        """Pass the bytes that were read on to the protocol."""
        self._protocol.data_received(bytes(self._buffer[:nbytes]))

    def eof_received(self) -> bool | None:
        """Report that the client will send nothing more."""
        self._protocol.eof_received()
        return None

    def pause_writing(self) -> None:
        """Report that the client is reading slowly."""
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """Report that the client has caught up."""
        self._protocol.resume_writing()


class ConnectionListener:
    """A listener that passes the connections of a socket to protocols until it is closed.

    Accepting is cheap, but a protocol is not. If connections arrive faster than protocols can be
    created, addresses take turns, and connections that have been reset meanwhile are closed.
    """

    def __init__(
        self,
        listening: socket.socket,
        make_protocol: Callable[[], HttpProtocol],
        most_of_one_address: int = 1024,
    ) -> None:
        self._listening = listening
        self._most_of_one_address = most_of_one_address
        self._most = min(MAX_WAITING, files_left() // 2)
        self._make_protocol = make_protocol
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[object]] = set()
        self._waiting: RoundRobin[socket.socket] = RoundRobin()
        self._waiting_of: Counter[str] = Counter()
        self._is_serving = False
        self._listening.setblocking(False)
        self._loop.add_reader(listening, self._accept)

    def close(self) -> None:
        """Stop accepting connections."""
        self._loop.remove_reader(self._listening)
        while self._waiting:
            self._waiting.pop().close()

    def _accept(self) -> None:
        for _ in range(min(MAX_AT_ONCE, self._most - self._waiting_of.total())):
            try:
                connection, address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # too many open files
                _log.warning("accept_failed", error=str(error))
                self._pause()
                return
            connection.setblocking(False)
            self._wait(connection, ADDRESS + network_of(address[0] if address else "unknown"))

    def _wait(self, connection: socket.socket, address: str) -> None:
        if self._waiting_of[address] >= self._most_of_one_address:
            connection.close()
            return
        self._waiting_of[address] += 1
        self._waiting.add(address, connection)
        if not self._is_serving:
            self._is_serving = True
            self._loop.call_soon(self._serve_some)

    def _serve_some(self) -> None:
        """Hand some of the waiting connections to protocols, the others in the next pass."""
        for _ in range(SERVED_AT_ONCE):
            if not self._waiting:
                break
            address, connection = self._waiting.pop_with_owner()
            self._waiting_of[address] -= 1
            if not self._waiting_of[address]:
                del self._waiting_of[address]
            if has_left(connection.fileno()):
                connection.close()
                continue
            task = self._loop.create_task(self._serve(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._is_serving = bool(self._waiting)
        if self._is_serving:
            self._loop.call_soon(self._serve_some)

    async def _serve(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: ReadAdapter(self._make_protocol()), connection
            )
        except OSError:  # it was already closed
            connection.close()

    def _pause(self) -> None:
        self._loop.remove_reader(self._listening)

        def resume() -> None:
            with suppress(OSError, ValueError):  # closed in the meantime
                self._loop.add_reader(self._listening, self._accept)

        self._loop.call_later(FULL_SECONDS, resume)
