"""Request headers that try to start a WebSocket, or to redirect readers elsewhere."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from helpers.live_service import Local, Running, running
from helpers.route_table import calls_of

from service.access import keys
from service.access.permissions import Scope
from service.http.middleware.auth import Guard

ELSEWHERE = "elsewhere.example"
VALUES = {"name": "digits", "number": 1, "alias": "production", "id": "x", "run": "job"}
VALUES |= {"ref": "digits", "version": 1, "file": "app.css", "step": 1}
PAGE, PROGRAM = "text/html", "application/json"


def handshake(path: str, method: str = "GET", host: str = "127.0.0.1") -> bytes:
    """Return the request headers of a WebSocket handshake."""
    lines = (
        f"{method} {path} HTTP/1.1",
        f"Host: {host}",
        "Connection: keep-alive, Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        "",
        "",
    )
    return "\r\n".join(lines).encode()


def answer_to(url: str, sent: bytes) -> bytes:
    """Return everything received until the connection ends."""
    place = urlsplit(url)
    with socket.create_connection((place.hostname or "", place.port or 0), timeout=20) as line:
        line.sendall(sent)
        with line.makefile("rb") as file:
            return file.read()


@pytest.fixture(scope="module")
def own_service(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Run a service whose log only this test writes to."""
    folder: Path = tmp_path_factory.mktemp("hostile")
    with running(folder, "--workers", "0") as started:
        yield started


@pytest.mark.parametrize("path", ["/", "/v1/fits", "/v2/health/live", "/nowhere", "/healthz"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_websocket_is_refused_without_a_traceback(
    own_service: Running, path: str, method: str
) -> None:
    head, _, body = answer_to(own_service.url, handshake(path, method)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 "), head
    told = json.loads(body)
    if path.startswith("/v2"):
        assert "WebSockets are not supported" in told["error"]
    else:
        assert told["code"] == "no_websockets"
    log = own_service.log.read_text()
    assert "Traceback" not in log
    assert "RuntimeError" not in log


def test_a_pipelined_websocket_leaves_the_previous_response_intact(
    own_service: Running,
) -> None:
    first = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    answers = answer_to(own_service.url, first + handshake("/v1/fits"))
    assert answers.startswith(b"HTTP/1.1 200 OK")
    assert b"101 Switching" not in answers
    assert "Traceback" not in own_service.log.read_text()


def test_an_upgrade_to_http_2_is_ignored(own_service: Running) -> None:
    head = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings, close\r\n"
    answer = answer_to(own_service.url, head + b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 OK")


def test_websockets_are_closed_on_other_servers() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def nothing(*_: Any) -> Any:
        raise AssertionError("the app was reached")

    guard = Guard(nothing, None, None, None, is_loopback=True)  # type: ignore[arg-type]
    scope = {"type": "websocket", "path": "/", "headers": []}
    asyncio.run(guard(scope, nothing, send))
    assert [one["type"] for one in sent] == ["websocket.close"]


@pytest.fixture
def token(local: Local) -> str:
    """Return an administrator's key; once there is a key, any Host header is accepted."""
    parts = local.app.state.parts
    with parts.database.write() as store:
        workspace = keys.workspace_named(store, "default", make=True).id
        made = keys.create(store, workspace, name="tests", scopes=[Scope.ADMIN])
    parts.keys.refresh()
    return made.token


def locations(client: httpx.Client, method: str, path: str, token: str) -> list[str]:
    """Return where a path redirects to, for people and programs, with a key and without."""
    found = []
    for accept in (PAGE, PROGRAM):
        for key in ({}, {"Authorization": f"Bearer {token}"}):
            headers = {"Host": ELSEWHERE, "Accept": accept, "X-Forwarded-Host": ELSEWHERE, **key}
            with client.stream(method, path, headers=headers, follow_redirects=False) as answer:
                found.append(answer.headers.get("location", ""))
    return found


def test_no_redirect_repeats_the_host_header(local: Local, token: str) -> None:
    calls = {(one.method, one.url(**VALUES)) for one in calls_of(local.app)}
    seen = []
    for method, path in sorted(calls):
        if path.endswith("/events"):
            continue  # a stream, and no such fit
        for asked in (path, path.rstrip("/") + "/", f"{path}?next=//{ELSEWHERE}/"):
            seen += [(asked, one) for one in locations(local, method, asked, token) if one]
    assert seen, "pages lead to where one signs in"
    assert [one for one in seen if urlsplit(one[1]).netloc or "://" in one[1]] == []


@pytest.mark.parametrize("path", ["/jobs/", "/v1/fits/", "/v1/runs/", "/sign-in/"])
def test_a_trailing_slash_names_nothing(local: Local, token: str, path: str) -> None:
    headers = {"Host": ELSEWHERE, "Authorization": f"Bearer {token}"}
    answer = local.get(path, headers=headers, follow_redirects=False)
    assert (answer.status_code, answer.json()["code"]) == (404, "no_such_route")
    assert "location" not in answer.headers


HEADERS = (
    "Referer", "Origin", "Cookie", "Accept", "Content-Type", "If-Match", "If-None-Match", "Prefer",
    "Idempotency-Key", "Calibrd-Model", "Content-Encoding", "Inference-Header-Content-Length",
    "X-Forwarded-For", "Forwarded", "Range", "Last-Event-ID", "Sec-Fetch-Site", "Accept-Language",
    "X-Request-Id", "Authorization",
)  # fmt: skip
VALUES_OF_HEADERS = (
    b"http://[", b"//a]", b"[", b"\xff\xfe", b"%", b'"', b"9" * 400, b"nan", b"1e999", b"-1",
    b",;,=", b"\xc2\xb2", b"a" * 3000, b"bytes=0-,1-2", b"wait=999999", b"W/",
)  # fmt: skip
CALLS = (
    ("POST", "/jobs"),
    ("PUT", "/anything"),
    ("GET", "/calibrators/digits"),
    ("POST", "/v1/calibrators/digits/fits"),
    ("POST", "/v2/models/digits/infer"),
)


@pytest.mark.parametrize("header", HEADERS)
def test_no_value_of_a_header_is_an_error_of_the_server(
    local: Local, token: str, header: str
) -> None:
    for value in VALUES_OF_HEADERS:
        for method, path in CALLS:
            for key in ({}, {"Authorization": f"Bearer {token}"}):
                headers = {"Accept": PAGE, **key, header: value}
                answer = local.request(method, path, headers=headers, content=b"")
                assert answer.status_code < 500, (method, path, value, answer.text)
