"""Bodies refused by their declared length, while they arrive, or because they do not arrive."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import httpx
import pytest
import structlog
import uvicorn
from fastapi import Body, FastAPI, Request
from helpers.live_service import by_the_clock
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.http.metrics import Metrics
from service.http.middleware.body_limits import BodyGuard
from service.http.middleware.request_log import RequestLog
from service.http.problems import LastResort, install_problems

LIMIT = 1 << 20
RETRY_SECONDS, LITTLE = 60.0, 0.4
MIN_RATE = 1000


class Counting:
    """Middleware outside the guard that counts the bytes of bodies read from the server."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def counting_receive() -> Message:
            message = await receive()
            self.bytes += len(message.get("body", b""))
            return message

        await self.app(scope, counting_receive, send)


def guarded(timeout: float = RETRY_SECONDS) -> Counting:
    app = FastAPI()
    install_problems(app)

    @app.post("/json")
    def take(value: Annotated[Any, Body()]) -> str:
        return str(type(value).__name__)

    @app.post("/stream")
    async def stream(request: Request) -> int:
        return sum([len(chunk) async for chunk in request.stream()])

    @app.post("/ignore")
    def ignore() -> str:
        return "ignored"

    async def raw(scope: Scope, receive: Receive, send: Send) -> None:
        size, more = 0, True
        while more:
            message = await receive()
            size += len(message.get("body", b""))
            more = message.get("more_body", False)
        headers = [(b"content-length", b"%d" % len(str(size)))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": str(size).encode()})

    app.mount("/raw", raw)
    guard = BodyGuard(app, lambda scope: LIMIT, timeout, MIN_RATE)
    return Counting(RequestLog(LastResort(guard), Metrics()))


@contextmanager
def running(app: ASGIApp) -> Iterator[int]:
    config = uvicorn.Config(app, port=0, log_config=None, access_log=False, lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        deadline = time.monotonic() + 10
        while not server.started and time.monotonic() < deadline:
            time.sleep(0.01)
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(10)


@pytest.fixture(scope="module")
def app() -> Counting:
    return guarded()


@pytest.fixture(scope="module")
def port(app: Counting) -> Iterator[int]:
    with running(app) as port:
        yield port


@pytest.fixture(scope="module")
def hasty_port() -> Iterator[int]:
    """Return the port of an app with short timeouts."""
    with running(guarded(LITTLE)) as port:
        yield port


def in_process(path: str, **kwargs: Any) -> httpx.Response:
    async def call() -> httpx.Response:
        transport = httpx.ASGITransport(guarded())
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.post(path, **kwargs)

    return asyncio.run(call())


async def chunks(count: int, size: int, pause: float = 0.0) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield b" " * size
        await asyncio.sleep(pause)


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=10)


def answer_on(connection: socket.socket) -> tuple[int, dict[str, Any], bytes]:
    head, _, body = b"".join(iter(lambda: _received(connection), b"")).partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body), head.lower()


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(65536)
    except ConnectionResetError:
        return b""


PATHS = pytest.mark.parametrize("path", ["/json", "/stream", "/raw/"])


@PATHS
def test_small_bodies_pass(path: str) -> None:
    assert in_process(path, content=b'"' + b"x" * 1000 + b'"').status_code == 200
    assert in_process(path, content=chunks(10, 100)).status_code in (200, 400)
    assert in_process("/ignore").json() == "ignored"


@PATHS
def test_a_stated_length_over_the_limit_is_413_before_reading(path: str) -> None:
    answer = in_process(path, content=b" " * (LIMIT + 1))

    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")
    assert answer.headers["connection"] == "close"
    assert answer.json()["limit"] == LIMIT


@PATHS
@pytest.mark.parametrize("pieces", [(17, LIMIT // 16), (1, LIMIT + 1)], ids=["many", "one"])
def test_a_chunked_body_is_stopped_at_the_limit(path: str, pieces: tuple[int, int]) -> None:
    answer = in_process(path, content=chunks(*pieces))

    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")


@pytest.mark.parametrize(
    "headers",
    [
        [("content-length", "-5")],
        [("content-length", "five")],
        [("content-length", "+5")],
        [("content-length", "")],
        [("content-length", "5"), ("content-length", "5")],
        [("content-length", "5"), ("transfer-encoding", "chunked")],
    ],
    ids=["negative", "word", "signed", "empty", "twice", "and chunked"],
)
def test_invalid_lengths_are_400(headers: list[tuple[str, str]]) -> None:
    answer = in_process("/stream", content=b"12345", headers=headers)

    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_content_length")


def test_a_length_of_thousands_of_digits_is_413() -> None:
    answer = in_process("/stream", content=b"x", headers={"content-length": "9" * 5000})

    assert answer.status_code == 413


@by_the_clock
@PATHS
def test_silence_is_408(path: str, hasty_port: int) -> None:
    with connect(hasty_port) as connection:
        connection.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\n" % path.encode())
        connection.sendall(b"Content-Type: application/json\r\nContent-Length: 9\r\n\r\n123")
        began = time.monotonic()
        status, problem, head = answer_on(connection)

    assert (status, problem["code"]) == (408, "body_timeout")
    assert b"connection: close" in head
    assert time.monotonic() - began < 8


@by_the_clock
@PATHS
def test_a_trickle_is_408(path: str, hasty_port: int) -> None:
    with connect(hasty_port) as connection:
        connection.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\n" % path.encode())
        connection.sendall(b"Content-Type: application/json\r\nContent-Length: 900\r\n\r\n")
        for _ in range(12):
            connection.sendall(b" ")
            time.sleep(0.05)
        status, problem, _ = answer_on(connection)

    assert (status, problem["code"]) == (408, "body_too_slow")


@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_a_large_slow_upload_reads_its_413(framing: str, app: Counting, port: int) -> None:
    size, piece = 50 << 20, b" " * 65536
    before = app.bytes
    sent = 0
    with connect(port) as connection:
        connection.sendall(b"POST /stream HTTP/1.1\r\nHost: x\r\n")
        if framing == "length":
            connection.sendall(b"Content-Length: %d\r\n\r\n" % size)
        else:
            connection.sendall(b"Transfer-Encoding: chunked\r\n\r\n")
        try:
            while sent < size:
                connection.sendall(
                    piece if framing == "length" else b"%x\r\n%s\r\n" % (len(piece), piece)
                )
                sent += len(piece)
                time.sleep(0.001)
        except (BrokenPipeError, ConnectionResetError):
            pass
        status, problem, head = answer_on(connection)

    assert (status, problem["code"]) == (413, "body_too_large")
    assert b"connection: close" in head
    assert sent < size
    assert app.bytes - before < 4 * LIMIT


def test_httpx_reads_the_413_of_a_large_upload(app: Counting, port: int) -> None:
    before = app.bytes
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20) as client:
        stated = client.post("/json", content=b" " * (50 << 20))
        streamed = client.post("/stream", content=(b" " * 65536 for _ in range(800)))

    assert [stated.status_code, streamed.status_code] == [413, 413]
    assert app.bytes - before < 8 * LIMIT


def test_expect_continue_is_answered_at_once(port: int) -> None:
    with connect(port) as connection:
        connection.sendall(b"POST /stream HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n")
        connection.sendall(b"Content-Length: 99999999\r\n\r\n")
        status, _, head = answer_on(connection)

    assert status == 413  # it would be 408 if it waited for the body
    assert b"100 continue" not in head


@PATHS
def test_a_client_that_leaves_is_logged_in_one_line_without_traceback(
    path: str, port: int, caplog: pytest.LogCaptureFixture
) -> None:
    with structlog.testing.capture_logs() as lines:
        with connect(port) as connection:
            connection.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\n" % path.encode())
            connection.sendall(b"Content-Type: application/json\r\nContent-Length: 9\r\n\r\n123")
        deadline = time.monotonic() + 5
        while not any(line["event"] == "request" for line in lines):
            assert time.monotonic() < deadline
            time.sleep(0.01)

    left = [line for line in lines if line["event"] == "client_left_in_body"]
    assert [(line["log_level"], line["received_bytes"]) for line in left] == [("info", 3)]
    assert not [line for line in lines if line["log_level"] == "error"]
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
