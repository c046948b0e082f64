"""Calls that hold much memory, or take long, do not delay other workspaces."""

from __future__ import annotations

import contextlib
import io
import signal
import socket
import time
from collections.abc import Iterator

import httpx
import numpy as np
import pytest
from helpers.commands import here
from helpers.hostile.attacks import IS_FULL, Target, target
from helpers.hostile.bodies import MEGABYTE
from helpers.hostile.latency import memory
from helpers.live_service import by_the_clock, wait_until
from helpers.registration import costly_map, registration, temperature_registration

NPY = {"Content-Type": "application/x-npy"}


def npy(values: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


def add_other_workspace(target: Target) -> None:
    """Create a key in another workspace, with the token "other"."""
    asked = ("--workspace", "others", "--scopes", "fit,predict", "--name", "other")
    made = here("keys", "create", *asked, "--data-dir", target.service.data_dir)
    assert made.returncode == 0, made.stderr
    target.tokens["other"] = made.stdout.strip()
    with target.client("other") as client:  # keys created elsewhere are looked up every second
        wait_until(lambda: client.get("/v1/calibrators").status_code == 200)


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with target(tmp_path_factory.mktemp("attacked")) as started:
        add_other_workspace(started)
        for scope in ("admin", "other"):
            with started.client(scope) as client:
                for k in (2, 1000):
                    body = temperature_registration(2.0, k=k)
                    sent = client.post(f"/v1/calibrators/of{k}/versions", json=body)
                    assert sent.status_code == 201, sent.text
        yield started


def open_predict(attacked: Target, path: str, length: int, body: bytes) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", attacked.port), timeout=60)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/x-npy\r\n"
        f"Accept: application/json\r\nContent-Length: {length}\r\n"
        f"Authorization: Bearer {attacked.tokens['predict']}\r\n\r\n"
    )
    made.sendall(head.encode() + body)
    return made


def other_predict(attacked: Target, rows: int, seconds: float = 8.0) -> httpx.Response:
    content = npy(np.zeros((rows, 1000), np.float32))
    with attacked.client("other") as client:
        return client.post(
            "/v1/calibrators/of1000@1/predict", content=content, headers=NPY, timeout=seconds
        )


def test_a_slow_large_body_does_not_block_other_workspaces(attacked):
    path = "/v1/calibrators/of1000@1/predict"
    with open_predict(attacked, path, 32 * MEGABYTE, b"a" * 70_000):
        assert other_predict(attacked, 3000).status_code == 200
        assert other_predict(attacked, 8000).status_code == 200


@by_the_clock
@pytest.mark.parametrize("top", [1, 2])
def test_few_bytes_for_a_number_take_no_more_memory_than_many(attacked, top):
    content = npy(np.zeros((33_500, 1000), np.int8))
    with attacked.watched() as watched, attacked.client("predict") as client:
        path = f"/v1/calibrators/of1000@1/predict?top={top}"
        answer = client.post(path, content=content, headers=NPY)
    assert (answer.status_code, answer.json()["code"]) == (413, "answer_too_large")
    watched.check()


@by_the_clock
def test_the_largest_call_with_top_classes_takes_little_memory(attacked):
    content = npy(np.zeros((8_000, 1000), np.float32))
    with attacked.watched() as watched, attacked.client("predict") as client:
        answer = client.post("/v1/calibrators/of1000@1/predict?top=5", content=content, headers=NPY)
    assert answer.status_code == 200
    watched.check()


@by_the_clock
def test_unread_large_responses_to_small_bodies_take_little_memory(attacked):
    values = np.random.default_rng(0).integers(-127, 127, (65_400, 1)).astype(np.int8)
    body = npy(values)
    path = "/v1/calibrators/of2@1/predict?top=2"
    with contextlib.ExitStack() as opened, attacked.watched() as watched:
        for _ in range(120):
            opened.enter_context(open_predict(attacked, path, len(body), body))
        time.sleep(3)
        assert other_predict(attacked, 8000).status_code == 200
    watched.check()


@by_the_clock
def test_stalled_bodies_of_many_keys_take_little_memory(attacked):
    """1,900 of them took 460 MB, because each held the bytes read before its turn."""
    with attacked.client() as admin:
        body = {"name": "many", "scopes": ["predict"]}
        keys = [admin.post("/v1/keys", json=body).json()["token"] for _ in range(8)]
    part = npy(np.zeros((450_000, 1), np.float16))
    with contextlib.ExitStack() as opened, attacked.watched() as watched:
        for number in range(1600 if IS_FULL else 1000):
            made = socket.create_connection(("127.0.0.1", attacked.port), timeout=20)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            opened.enter_context(made).setblocking(False)
            head = (
                "POST /v1/calibrators/of2@1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                f"Authorization: Bearer {keys[number % 8]}\r\nContent-Type: application/x-npy\r\n"
                f"Content-Length: {1 << 20}\r\n\r\n"
            )
            with contextlib.suppress(OSError):
                made.send(head.encode() + part)
        time.sleep(3)
        assert other_predict(attacked, 8000).status_code == 200
    watched.check()


@by_the_clock
def test_unread_pages_take_little_memory(attacked):
    notes = "\N{GRINNING FACE}" * 4000
    with attacked.client() as admin:
        for number in range(60):
            asked = {"name": f"long{number}", "kind": "monitor", "description": notes}
            assert admin.post("/v1/runs", json=asked).status_code == 201
    head = (
        "GET /v1/runs?limit=200 HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Authorization: Bearer {attacked.tokens['admin']}\r\n\r\n"
    )
    with contextlib.ExitStack() as opened, attacked.watched() as watched:
        for _ in range(200):
            made = socket.create_connection(("127.0.0.1", attacked.port), timeout=20)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            opened.enter_context(made).sendall(head.encode())
        time.sleep(3)
        assert other_predict(attacked, 8000).status_code == 200
    watched.check()


def test_unread_downloads_do_not_block_the_pages(attacked):
    path = "/static/swagger-ui-bundle.js"
    request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode() * 3
    with contextlib.ExitStack() as opened:
        for _ in range(40):
            made = socket.create_connection(("127.0.0.1", attacked.port), timeout=20)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            opened.enter_context(made).sendall(request)
        time.sleep(0.5)
        with attacked.service.client() as anyone:
            assert anyone.get(path, timeout=5).status_code == 200
            assert anyone.get("/openapi.json", timeout=5).status_code == 200


def test_endless_forms_do_not_block_signing_in(attacked):
    head = (
        b"POST /sign-in HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n"
    )
    with contextlib.ExitStack() as opened:
        for _ in range(20):
            made = socket.create_connection(("127.0.0.1", attacked.port), timeout=20)
            opened.enter_context(made).sendall(head)
        time.sleep(0.3)
        with attacked.service.client() as anyone:
            answer = anyone.post("/sign-in", data={"token": "none"}, timeout=5)
            assert answer.status_code in (401, 403, 422)


def test_a_costly_map_takes_few_rows_and_delays_no_other_workspace(tmp_path):
    with target(tmp_path) as attacked:
        add_other_workspace(attacked)
        with attacked.client("other") as client:
            body = temperature_registration(2.0, k=1000)
            assert client.post("/v1/calibrators/of1000/versions", json=body).status_code == 201
        with attacked.client() as admin:
            sent = admin.post(
                "/v1/calibrators/costly/versions", json=registration(costly_map(hidden=4096))
            )
            assert sent.status_code == 201, sent.text
            path = "/v1/calibrators/costly@1/predict"
            content = npy(np.zeros((4_190_000, 1), np.float16))
            answer = admin.post(path, content=content, headers=NPY)
            assert (answer.status_code, answer.json()["code"]) == (413, "too_many_rows")
        most = answer.json()["limit"]
        assert 100_000 < most < 1_000_000
        largest = npy(np.zeros((most, 1), np.float16))
        with open_predict(attacked, path, len(largest), largest):
            time.sleep(0.2)
            began = time.monotonic()
            assert other_predict(attacked, 1000).status_code == 200
            assert time.monotonic() - began < 3
        began = time.monotonic()
        attacked.service.process.send_signal(signal.SIGTERM)
        attacked.service.process.wait(20)
        assert time.monotonic() - began < 15


def test_idle_connections_do_not_keep_their_requests(attacked):
    request = b"GET /v1/calibrators/a@1/predict?%b HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" % (
        b"a" * 65_000
    )
    before = memory(attacked.service.process.pid)
    with contextlib.ExitStack() as opened:
        for _ in range(800):
            made = socket.create_connection(("127.0.0.1", attacked.port), timeout=60)
            opened.enter_context(made)
            made.sendall(request)
            assert made.recv(1000).startswith(b"HTTP/1.1 401")
        assert memory(attacked.service.process.pid) - before < 50
