"""Accept a bounded number of connections in each pass of the event loop, and read from them.

By default, uvloop accepts one connection per pass, so that new callers wait behind all others.
asyncio accepts all pending connections, so that all other callers wait for them.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from service.http.server.protocol import HttpProtocol

MAX_AT_ONCE = 256
FULL_SECONDS = 0.5
READ_BYTES = 1 << 18
# bytes that follow a head in the same read are held until the request's turn comes
HEAD_READ_BYTES = 1 << 16
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
    """A listener that passes the connections of a socket to protocols until it is closed."""

    def __init__(self, listening: socket.socket, make_protocol: Callable[[], HttpProtocol]) -> None:
        self._listening = listening
        self._make_protocol = make_protocol
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[object]] = set()
        self._listening.setblocking(False)
        self._loop.add_reader(listening, self._accept)

    def close(self) -> None:
        """Stop accepting connections."""
        self._loop.remove_reader(self._listening)

    def _accept(self) -> None:
        for _ in range(MAX_AT_ONCE):
            try:
                connection, _address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # too many open files
                _log.warning("accept_failed", error=str(error))
                self._pause()
                return
            connection.setblocking(False)
            task = self._loop.create_task(self._serve(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

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
