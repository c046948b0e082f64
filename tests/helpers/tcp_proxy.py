"""A TCP proxy to a server that can be cut, so that both ends hear nothing, and reconnected."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

CHUNK = 1 << 16


class Line:
    """Forwards bytes between its own port and a server's, for each connection separately.

    While it is cut, nothing passes and nothing is closed; data sent meanwhile arrives after it is
    reconnected. A connection that sends the bytes ``refused`` is closed.
    """

    def __init__(self, port: int, refused: bytes | None = None) -> None:
        self._server = port
        self._refused = refused
        self._is_down = False
        self._whole = threading.Event()
        self._whole.set()
        self._sockets: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Stop forwarding."""
        self._whole.clear()

    def hang_up(self) -> None:
        """Close all connections and every new one, as if the server were down."""
        self._is_down = True
        self._close(*self._sockets)

    def mend(self) -> None:
        """Resume forwarding."""
        self._is_down = False
        self._whole.set()

    def close(self) -> None:
        """Close all connections and stop listening."""
        self._is_down = True
        self._close(self._listening, *self._sockets)
        self._whole.set()

    @staticmethod
    def _close(*ends: socket.socket) -> None:
        for one in ends:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                if self._is_down:
                    client.close()
                    continue
                self._sockets.append(client)
                threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        self._whole.wait()
        if self._is_down:
            client.close()
            return
        with suppress(OSError):
            server = socket.create_connection(("127.0.0.1", self._server))
            self._sockets.append(server)
            threading.Thread(target=self._carry, args=(server, client), daemon=True).start()
            self._carry(client, server)

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while content := source.recv(CHUNK):
                self._whole.wait()
                if self._refused is not None and self._refused in content:
                    break
                target.sendall(content)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextmanager
def line(port: int, refused: bytes | None = None) -> Iterator[Line]:
    """Run a proxy to a server on this machine until the end of the block."""
    made = Line(port, refused)
    try:
        yield made
    finally:
        made.close()
