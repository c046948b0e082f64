"""Accept connections of a listening socket, some in each pass of the event loop.

Event loops accept one connection in a pass (uvloop), so that new callers wait behind all others
for as many passes, or all that there are (asyncio), so that everybody waits for them.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress

import structlog

MOST_AT_ONCE = 64
FULL_SECONDS = 0.5

_log = structlog.get_logger("calibrd.service")


class Listener:
    """Hand the connections of a socket to protocols until it is closed."""

    def __init__(
        self, listening: socket.socket, make_protocol: Callable[[], asyncio.Protocol]
    ) -> None:
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
            await self._loop.connect_accepted_socket(self._make_protocol, connection)
        except OSError:  # it was closed already
            connection.close()

    def _pause(self) -> None:
        self._loop.remove_reader(self._listening)

        def resume() -> None:
            with suppress(OSError, ValueError):  # closed meanwhile
                self._loop.add_reader(self._listening, self._accept)

        self._loop.call_later(FULL_SECONDS, resume)
