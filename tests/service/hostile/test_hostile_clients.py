"""Many clients with one key, or clients that do not read, do not delay other callers."""

from __future__ import annotations

import contextlib
import io
import json
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from helpers.hostile import flood_client
from helpers.hostile.attacks import IS_FULL, Target, target, url_of
from helpers.hostile.bodies import MEGABYTE, Body, filled, fortran_dataset
from helpers.hostile.latency import memory
from helpers.live_service import NPZ, by_the_clock
from helpers.registration import costly_map, registration, temperature_registration
from helpers.route_table import NEEDS

NPY = "application/x-npy"
JSON = "application/json"
NOTHING = Body("nothing", b"", "text/plain")


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with target(tmp_path_factory.mktemp("attacked"), "--response-timeout", "4") as started:
        yield started


@pytest.fixture
def close_at_end() -> Iterator[list[socket.socket]]:
    """Close the sockets however the test ends."""
    opened: list[socket.socket] = []
    yield opened
    for one in opened:
        one.close()


def open_request(target: Target, scope: str, head: str, body: bytes = b"") -> socket.socket:
    """Send a request without reading the response."""
    made = socket.create_connection(("127.0.0.1", target.port), timeout=60)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    key = f"Authorization: Bearer {target.tokens[scope]}"
    made.sendall(f"{head}\r\nHost: 127.0.0.1\r\n{key}\r\n".encode() + b"\r\n" + body)
    return made


FLOODED = [call for call in NEEDS if call.startswith("GET") and not call.endswith("/events")]
COSTLY = (
    "GET /v1/methods",
    "GET /calibrators/{name}/versions/{number}",
    "GET /v1/calibrators/{name}/versions/{number}/report.html",
    "GET /v1/calibrators/{name}@{ref}/predict",
)


@by_the_clock
@pytest.mark.parametrize("call", FLOODED if IS_FULL else COSTLY)
def test_a_flood_of_requests_with_one_key_delays_no_other_caller(attacked, call):
    path = url_of(call.split()[1], attacked.things)
    if path.endswith("/predict"):
        path += "?logits=1,2,3,4,5"
    client = [sys.executable, str(Path(flood_client.__file__))]
    arguments = [str(attacked.port), attacked.tokens["admin"], path, "64", "1.2"]
    with attacked.watched() as watched:
        done = subprocess.run(
            [*client, *arguments], capture_output=True, text=True, timeout=60, check=True
        )
    statuses = json.loads(done.stdout)
    expected = {"/readyz": "503", "/": "307"}.get(path)  # there is no worker
    if path.endswith("/compare"):
        expected = "422"  # the document does not specify the versions
    assert not statuses.get("500")
    assert any(statuses.get(one) for one in (expected or "200", "404", "409")), statuses
    watched.check()


@by_the_clock
def test_renderings_for_many_clients_delay_no_other_caller(attacked):
    url = "/v1/calibrators/fashion/versions/1/report."
    calls = [("GET", url + ("png", "html", "svg")[n % 3], "predict", NOTHING) for n in range(90)]
    with attacked.watched() as watched:
        statuses = set(attacked.send_all(calls, at_once=45))
    assert statuses == {200}
    watched.check()


@by_the_clock
def test_many_kinds_of_concurrent_costly_calls_delay_no_other_caller(attacked):
    """Each alone is harmless, but the times for which they hold the interpreter add up."""
    with attacked.client() as admin:
        for name, k in (("pair", 2), ("sixty", 60)):
            body = temperature_registration(2.0, k=k)
            assert admin.post(f"/v1/calibrators/{name}/versions", json=body).status_code == 201
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 9, (20_000, 60)).tolist()
    labels = rng.integers(0, 60, 20_000).tolist()
    pairs = _npy(rng.integers(-5, 5, (200_000, 2)).astype(np.int8))
    as_json = {"Accept": "application/json"}
    top = Body("top", pairs, NPY, as_json)
    wide = Body("wide", _npy(rng.normal(size=(20_000, 60)).astype(np.float16)), NPY, as_json)
    few = json.dumps({"logits": rows[:12_000], "labels": labels[:12_000]}).encode()
    many = json.dumps({"logits": rows, "labels": labels}).encode()
    page = "/calibrators/fashion/versions/1"
    kinds = [
        ("POST", "/v1/calibrators/pair@1/predict?top=1", "predict", top),
        ("POST", "/v1/calibrators/sixty@1/predict", "predict", wide),
        ("POST", "/v1/calibrators/sixty@1/predict", "predict", Body("few", few, JSON)),
        ("POST", "/v1/datasets?kind=logits", "fit", Body("many", many, JSON)),
        ("GET", page, "predict", NOTHING),
        ("GET", f"/v1{page}/report", "predict", NOTHING),
    ]
    with attacked.watched() as watched:
        statuses = Counter(attacked.send_all(kinds * (24 if IS_FULL else 4), at_once=48))
    assert not statuses[500]
    assert statuses[200] > len(kinds)
    watched.check()


@by_the_clock
def test_clients_that_do_not_read_are_disconnected(attacked, close_at_end):
    with attacked.client() as admin:
        body = temperature_registration(2.0, k=1000)
        assert admin.post("/v1/calibrators/wide/versions", json=body).status_code == 201
    content = _npy(np.zeros((4000, 1000), np.float32))
    head = (
        "POST /v1/calibrators/wide@1/predict HTTP/1.1\r\n"
        f"Content-Type: {NPY}\r\nContent-Length: {len(content)}"
    )

    def attack() -> None:
        made = open_request(attacked, "predict", head)
        close_at_end.append(made)
        with contextlib.suppress(OSError):  # it may be refused before all of it was sent
            made.sendall(content)

    pid = attacked.service.process.pid
    with attacked.client() as admin:  # so that buffers of threads do not count as growth
        for _ in range(4):
            answer = admin.post(
                "/v1/calibrators/wide@1/predict", content=content, headers={"Content-Type": NPY}
            )
            assert answer.status_code == 200
    before = memory(pid)
    with attacked.watched() as watched:
        threads = [threading.Thread(target=attack) for _ in range(24)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        assert _soon(lambda: memory(pid) < before + 50), memory(pid) - before
    watched.check()


@by_the_clock
def test_event_streams_beyond_the_limit_are_refused_and_delay_no_other_caller(
    attacked, close_at_end
):
    count = 2000 if IS_FULL else 600
    head = f"GET /v1/fits/{attacked.things.fit}/events HTTP/1.1"
    clients = close_at_end
    with attacked.watched() as watched:
        for _ in range(count):
            clients.append(open_request(attacked, "fit", head))
        statuses = Counter(one.recv(12)[-3:] for one in clients)
    assert statuses[b"200"] <= 256
    assert statuses[b"200"] + statuses[b"429"] == count
    watched.check()


@by_the_clock
def test_uploads_of_one_workspace_do_not_delay_the_predictions_of_another(attacked):
    body = fortran_dataset(1000 if IS_FULL else 100)

    def upload(_: int) -> int:
        with attacked.client("fit") as client:
            return client.post("/v1/datasets", content=body, headers=NPZ).status_code

    with attacked.client() as admin:
        for number in range(1, 6):
            made = temperature_registration(float(number))
            assert admin.post("/v1/calibrators/cold/versions", json=made).status_code == 201
    took = []
    with attacked.watched() as watched, ThreadPoolExecutor(8) as pool:
        uploads = [pool.submit(upload, number) for number in range(8)]
        with attacked.client("predict") as client:
            for number in range(1, 6):
                began = time.monotonic()
                answer = client.get(f"/v1/calibrators/cold@{number}/predict?logits=1,2,3")
                took.append(time.monotonic() - began)
                assert answer.status_code == 200
        assert {one.result() for one in uploads} <= {200, 201}
    assert max(took) < 2.0, took
    watched.check()


def test_requests_of_one_key_beyond_its_share_get_429(tmp_path):
    with target(tmp_path, "--max-requests-per-key", "4", "--body-timeout", "30") as small:
        head = (
            "POST /v1/datasets HTTP/1.1\r\n"
            "Content-Type: application/x-npz\r\nContent-Length: 100000"
        )
        slow = [open_request(small, "fit", head, b"PK") for _ in range(4)]
        with small.client("fit") as client:
            assert _soon(lambda: client.get("/v1/fits").status_code == 429)
            refused = client.get("/v1/fits")
        assert (refused.status_code, refused.json()["code"]) == (429, "too_many_requests")
        assert int(refused.headers["retry-after"]) >= 1
        with small.client("predict") as other:
            assert other.get("/v1/calibrators").status_code == 200
        for one in slow:
            one.close()
        with small.client("fit") as client:
            assert _soon(lambda: client.get("/v1/fits").status_code == 200)


def test_the_keys_of_a_workspace_share_a_limit_of_requests(tmp_path):
    """1,900 unread downloads with 8 keys took 700 MB."""
    with target(tmp_path, "--max-requests-per-key", "2", "--body-timeout", "30") as small:
        head = (
            "POST /v1/datasets HTTP/1.1\r\n"
            "Content-Type: application/x-npz\r\nContent-Length: 100000"
        )
        slow = [open_request(small, scope, head, b"PK") for scope in ("fit", "admin") * 2]
        with small.client("predict") as client:
            assert _soon(lambda: client.get("/v1/calibrators").status_code == 429)
            refused = client.get("/v1/calibrators").json()
        assert (refused["code"], refused["limit"]) == ("too_many_requests", 4)
        assert "keys of this workspace" in refused["detail"]
        for one in slow:
            one.close()
        with small.client("predict") as client:
            assert _soon(lambda: client.get("/v1/calibrators").status_code == 200)


def _soon(condition) -> bool:
    deadline = time.monotonic() + 40
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.1)
    return False


def _npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def test_scope_is_checked_before_a_body_is_read(attacked):
    # the body never arrives, so a service that waited for it would not respond
    head = "POST /v1/runs HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 1360000"
    made = open_request(attacked, "predict", head, b"{")
    made.settimeout(10)
    answer = made.recv(1000)
    made.close()
    assert answer.startswith(b"HTTP/1.1 403")


def test_streams_and_uploads_end_when_their_key_is_revoked(attacked):
    with attacked.client() as admin:
        made = admin.post("/v1/keys", json={"name": "brief", "scopes": ["fit"]}).json()
        attacked.tokens["brief"] = made["token"]
        stream = open_request(
            attacked, "brief", f"GET /v1/fits/{attacked.things.fit}/events HTTP/1.1"
        )
        upload = open_request(
            attacked,
            "brief",
            "POST /v1/datasets HTTP/1.1\r\n"
            "Content-Type: application/x-npz\r\nContent-Length: 999999",
            b"PK",
        )
        assert stream.recv(12) == b"HTTP/1.1 200"
        assert admin.delete(f"/v1/keys/{made['key']['id']}").status_code == 200
    stream.settimeout(15)
    assert _rest(stream).endswith(b"0\r\n\r\n")
    upload.settimeout(0.2)
    answer = b""
    for _ in range(75):
        with contextlib.suppress(OSError):
            upload.sendall(b"more")
        with contextlib.suppress(TimeoutError):
            answer = upload.recv(12)
            break
    assert answer == b"HTTP/1.1 401"
    stream.close()
    upload.close()


def _rest(stream: socket.socket) -> bytes:
    pieces = []
    while piece := stream.recv(4096):
        pieces.append(piece)
        if b"".join(pieces).endswith(b"0\r\n\r\n"):
            break
    return b"".join(pieces)


@by_the_clock
@pytest.mark.parametrize("path", ["/v1/calibrators/fashion/versions", "/v1/calibrators/a/fits"])
def test_many_large_bodies_at_once_take_turns(attacked, path):
    text = filled(b"a", 15 * MEGABYTE, b'{"map": "', b'", "method": "temperature"}')
    calls = [("POST", path, "fit", Body("text", text, "application/json"))] * 24
    with attacked.watched() as watched:
        statuses = Counter(attacked.send_all(calls, at_once=12))
    assert set(statuses) <= {413, 422, 429}, statuses
    watched.check()


@by_the_clock
def test_requests_sent_without_reading_the_responses_are_cut_off(attacked, close_at_end):
    many = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 7000

    def attack(made: socket.socket) -> None:
        with contextlib.suppress(OSError):
            for _ in range(20):
                made.sendall(many)

    with attacked.watched() as watched:
        for _ in range(8):
            close_at_end.append(socket.create_connection(("127.0.0.1", attacked.port), timeout=20))
        threads = [threading.Thread(target=attack, args=(one,)) for one in close_at_end]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    watched.check()


@by_the_clock
def test_bodies_in_chunks_of_one_byte_are_refused(attacked, close_at_end):
    head = "POST /v1/calibrators/a/versions HTTP/1.1\r\nTransfer-Encoding: chunked"
    chunks = b"1\r\na\r\n" * 40_000

    def attack() -> None:
        made = open_request(attacked, "fit", head)
        close_at_end.append(made)
        with contextlib.suppress(OSError):
            for _ in range(20):
                made.sendall(chunks)

    with attacked.watched() as watched:
        threads = [threading.Thread(target=attack) for _ in range(4)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    watched.check()


@by_the_clock
def test_many_bodies_in_small_chunks_are_parsed_in_turn(attacked, close_at_end):
    head = "POST /v1/calibrators/fashion@production/predict HTTP/1.1\r\nTransfer-Encoding: chunked"
    chunks = (b"78\r\n" + b"a" * 120 + b"\r\n") * 1900
    with attacked.watched() as watched:
        for _ in range(200):
            made = open_request(attacked, "predict", head)
            close_at_end.append(made)
            made.setblocking(False)
            with contextlib.suppress(OSError):
                made.send(chunks)
        time.sleep(1)
    watched.check()


def test_slow_forms_without_a_key_do_not_block_the_pages(attacked, close_at_end):
    head = b"POST /sign-in HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\na"
    for _ in range(20):
        made = socket.create_connection(("127.0.0.1", attacked.port), timeout=20)
        made.sendall(head)
        close_at_end.append(made)
    with attacked.service.client() as anyone:
        assert anyone.get("/static/app.css", timeout=10).status_code == 200
        assert anyone.get("/sign-in", timeout=10).status_code == 200


def test_small_packed_and_chunked_bodies_hold_no_memory_of_others(attacked, close_at_end):
    head = "POST /v1/calibrators/a/versions HTTP/1.1\r\nTransfer-Encoding: chunked"
    for _ in range(12):
        close_at_end.append(open_request(attacked, "fit", head, b"1\r\n{\r\n"))
    body = io.BytesIO()
    np.savez_compressed(body, logits=np.zeros((4, 5), np.float32))
    with attacked.client("predict") as client:
        for _ in range(3):
            answer = client.post(
                "/v1/calibrators/fashion@production/predict",
                content=body.getvalue(),
                headers=NPZ,
                timeout=5,
            )
            assert answer.status_code == 200


@by_the_clock
def test_maps_that_are_costly_to_apply_leave_the_event_loop(attacked):
    costly = costly_map(hidden=2000)
    with attacked.client() as admin:
        made = admin.post("/v1/calibrators/costly/versions", json=registration(costly))
        assert made.status_code == 201, made.text
    content = _npy(np.zeros((65_000, 2), np.float32))
    calls = [("POST", "/v1/calibrators/costly@1/predict", "predict", Body("", content, NPY))] * 4
    with attacked.watched() as watched:
        assert set(attacked.send_all(calls)) == {200}
    watched.check()
