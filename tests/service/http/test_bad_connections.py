"""Bodies with wrong lengths, or that never end or arrive, sent to the real app byte by byte."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from helpers.live_service import (
    NPZ,
    Local,
    by_the_clock,
    files_below,
    in_process,
    npz,
    sample,
    wait_until,
)
from helpers.workspace_contents import fitted_elsewhere

LIMIT = 1 << 20
TIMEOUT = 0.5
DOORS = (
    "/v1/datasets",
    "/v1/calibrators/made/fits?method=temperature",
    "/v1/calibrators/fashion@1/predict",
)


@contextlib.contextmanager
def limited(folder: Path, **settings: float) -> Iterator[Local]:
    """A service with small limits."""
    limits = {"max_upload_bytes": LIMIT, "max_predict_bytes": LIMIT, "max_json_bytes": LIMIT}
    with in_process(folder, **limits, max_part_bytes=LIMIT, **settings) as local:
        url = "/v1/calibrators/fashion/versions"
        assert local.post(url, json=fitted_elsewhere()).status_code == 201
        yield local


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    with limited(tmp_path_factory.mktemp("connections")) as local:
        yield local


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    """Run a service with short timeouts."""
    with limited(tmp_path_factory.mktemp("hasty"), body_timeout=TIMEOUT) as local:
        yield local


class Line:
    """A connection that sends bytes exactly as given."""

    def __init__(self, service: Local) -> None:
        address = service.base_url.host, service.base_url.port
        self._socket = socket.create_connection(address, timeout=20)

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def head(self, path: str, *headers: str) -> None:
        lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", *headers]
        if not any(line.startswith("Content-Type") for line in headers):
            lines.append("Content-Type: application/x-npz")
        self.send("\r\n".join([*lines, "", ""]).encode())

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def stop_sending(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    def everything(self) -> bytes:
        """Return everything received until the service closes the connection."""
        return self._socket.makefile("rb").read()

    def answer(self) -> tuple[int, dict[str, object]]:
        """Return the status and the body of the next response; 0 and no bytes if there is none."""
        file = self._socket.makefile("rb")
        status = file.readline()
        if not status:
            return 0, {}
        headers = dict(
            line.decode().strip().lower().split(": ", 1) for line in iter(file.readline, b"\r\n")
        )
        if headers.get("transfer-encoding") == "chunked":
            size = int(file.readline(), 16)
        else:
            size = int(headers["content-length"])
        return int(status.split()[1]), json.loads(file.read(size))


def is_well(service: Local) -> bool:
    return service.get("/healthz").status_code == 200


def left_behind(service: Local) -> list[str]:
    folder = service.app.state.parts.settings.data_dir / "uploads"
    return [path.name for path in files_below(folder)]


@by_the_clock
@pytest.mark.parametrize("path", DOORS)
def test_a_body_that_stops_before_its_stated_length_is_408(hasty: Local, path: str) -> None:
    began = time.monotonic()
    with Line(hasty) as line:
        line.head(path, "Content-Length: 1000")
        line.send(b"PK\x03\x04")
        status, told = line.answer()
    assert (status, told["code"], told["received"]) == (408, "body_timeout", 4)
    assert TIMEOUT <= time.monotonic() - began < TIMEOUT + 5
    assert left_behind(hasty) == []


@pytest.mark.parametrize("path", DOORS)
def test_a_connection_that_closes_in_the_body_leaves_nothing(service: Local, path: str) -> None:
    for closing in (Line.stop_sending, Line.__exit__):
        with Line(service) as line:
            line.head(path, "Content-Length: 100000")
            line.send(b"PK\x03\x04" * 1000)
            closing(line)
    wait_until(lambda: left_behind(service) == [])
    assert service.get("/v1/datasets").json()["items"] == []
    assert is_well(service)


@pytest.mark.parametrize("path", DOORS)
def test_more_than_the_stated_length_is_no_part_of_the_body(service: Local, path: str) -> None:
    body = npz(*sample(10))
    with Line(service) as line:
        line.head(path, "Content-Length: 50")
        line.send(body)
        raw = line.everything()
    # the rest is parsed as an invalid next request, so there is only this response
    assert raw.startswith(b"HTTP/1.1 400"), raw
    assert raw.count(b"HTTP/1.1") == 1
    assert b"Traceback" not in raw
    assert service.get("/v1/datasets").json()["items"] == []


@pytest.mark.parametrize(
    "lengths",
    [
        ["Content-Length: -1"],
        ["Content-Length: 1e3"],
        ["Content-Length: 10", "Content-Length: 20"],
        ["Content-Length: 10", "Transfer-Encoding: chunked"],
    ],
)
def test_invalid_lengths_are_refused(service: Local, lengths: list[str]) -> None:
    with Line(service) as line:
        line.head("/v1/datasets", *lengths)
        raw = line.everything()
    assert raw.startswith(b"HTTP/1.1 400"), raw
    assert b"Traceback" not in raw
    assert is_well(service)


@pytest.mark.parametrize("path", [*DOORS, "/v1/keys"])
def test_too_large_by_its_length_is_refused_before_a_byte_of_it(service: Local, path: str) -> None:
    with Line(service) as line:
        line.head(path, f"Content-Length: {10**12}")
        status, told = line.answer()
    # it would be 408 if it waited for the body
    assert (status, told["code"], told["limit"]) == (413, "body_too_large", LIMIT)


@pytest.mark.parametrize("path", DOORS)
def test_too_large_without_a_length_is_refused_on_the_way(service: Local, path: str) -> None:
    piece = bytes(1 << 16)
    sent = 0
    with Line(service) as line:
        line.head(path, "Transfer-Encoding: chunked")
        try:
            while sent < 64 * LIMIT:
                line.send(b"%x\r\n%s\r\n" % (len(piece), piece))
                sent += len(piece)
        except OSError:
            pass  # the service has hung up
        else:
            raise AssertionError("it took a body of 64 times the limit")
    assert sent < 32 * LIMIT
    assert left_behind(service) == []


def test_too_large_bodies_get_a_response_while_they_arrive(service: Local) -> None:
    pieces = (bytes(1 << 16) for _ in range(20))
    answer = service.post("/v1/datasets", content=pieces, headers=NPZ)
    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")


@by_the_clock
@pytest.mark.parametrize("path", [*DOORS, "/v1/keys"])
def test_a_body_that_trickles_is_408(hasty: Local, path: str) -> None:
    with Line(hasty) as line:
        line.head(path, "Content-Length: 1000")
        began = time.monotonic()
        for _ in range(6):
            line.send(b"P")
            time.sleep(TIMEOUT / 4)
        status, told = line.answer()
    assert (status, told["code"]) == (408, "body_too_slow")
    assert time.monotonic() - began < 10 * TIMEOUT


def test_a_slow_sender_delays_no_one(service: Local) -> None:
    lines = [Line(service) for _ in range(50)]
    try:
        for line in lines:
            line.head("/v1/datasets", "Content-Length: 1000")
            line.send(b"PK")
        answer: httpx.Response = service.get("/v1/methods")
        assert answer.status_code == 200
    finally:
        for line in lines:
            line.__exit__()
    wait_until(lambda: left_behind(service) == [])
