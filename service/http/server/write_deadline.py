"""Deadlines for clients that do not read their responses."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class WriteDeadline(HttpToolsProtocol):
    """A connection that is aborted ``write_seconds`` after its client stops reading."""

    write_seconds = 20.0

    _write_clock: asyncio.TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the deadline."""
        self._stop_write_clock()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Wait for a slow client, but only until the deadline."""
        super().pause_writing()
        self._start_write_clock()

    def resume_writing(self) -> None:
        """Cancel the deadline: the client has read most of what was pending."""
        self._stop_write_clock()
        super().resume_writing()

    def on_response_complete(self) -> None:
        """Start the deadline if a closing connection has bytes that its client has not read."""
        super().on_response_complete()
        if self.transport.is_closing() and self.transport.get_write_buffer_size():
            self._start_write_clock()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection; drop bytes that its client has not read."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def _start_write_clock(self) -> None:
        if self._write_clock is None:
            self._write_clock = self.loop.call_later(self.write_seconds, self.transport.abort)

    def _stop_write_clock(self) -> None:
        if self._write_clock is not None:
            self._write_clock.cancel()
            self._write_clock = None
