"""Accept connections of a listening socket, some in each pass of the event loop, and read them.

Event loops accept one connection in a pass (uvloop), so that new callers wait behind all others
for as many passes, or all that there are (asyncio), so that everybody waits for them.
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

MOST_AT_ONCE = 256
FULL_SECONDS = 0.5
READ_BYTES = 1 << 18
BUSY_READ_BYTES = 1 << 12

_log = structlog.get_logger("calibrd.service")


class Reading(asyncio.BufferedProtocol):
    """Read for another protocol: little at a time while many connections wait to be parsed.

    What was read for them is held in memory.
    """

    _buffer = memoryview(bytearray(READ_BYTES))  # for all: it is copied before the next read

    def __init__(self, protocol: HttpProtocol) -> None:
        self._protocol = protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._protocol.connection_made(transport)  # type: ignore[arg-type]

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._protocol.connection_lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where to read to."""
        return self._buffer[:BUSY_READ_BYTES] if self._protocol.is_crowded else self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Hand over what was read."""
        self._protocol.data_received(bytes(self._buffer[:nbytes]))

    def eof_received(self) -> bool | None:
        """Tell that nothing more will come."""
        self._protocol.eof_received()
        return None

    def pause_writing(self) -> None:
        """Tell that the client reads slowly."""
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """Tell that it has read."""
        self._protocol.resume_writing()


class ConnectionListener:
    """Hand the connections of a socket to protocols until it is closed."""

    def __init__(self, listening: socket.socket, make_protocol: Callable[[], HttpProtocol]) -> None:
        self._listening = listening
        self._make_protocol = make_protocol
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[object]] = set()
        self._listening.setblocking(False)
        self._loop.add_reader(listening, self._accept)

    def close(self) -> None:
        """Accept nothing more."""
        self._loop.remove_reader(self._listening)

    def _accept(self) -> None:
        for _ in range(MOST_AT_ONCE):
            try:
                connection, _address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no more files may be open
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
                lambda: Reading(self._make_protocol()), connection
            )
        except OSError:  # it was closed already
            connection.close()

    def _pause(self) -> None:
        self._loop.remove_reader(self._listening)

        def resume() -> None:
            with suppress(OSError, ValueError):  # closed meanwhile
                self._loop.add_reader(self._listening, self._accept)

        self._loop.call_later(FULL_SECONDS, resume)
