"""Small requests that are costly, in very large numbers, do not delay other callers."""

from __future__ import annotations

import contextlib
import io
import socket
import time
from collections.abc import Iterator

import numpy as np
import pytest
from helpers.hostile.attacks import IS_FULL, Target, target
from helpers.hostile.bodies import MEGABYTE, Body
from helpers.live_service import by_the_clock
from helpers.registration import temperature_registration

NPY, NPZ = "application/x-npy", "application/x-npz"
HOST = b" HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/html\r\n"


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with target(tmp_path_factory.mktemp("attacked")) as started:
        with started.client() as admin:
            body = temperature_registration(2.0, k=2)
            assert admin.post("/v1/calibrators/two/versions", json=body).status_code == 201
        yield started


@contextlib.contextmanager
def opened(attacked: Target, count: int, data: bytes) -> Iterator[list[socket.socket]]:
    """Open connections that all send the same bytes, as far as they are accepted."""
    made = []
    try:
        for _ in range(count):
            made.append(socket.create_connection(("127.0.0.1", attacked.port), timeout=20))
            made[-1].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 18)
            made[-1].setblocking(False)
        for one in made:
            with contextlib.suppress(OSError):
                one.send(data)
        yield made
    finally:
        for one in made:
            one.close()


HEADS = {
    "parameters": b"GET /docs?" + b"a&" * 30_000 + HOST + b"\r\n",
    "path": b"GET /" + b"%41" * 20_000 + HOST + b"\r\n",
    "redirect": b"GET /jobs?" + b"%20" * 20_000 + HOST + b"\r\n",
    "cookie": b"GET /v1/runs" + HOST + b"Cookie: " + b'a="\\101";' * 6000 + b"\r\n\r\n",
    "headers": b"GET /healthz" + HOST + b"a:\r\n" * 15_000 + b"\r\n",
    "method": b"DELETE /healthz" + HOST + b"\r\n",
    "page": b"GET /docs" + HOST + b"\r\n",
}


@by_the_clock
@pytest.mark.parametrize("name", HEADS if IS_FULL else ("parameters", "cookie", "headers"))
def test_a_burst_without_a_key_delays_no_other_caller(attacked, name):
    with attacked.watched() as watched, opened(attacked, 256, HEADS[name]):
        time.sleep(1.5)
    watched.check()


BURSTS = {
    "short cookies": b"GET /v1/runs" + HOST + b"Cookie: " + b'="\\1";' * 3000 + b"\r\n\r\n",
    "health": b"GET /healthz HTTP/1.1\r\n\r\n" * 16,
    "short heads": b"GET / HTTP/1.1\r\n\r\n" * 16,
    "heads in one read": (b"GET /v1/methods HTTP/1.1\r\n" + b"aa:\r\n" * 99 + b"\r\n") * 16,
    "bodies": b"POST /v1/datasets HTTP/1.1\r\nContent-Length: 1000000000\r\n\r\n" + b"a" * 260_000,
}


@by_the_clock
@pytest.mark.parametrize("name", BURSTS if IS_FULL else ("health", "bodies"))
def test_a_burst_of_connections_delays_no_other_caller(attacked, name):
    with attacked.watched() as watched, opened(attacked, 1500, BURSTS[name]):
        with attacked.client("predict") as other:
            answer = other.get("/v1/calibrators/two@1/predict?logits=1,2", timeout=4)
        time.sleep(1)
    watched.check()
    assert answer.status_code == 200


@by_the_clock
def test_heads_that_never_end_take_little_memory(attacked):
    long = b"GET /v1/x HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 60_000
    many = b"GET /v1/x HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 90 + b"X: "
    for head in (long, many):
        with attacked.watched() as watched, opened(attacked, 1000, head):
            time.sleep(1)
        watched.check()
        assert watched.megabytes < 80, watched


@by_the_clock
def test_segments_of_many_rows_take_neither_the_interpreter_nor_memory(attacked):
    file = io.BytesIO()
    rows = 20_000_000
    np.savez_compressed(file, logits=np.zeros((3, 5), "f4"), segments=np.zeros(rows, "i1"))
    body = Body("segments", file.getvalue(), NPZ)
    path = "/v1/calibrators/fashion@production/predict"
    with attacked.watched() as watched:
        assert attacked.send("POST", path, "predict", body) == 422
    watched.check()


@by_the_clock
def test_costly_responses_to_small_bodies_leave_the_event_loop(attacked):
    file = io.BytesIO()
    np.save(file, np.random.default_rng(0).normal(size=(60_000, 1)).astype("f2"))
    call = ("POST", "/v1/calibrators/two@1/predict?top=1", "predict")
    with attacked.watched() as watched:
        bodies = [(*call, Body("rows", file.getvalue(), NPY))] * 16
        assert set(attacked.send_all(bodies, at_once=16)) == {200}
    watched.check()


@by_the_clock
def test_bodies_that_never_end_take_little_memory(attacked):
    key = f"Authorization: Bearer {attacked.tokens['predict']}\r\n".encode()
    head = b"POST /v1/calibrators/two@1/predict" + HOST + key + b"Content-Length: %d\r\n\r\n"
    with attacked.watched() as watched, opened(attacked, 200, head % MEGABYTE) as made:
        for _ in range(20):
            for one in made:
                with contextlib.suppress(OSError):
                    one.send(b"x" * (1 << 16))
            time.sleep(0.05)
    watched.check()
    assert watched.megabytes < 150, watched
