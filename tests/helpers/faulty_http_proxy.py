"""A proxy to the service that can delay requests, respond in its place, or drop responses.

It is a small HTTP proxy on loopback that counts connections and records every request. A test can
act before a request is forwarded, or before its response is returned.
"""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

OF_ONE_HOP = ("connection", "keep-alive", "transfer-encoding", "date", "server")


@dataclass(frozen=True)
class ReceivedRequest:
    """A request as it was received."""

    method: str
    path: str
    headers: dict[str, str]
    bytes: int

    @property
    def place(self) -> str:
        """Return the path without its query."""
        return self.path.partition("?")[0]


class Lost(Exception):
    """Close the connection before the request is forwarded, or before its response is returned."""


@dataclass(frozen=True)
class Say:
    """Send this response instead of forwarding the request."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    content: bytes = b""


Rule = Callable[[ReceivedRequest], Say | None]


class FaultyLine(ThreadingHTTPServer):
    """Forwards requests to a service; ``before`` and ``after`` may raise Lost, or respond."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, target: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = urlsplit(target).netloc
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.asked: list[ReceivedRequest] = []
        self.connections = 0
        self.prefix = ""  # a prefix of paths that the service does not know about
        self.before: Rule = lambda asked: None
        self.after: Rule = lambda asked: None

    def get_request(self):
        self.connections += 1
        return super().get_request()

    def handle_error(self, request, client_address) -> None:  # clients hang up, too
        pass

    def count(self, method: str, ending: str = "") -> int:
        """Return the number of requests with a method and a path that ends in a string."""
        return sum(one.method == method and one.place.endswith(ending) for one in self.asked)

    @property
    def sent_bytes(self) -> int:
        """Return the total size of the received bodies."""
        return sum(one.bytes for one in self.asked)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultyLine

    def handle_one_request(self) -> None:
        self.raw_requestline = self.rfile.readline(1 << 16)
        if not self.raw_requestline or not self.parse_request():
            self.close_connection = True
            return
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        asked = ReceivedRequest(
            self.command,
            self.path,
            {name.lower(): value for name, value in self.headers.items()},
            len(content),
        )
        self.server.asked.append(asked)
        try:
            said = self.server.before(asked) or self._passed_on(asked, content)
            said = self.server.after(asked) or said
        except (Lost, OSError, http.client.HTTPException):
            self.close_connection = True
            return
        self._say(said)

    def _passed_on(self, asked: ReceivedRequest, content: bytes) -> Say:
        upstream = http.client.HTTPConnection(self.server.target, timeout=60)
        try:
            headers = {k: v for k, v in asked.headers.items() if k not in ("host", "connection")}
            path = asked.path.removeprefix(self.server.prefix)
            upstream.request(asked.method, path, content or None, headers)
            answer = upstream.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            kept = {name: value for name, value in found.items() if name not in OF_ONE_HOP}
            return Say(answer.status, kept, answer.read())
        finally:
            upstream.close()

    def _say(self, said: Say) -> None:
        self.send_response_only(said.status)
        length = {"content-length": str(len(said.content))}
        for name, value in ({} if said.status in (204, 304) else length | said.headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(said.content)


@contextmanager
def faulty_line(target: str) -> Iterator[FaultyLine]:
    """Run a proxy to a service until the end of the block."""
    made = FaultyLine(target)
    threading.Thread(target=made.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield made
    finally:
        made.shutdown()
        made.server_close()


def first(count: int, fault: Callable[[], Say | None], method: str = "", ending: str = "") -> Rule:
    """Apply a rule to the first requests only, optionally limited to a method and a path."""
    left = threading.Semaphore(count)

    def rule(asked: ReceivedRequest) -> Say | None:
        is_meant = asked.method.startswith(method) and asked.place.endswith(ending)
        return fault() if is_meant and left.acquire(blocking=False) else None

    return rule


def lose() -> Say | None:
    """Raise the fault of a broken connection."""
    raise Lost
