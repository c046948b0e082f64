"""A bounded load on a server: each connection sends its next request after a response."""

import asyncio
import re
import time
from dataclasses import dataclass

LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
END = b"\r\n\r\n"


@dataclass(frozen=True)
class Call:
    """A request as bytes, sent repeatedly; every response must be 200."""

    path: str
    body: bytes = b""
    content_type: str = "application/octet-stream"

    def raw(self) -> bytes:
        """Return the request as HTTP/1.1 bytes."""
        head = (
            f"POST {self.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {self.content_type}\r\n"
            f"Accept: {self.content_type}\r\nContent-Length: {len(self.body)}\r\n\r\n"
        )
        return head.encode() + self.body


class _Connection(asyncio.Protocol):
    def __init__(self, request: bytes, deadline: float, done: asyncio.Future[int]) -> None:
        self._request = request
        self._deadline = deadline
        self._done = done
        self._buffer = b""
        self._answers = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._buffer = self._buffer + data if self._buffer else data
        head = self._buffer.find(END)
        if head < 0:
            return
        length = LENGTH.search(self._buffer, 0, head)
        if length is None or not self._buffer.startswith(b"HTTP/1.1 200"):
            self._fail(f"unexpected response: {self._buffer[:200]!r}")
        elif len(self._buffer) >= head + len(END) + int(length[1]):
            self._buffer = b""
            self._answers += 1
            if time.perf_counter() < self._deadline:
                self._transport.write(self._request)
            else:
                self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if not self._done.done():
            self._done.set_result(self._answers)

    def _fail(self, words: str) -> None:
        if not self._done.done():
            self._done.set_exception(RuntimeError(words))
        self._transport.abort()


async def _load(port: int, call: Call, connections: int, seconds: float) -> float:
    loop = asyncio.get_running_loop()
    began = time.perf_counter()
    waiting = []
    for _ in range(connections):
        done: asyncio.Future[int] = loop.create_future()
        connection = _Connection(call.raw(), began + seconds, done)
        await loop.create_connection(lambda one=connection: one, "127.0.0.1", port)
        waiting.append(done)
    async with asyncio.timeout(seconds + 30):
        answers = sum(await asyncio.gather(*waiting))
    return answers / (time.perf_counter() - began)


def requests_per_second(port: int, call: Call, connections: int, seconds: float) -> float:
    """Return the responses per second over a number of connections."""
    import uvloop

    return uvloop.run(_load(port, call, connections, seconds))
