"""Headers that never end, arrive too slowly or are not HTTP, sent byte by byte."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn
from helpers.live_service import STOP_SECONDS, by_the_clock, wait_until
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from service.http.server import read_turns
from service.http.server.head_limits import MAX_HEAD_BYTES, MAX_HEADERS, MAX_VALUE_BYTES
from service.http.server.protocol import HttpProtocol

HEAD_SECONDS = 1.0
SLOW_ANSWER_SECONDS = 2.5
CHUNKED = b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


class Hasty(HttpProtocol):
    """Short timeouts, for tests of slow input; a busy machine is slow as well."""

    head_seconds = HEAD_SECONDS
    leftover_seconds = HEAD_SECONDS


async def refuse_unread(_request: Request) -> PlainTextResponse:
    return PlainTextResponse("no", status_code=422)


async def echo(request: Request) -> PlainTextResponse:
    return PlainTextResponse(str(len(await request.body())))


def answer_slowly(_request: Request) -> PlainTextResponse:
    time.sleep(SLOW_ANSWER_SECONDS)
    return PlainTextResponse("slow")


@contextlib.contextmanager
def served(protocol: type[HttpProtocol]) -> Iterator[tuple[str, int]]:
    """Run a small app like the real one; return its address."""
    app = Starlette(
        routes=[
            Route("/echo", echo, methods=["GET", "POST"]),
            Route("/slow", answer_slowly),
            Route("/refuse", refuse_unread, methods=["POST"]),
        ]
    )
    server = uvicorn.Server(uvicorn.Config(app, http=protocol, log_config=None))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            wait_until(lambda: server.started or not thread.is_alive())
            yield listening.getsockname()
        finally:
            server.should_exit = True
            thread.join(STOP_SECONDS)
            assert not thread.is_alive()


@pytest.fixture(scope="module")
def address() -> Iterator[tuple[str, int]]:
    with served(HttpProtocol) as found:
        yield found


@pytest.fixture
def line(address: tuple[str, int]) -> Iterator[socket.socket]:
    """Open a connection to the small app."""
    with socket.create_connection(address, timeout=20) as made:
        yield made


@pytest.fixture(scope="module")
def hasty_address() -> Iterator[tuple[str, int]]:
    with served(Hasty) as found:
        yield found


@pytest.fixture
def hasty(hasty_address: tuple[str, int]) -> Iterator[socket.socket]:
    """Open a connection to an app with short timeouts."""
    with socket.create_connection(hasty_address, timeout=20) as made:
        yield made


def everything(line: socket.socket) -> bytes:
    with line.makefile("rb") as file:
        return file.read()


def refused(line: socket.socket) -> tuple[int, str]:
    """Return the status and code of the only response, after which the connection ends."""
    head, _, body = everything(line).partition(b"\r\n\r\n")
    headers = head.lower().split(b"\r\n")
    assert b"content-type: application/problem+json" in headers
    assert b"connection: close" in headers
    assert b"content-length: %d" % len(body) in headers
    told = json.loads(body)
    assert head.startswith(b"HTTP/1.1 %d " % told["status"])
    return told["status"], told["code"]


def get(*headers: bytes) -> bytes:
    return b"\r\n".join([b"GET /echo HTTP/1.1", b"Host: x", *headers, b"", b""])


TOO_LARGE = (431, "request_header_fields_too_large")
MALFORMED = (400, "malformed_request")


@pytest.mark.parametrize(
    "beginning",
    [
        b"GET /echo HTTP/1.1\r\nX: ",
        b"GET /echo HTTP/1.1\r\n",
        CHUNKED + b"1\r\na\r\n0\r\nX: ",
    ],
    ids=["value", "name", "trailer"],
)
def test_endless_heads_are_refused_after_64_kib(line: socket.socket, beginning: bytes) -> None:
    line.sendall(beginning)
    with contextlib.suppress(ConnectionError):
        for _ in range(40):
            line.sendall(b"a" * 4096)
            time.sleep(0.001)
    assert refused(line) == TOO_LARGE


def test_whole_heads_that_are_too_large(address: tuple[str, int]) -> None:
    long = get(b"X: " + b"a" * MAX_HEAD_BYTES)
    many = get(*[b"X: a"] * MAX_HEADERS)
    for head in (long, many):
        with socket.create_connection(address, timeout=20) as line:
            line.sendall(head)
            assert refused(line) == TOO_LARGE


def test_heads_at_the_limit_and_long_bodies_pass(line: socket.socket) -> None:
    line.sendall(get(*[b"X: " + b"a" * MAX_VALUE_BYTES] * (MAX_HEAD_BYTES // MAX_VALUE_BYTES - 1)))
    line.sendall(get(*[b"X: a"] * (MAX_HEADERS - 1)))
    line.sendall(CHUNKED + b"%x\r\n" % (1 << 20) + b"a" * (1 << 20) + b"\r\n0\r\n\r\n")
    line.sendall(get(b"Connection: close"))
    assert everything(line).count(b"HTTP/1.1 200 OK") == 4


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"BREW /echo HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"POST /echo HTTP/1.1\r\nContent-Length: many\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /echo HTTP/1.1\r\nno colon\r\n\r\n",
        CHUNKED + b"not a length\r\n",
    ],
    ids=["method", "tls", "length", "lengths", "path", "header", "chunk"],
)
def test_bytes_that_are_not_http_get_a_problem(line: socket.socket, request_bytes: bytes) -> None:
    line.sendall(request_bytes)
    assert refused(line) == MALFORMED


@by_the_clock
def test_headers_that_come_too_slowly(hasty: socket.socket) -> None:
    began = time.monotonic()
    hasty.sendall(b"GET /echo HTTP/1.1\r\nX: a")
    assert refused(hasty) == (408, "headers_timeout")
    assert time.monotonic() - began < HEAD_SECONDS + 5


@pytest.mark.parametrize("nothing", [b"", b"\r\n"])
def test_a_connection_on_which_nothing_comes_is_closed(
    hasty: socket.socket, nothing: bytes
) -> None:
    hasty.sendall(nothing)
    assert everything(hasty) == b""


@by_the_clock
def test_later_requests_have_the_same_limits_and_may_be_far_apart(hasty: socket.socket) -> None:
    for _ in range(2):
        hasty.sendall(get())
        assert hasty.recv(1000).startswith(b"HTTP/1.1 200")
        time.sleep(2 * HEAD_SECONDS)
    hasty.sendall(get()[:-2])
    assert refused(hasty) == (408, "headers_timeout")


@by_the_clock
def test_half_a_request_behind_a_slow_answer_does_not_disturb_it(hasty: socket.socket) -> None:
    hasty.sendall(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\nGET /ec")
    time.sleep(2 * HEAD_SECONDS)
    hasty.sendall(get(b"Connection: close").removeprefix(b"GET /ec"))
    assert everything(hasty).count(b"HTTP/1.1 200 OK") == 2


def test_garbage_after_a_request_is_not_taken_as_its_response(line: socket.socket) -> None:
    line.sendall(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n\x00\x00\x00")
    answer = everything(line)
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(b"slow")
    assert answer.count(b"HTTP/1.1") == 1


TOO_LONG = (414, "request_uri_too_long")


@pytest.mark.parametrize(
    ("head", "told"),
    [
        (b"GET /" + b"%41" * 400 + b" HTTP/1.1\r\n", TOO_LONG),
        (b"GET /" + b"a" * 2000, TOO_LONG),  # refused before it ends
        (b"GET /echo?" + b"a" * 9000, TOO_LONG),
        (b"POST /x/predict?" + b"a" * 9000, TOO_LONG),
        (b"GET /x/predict?" + b"a&" * 300 + b" HTTP/1.1\r\nHost: x\r\n\r\n", TOO_LONG),
        (b"GET /echo HTTP/1.1\r\n" + b"a:\r\n" * 110, TOO_LARGE),  # refused before it ends
        (b"GET /echo HTTP/1.1\r\nCookie: " + b"a" * 17000 + b"\r\nX: y\r\n", TOO_LARGE),
        (b"GET /echo HTTP/1.1\r\nAccept: " + b"a" * 9000 + b"\r\nX: y\r\n", TOO_LARGE),
        (
            b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\nX: y\r\n",
            (501, "not_implemented"),
        ),
        (
            b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n"
            b"Transfer-Encoding: chunked\r\nX: y\r\n",
            (501, "not_implemented"),
        ),
    ],
)
def test_costly_heads_are_refused_before_they_are_decoded(
    line: socket.socket, head: bytes, told: tuple[int, str]
) -> None:
    line.sendall(head)
    assert refused(line) == told


def test_a_long_row_in_the_query_of_predict_is_taken(line: socket.socket) -> None:
    line.sendall(
        b"GET /v1/calibrators/x@1/predict?logits="
        + b"1," * 25_000
        + b" HTTP/1.1\r\nHost: x\r\n\r\n"
    )
    assert line.recv(12) != b"HTTP/1.1 414"


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("connection", [b"Upgrade, HTTP2-Settings", b"Upgrade, close"])
def test_an_upgrade_to_http_2_keeps_its_body(
    line: socket.socket, parts: int, connection: bytes
) -> None:
    head = (
        b"POST /echo HTTP/1.1\r\nHost: x\r\nConnection: " + connection + b"\r\nUpgrade: h2c\r\n"
        b"HTTP2-Settings: AAMAAABk\r\nContent-Length: 5\r\n\r\n"
    )
    after = b"GET /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    if parts == 1:
        line.sendall(head + b"hello" + after)
    else:
        line.sendall(head)
        time.sleep(0.1)
        line.sendall(b"hello" + after)
    answers = everything(line)
    assert answers.startswith(b"HTTP/1.1 200")
    assert b"\r\n\r\n5" in answers
    assert answers.count(b"HTTP/1.1 200") == (1 if b"close" in connection else 2)


@pytest.mark.parametrize("name", [b"X-A", b"X-Longer-Than-The-Others"])
def test_pipelined_upgrades_keep_their_bodies(line: socket.socket, name: bytes) -> None:
    """The body of the second must not be taken for a third request."""
    inner = b"GET /inner HTTP/1.1\r\nHost: x\r\n\r\n"
    upgrade = b"Connection: Upgrade\r\nUpgrade: h2c\r\n" + name + b": y\r\n"
    first = b"GET /echo HTTP/1.1\r\nHost: x\r\n" + upgrade + b"HTTP2-Settings: \r\n\r\n"
    second = b"POST /echo HTTP/1.1\r\nHost: x\r\n" + upgrade
    second += b"Content-Length: %d\r\n\r\n" % len(inner) + inner
    last = b"GET /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    line.sendall(first + second + last)
    answers = everything(line)
    assert answers.count(b"HTTP/1.1 ") == 3
    assert b"\r\n\r\n%d" % len(inner) in answers


def test_a_body_that_ends_too_early_gets_a_response(line: socket.socket) -> None:
    line.sendall(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc")
    line.shutdown(socket.SHUT_WR)
    assert refused(line) == (400, "truncated_body")


def test_trailers_are_no_headers(line: socket.socket) -> None:
    line.sendall(CHUNKED + b"1\r\na\r\n0\r\n" + b"X: y\r\n" * 200 + b"\r\n")
    assert line.recv(12) == b"HTTP/1.1 200"


def test_bodies_that_wait_for_their_turn_arrive_whole(address, monkeypatch):
    monkeypatch.setattr(read_turns, "TURN_SECONDS", 0.0)  # no time left in any pass
    body = b"a" * 3_000_000
    head = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    with contextlib.ExitStack() as opened:
        lines = [
            opened.enter_context(socket.create_connection(address, timeout=20)) for _ in range(4)
        ]
        senders = [threading.Thread(target=one.sendall, args=((head + body) * 2,)) for one in lines]
        for one in senders:
            one.start()
        for one in lines:
            answers = b""
            while answers.count(b"3000000") < 2:
                piece = one.recv(4096)
                assert piece, answers
                answers += piece
        for one in senders:
            one.join()


@by_the_clock
def test_the_rest_of_a_body_is_not_read_forever_after_the_response(hasty_address):
    with socket.create_connection(hasty_address, timeout=20) as made:
        made.sendall(b"POST /refuse HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n")
        assert made.recv(12) == b"HTTP/1.1 422"
        began = time.monotonic()
        with contextlib.suppress(ConnectionError):
            while time.monotonic() - began < 15:
                made.sendall(b"a")
                time.sleep(0.1)
        assert HEAD_SECONDS / 2 < time.monotonic() - began < 10


def test_a_request_may_follow_a_body_that_got_an_early_response(hasty_address):
    with socket.create_connection(hasty_address, timeout=20) as made:
        head = b"POST /refuse HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n"
        made.sendall(head + b"a" * 5)
        assert made.recv(12) == b"HTTP/1.1 422"
        made.sendall(b"a" * 5)
        time.sleep(1.5 * HEAD_SECONDS)  # the clock of the rest has been stopped
        made.sendall(b"GET /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert b"HTTP/1.1 200" in everything(made)
