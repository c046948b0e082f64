"""A server on loopback that sends a chosen response for each path, byte by byte."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Pieces = Iterable[bytes]


@dataclass
class Chosen:
    """A response; ``body`` yields its pieces, which are sent until the client closes."""

    body: Callable[[], Pieces]
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Hostile:
    """The server; ``answers`` holds responses by path, ``seen`` the requests and bytes sent."""

    url: str
    answers: dict[str, Chosen] = field(default_factory=dict)
    seen: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    sent_bytes: int = 0

    def say(self, path: str, document: Any, **headers: str) -> None:
        """Respond to a path with JSON."""
        content = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.answers[path] = Chosen(lambda: [content], headers=headers)


@contextmanager
def hostile() -> Iterator[Hostile]:
    """Run the server until the end of the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            taken = int(self.headers.get("Content-Length", 0))
            self.rfile.read(taken)
            made.seen.append((self.path, {k.lower(): v for k, v in self.headers.items()}))
            chosen = made.answers.get(self.path.partition("?")[0])
            if chosen is None:
                chosen = Chosen(lambda: [b'{"code": "no_such_dataset", "detail": "none"}'], 404)
            self.send_response(chosen.status)
            for name, value in chosen.headers.items():
                self.send_header(name, value)
            self.end_headers()
            try:
                for piece in chosen.body():
                    self.wfile.write(piece)
                    made.sent_bytes += len(piece)
            except OSError:
                pass  # the client has closed the connection

        do_POST = do_PUT = do_DELETE = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    made = Hostile(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        thread.join(5)
        server.server_close()
