"""The predict route: its responses compared with calibrators."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import threading
import time
import warnings
from collections.abc import Iterator

import httpx
import numpy as np
import pytest
import safetensors.numpy
import uvicorn
from helpers.format_samples import ANSWERED, npy, npz
from helpers.http_calls import refusal
from helpers.predict_app import (
    LOGITS,
    MAPS,
    SHA256,
    THREE,
    Registry,
    call,
    make_app,
    post,
    read_npy,
)
from helpers.samples import draw

from calibrators import Report, evaluate
from calibrators.errors import ClippedProbabilities
from service.datasets.formats import Format


def test_every_format_gives_the_results_of_the_map():
    expected = THREE.apply(LOGITS)
    in_npy = post(npy(LOGITS), content_type="application/x-npy")
    np.testing.assert_array_equal(read_npy(in_npy), expected)
    assert in_npy.headers["content-type"] == "application/x-npy"
    assert in_npy.headers["calibrd-version"] == "three@3"
    assert in_npy.headers["calibrd-map"] == f"sha256:{SHA256}"
    in_npz = post(npz(logits=LOGITS), content_type="application/x-npz")
    np.testing.assert_array_equal(np.load(io.BytesIO(in_npz.content))["probabilities"], expected)
    in_tensors = post(safetensors.numpy.save({"logits": LOGITS}))
    assert in_tensors.headers["content-type"] == "application/x-safetensors"
    tensors = safetensors.numpy.load(in_tensors.content)
    np.testing.assert_array_equal(tensors["probabilities"], expected)
    in_json = post(json.dumps({"logits": LOGITS.tolist()}).encode()).json()
    np.testing.assert_allclose(in_json["probabilities"], expected, rtol=1e-6)
    assert (in_json["calibrator"], in_json["version"], in_json["sha256"]) == ("three", 3, SHA256)


@pytest.mark.parametrize("given", ANSWERED)
@pytest.mark.parametrize("asked", ANSWERED)
def test_accept_chooses_the_format(given, asked):
    bodies = {
        Format.NPY: npy(LOGITS),
        Format.NPZ: npz(logits=LOGITS),
        Format.SAFETENSORS: safetensors.numpy.save({"logits": LOGITS}),
        Format.JSON: json.dumps(LOGITS.tolist()).encode(),
    }
    answer = post(bodies[given], accept=asked.media_type)
    assert answer.headers["content-type"] == asked.media_type
    assert len(answer.content) == int(answer.headers["content-length"])


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("*/*", "application/x-npy"),
        ("text/html, application/*;q=0.1", "application/x-npy"),
        ("application/json;q=0.4, application/x-npz;q=0.5", "application/x-npz"),
        ("application/json, */*;q=0.5", "application/json"),
        ("application/x-npy;q=0, application/json;q=0.1", "application/json"),
    ],
)
def test_accept_qualities(accept, expected):
    assert post(npy(LOGITS), accept=accept).headers["content-type"] == expected


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dtype(dtype):
    answer = read_npy(post(npy(LOGITS), f"three@3/predict?dtype={dtype}"))
    assert answer.dtype == dtype
    assert read_npy(post(npy(LOGITS.astype(">f8")))).dtype == np.float64
    assert read_npy(post(npy(LOGITS.astype(np.float16)))).dtype == np.float32


@pytest.mark.parametrize("sent", [np.float16, np.float32, ">f4", np.float64])
@pytest.mark.parametrize(("name", "rows"), [("three", LOGITS), ("shares", THREE.apply(LOGITS))])
def test_float64_is_also_what_is_calculated_in(sent, name, rows):
    values = rows.astype(sent)
    answer = read_npy(post(npy(values), f"{name}@3/predict?dtype=float64"))
    np.testing.assert_array_equal(answer, MAPS[name].apply(values.astype(np.float64)))


def test_one_row_and_binary_rows():
    np.testing.assert_array_equal(read_npy(post(npy(LOGITS[0]))), THREE.apply(LOGITS[:1]))
    two = MAPS["two"]
    for values in (np.float64([[1], [-2], [3]]), np.float64([[4, 5]]), np.float64([[4], [5]])):
        answer = read_npy(post(npy(values), "two@3/predict"))
        np.testing.assert_array_equal(answer, two.apply(values))
        assert answer.shape == (len(values), 2)


def test_get_takes_one_row():
    answer = call("GET", "three@3/predict?logits=2.1,0.3,-1.0").json()
    expected = THREE.apply([[2.1, 0.3, -1.0]])
    np.testing.assert_allclose(answer["probabilities"], expected)
    for query, row in (("1.5", [[1.5]]), ("3,-1", [[3, -1]])):
        pair = call("GET", f"two@3/predict?logits={query}").json()["probabilities"]
        np.testing.assert_allclose(pair, MAPS["two"].apply(row))
    shares = call("GET", "shares@3/predict?probabilities=0.5,0.25,0.25&top=1").json()
    assert shares["top"][0]["classes"] == [0]
    masked = call("GET", "three@3/predict?logits=2.1,0.3,-inf").json()
    assert masked["probabilities"][0][2] == 0


def test_top():
    expected = THREE.apply(LOGITS)
    order = np.argsort(-expected, axis=1)[:, :2]
    rows = post(npy(LOGITS), "three@3/predict?top=2").json()["top"]
    assert [row["classes"] for row in rows] == order.tolist()
    answer = post(npz(logits=LOGITS), "three@3/predict?top=2")
    with np.load(io.BytesIO(answer.content)) as arrays:
        np.testing.assert_array_equal(arrays["classes"], order)
        np.testing.assert_array_equal(
            arrays["probabilities"], np.take_along_axis(expected, order, axis=1)
        )
    assert len(post(npy(LOGITS), "three@3/predict?top=99").json()["top"][0]["classes"]) == 3
    refused = post(npy(LOGITS), "three@3/predict?top=2", accept="application/x-npy")
    assert refusal(refused) == (406, "one_array_only")


def test_interval():
    banded = MAPS["banded"]
    low, high = banded.interval(LOGITS, 0.8)
    answer = post(npy(LOGITS), "banded@3/predict?interval=0.8").json()
    assert answer["interval"]["level"] == 0.8
    np.testing.assert_allclose(answer["interval"]["low"], low)
    np.testing.assert_allclose(answer["interval"]["high"], high)
    assert (low < high).all()
    packed = post(npz(logits=LOGITS), "banded@3/predict?interval=0.8&top=1")
    with np.load(io.BytesIO(packed.content)) as arrays:
        assert sorted(arrays) == ["classes", "high", "low", "probabilities"]
        np.testing.assert_array_equal(arrays["low"], low)
    one = call("GET", "banded@3/predict?logits=2.1,0.3,-1.0&interval=0.9").json()
    assert one["interval"]["low"][0] < max(one["probabilities"][0]) < one["interval"]["high"][0]
    assert "interval" not in post(npy(LOGITS), "banded@3/predict", accept="application/json").json()
    assert refusal(post(npy(LOGITS), "three@3/predict?interval=0.9")) == (422, "no_interval")
    refused = post(npy(LOGITS), "banded@3/predict?interval=0.9", accept="application/x-npy")
    assert refusal(refused) == (406, "one_array_only")
    for level in ("0.99999999999999994", "0", "1", "nan", "x", "-1"):
        answer = post(npy(LOGITS), f"banded@3/predict?interval={level}")
        assert refusal(answer) == (422, "bad_parameter")


def test_labels_give_a_report():
    data = draw(500, 3)
    body = npz(logits=data.logits, labels=data.labels)
    answer = post(body).json()
    expected = evaluate(THREE.apply(data.logits), data.labels, draws=200)
    assert Report.from_dict(answer["evaluation"]).metrics == expected.metrics
    assert answer["evaluation"]["noise_floor"]["mean"] > 0
    assert len(answer["probabilities"]) == 500
    in_json = {"logits": data.logits.tolist(), "labels": data.labels.tolist()}
    again = post(json.dumps(in_json).encode(), "three@3/predict?top=1").json()
    assert again["evaluation"]["metrics"]["ece"] == pytest.approx(expected.metrics["ece"])
    assert len(again["top"]) == 500
    assert refusal(post(body, accept="application/x-npz")) == (406, "json_only")


def test_too_many_rows_to_evaluate():
    body = npz(logits=np.zeros((100_001, 2), np.float32), labels=np.zeros(100_001, np.int8))
    assert refusal(post(body, "two@3/predict")) == (413, "too_many_rows")


def test_model_fingerprint():
    def status(path: str = "three@3/predict", **headers: str) -> int:
        return post(npy(LOGITS), path, **headers).status_code

    assert status(calibrd_model="resnet50:v1") == 200
    assert status("three@3/predict?model=resnet50:v1") == 200
    assert status("shares@3/predict?model=x") == 409
    refused = post(npy(LOGITS), calibrd_model="resnet50:v2")
    assert refusal(refused) == (409, "model_mismatch")
    assert "'resnet50:v1'" in refused.json()["detail"]
    assert "'resnet50:v2'" in refused.json()["detail"]
    warned = post(npy(LOGITS), "three@3/predict?fingerprint=warn&model=v%0d%0a2%E2%82%AC")
    assert warned.status_code == 200
    assert warned.headers["calibrd-warning"].startswith("model_mismatch; three@3 was fitted for")
    assert r"'v\r\n2\u20ac'" in warned.headers["calibrd-warning"]


def test_one_fingerprint_of_a_model():
    same = "three@3/predict?model=resnet50:v1"
    assert post(npy(LOGITS), same, calibrd_model="resnet50:v1").status_code == 200
    assert refusal(post(npy(LOGITS), same, calibrd_model="v2")) == (422, "two_models")
    warned = post(npy(LOGITS), f"{same}&fingerprint=warn", calibrd_model="v2")
    assert refusal(warned) == (422, "two_models")
    assert refusal(post(npy(LOGITS), calibrd_model="")) == (422, "bad_parameter")


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_fingerprints_beyond_ascii(encoding, monkeypatch):
    monkeypatch.setattr("helpers.predict_app.MODEL", "modèle")
    header = {"Calibrd-Model": "modèle".encode(encoding)}
    answer = call("POST", "three@3/predict?model=mod%C3%A8le", content=npy(LOGITS), headers=header)
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("path", "values", "count"),
    [
        ("shares@3/predict", np.float32([[1, 0, 0], [0.5, 0.5, 0]]), 3),
        ("shares@3/predict", np.int8([[1, 0, 0]]), 2),
        ("shares@3/predict", np.float16([[0.5, 0.25, 0.25]]), 0),
        ("two-shares@3/predict", np.float64([[0], [1], [0.5]]), 2),
        ("two-shares@3/predict", np.float64([[0.25], [1 + 5e-7]]), 1),
    ],
)
def test_zeros_are_raised_with_a_warning(path, values, count):
    answer = post(npy(values), path)
    rows = read_npy(answer)
    np.testing.assert_allclose(rows.sum(axis=1), 1, rtol=1e-6)
    if count:
        assert answer.headers["calibrd-warning"].startswith(f"clipped_probabilities; {count} ")
    else:
        assert "calibrd-warning" not in answer.headers
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ClippedProbabilities)
        expected = MAPS[path.partition("@")[0]].apply(values)
    np.testing.assert_array_equal(rows, expected)


def test_minus_infinity_is_allowed():
    values = LOGITS.copy()
    values[1, 2] = -np.inf
    np.testing.assert_array_equal(read_npy(post(npy(values)))[1, 2], 0)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        config = uvicorn.Config(make_app(Registry()), log_level="error", lifespan="off")
        running = uvicorn.Server(config)
        thread = threading.Thread(target=running.run, args=([listening],))
        thread.start()
        deadline = time.monotonic() + 10
        while not running.started:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1/calibrators/"
        running.should_exit = True
        thread.join(10)
    assert not thread.is_alive()


def test_on_a_real_server(server):
    values = np.random.default_rng(1).normal(size=(1500, 1000)).astype(np.float32)
    expected = MAPS["wide"].apply(values)
    with httpx.Client(base_url=server, timeout=20) as client:
        for rows in (1, 1500):
            answer = client.post("wide@production/predict", content=npy(values[:rows]))
            np.testing.assert_array_equal(read_npy(answer), expected[:rows])
        pieces = iter([npy(values)[:1000], npy(values)[1000:]])
        np.testing.assert_array_equal(
            read_npy(client.post("wide@3/predict", content=pieces)), expected
        )
        assert client.get("three@3/predict?logits=1,2,3").status_code == 200


def test_a_map_is_loaded_once():
    registry = Registry()

    async def twice() -> None:
        transport = httpx.ASGITransport(make_app(registry))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            for _ in range(2):
                await client.post("/v1/calibrators/three@3/predict", content=npy(LOGITS))

    asyncio.run(twice())
    assert registry.loads == 1
