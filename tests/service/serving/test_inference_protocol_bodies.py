"""The Open Inference Protocol with plain, careless and hostile clients."""

from __future__ import annotations

import gzip
import json
import tracemalloc
import zlib
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from helpers.inference_server import (
    JSON_LIMIT,
    LIMIT,
    PLAIN,
    ROW,
    Shelf,
    logits,
    raw,
    request,
    serving,
    sized,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calibrators.errors import DataError
from service.errors import ServiceError, TooLarge
from service.serving.apply_map import Prediction
from service.serving.inference_protocol.codec import InferLimits, decode, encode, unpack

FOUR = np.float32([1, 2, 3, 4]).tobytes()
THREE = FOUR[:12]
OUTPUT = {"name": "probabilities"}


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with (
        serving(Shelf()) as address,
        httpx.Client(base_url=f"http://{address}", timeout=20) as client,
    ):
        yield client


def test_json_flat_and_nested_are_the_same(http: httpx.Client) -> None:
    values = logits(2, 3)
    expected = PLAIN.map.apply(values)
    for data in (values.ravel().tolist(), values.tolist()):
        body = {**request(shape=[2, 3], data=data), "outputs": [OUTPUT], "parameters": None}
        answer = http.post("/v2/models/plain/infer", json=body)
        assert answer.headers["content-type"] == "application/json"
        (output,) = answer.json()["outputs"]
        assert (output["shape"], output["datatype"]) == ([2, 3], "FP32")
        np.testing.assert_array_equal(np.float32(output["data"]).reshape(2, 3), expected)
        assert "id" not in answer.json()


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ([], "must be an object"),
        ({}, "inputs is missing"),
        ({"inputs": {}}, "inputs must be a list"),
        ({"inputs": []}, "a list of tensors, one of them named 'logits'"),
        ({"inputs": [1]}, "a list of tensors, one of them named 'logits'"),
        ({"inputs": request()["inputs"] * 2}, "inputs[1] is named 'logits'"),
        (request(name="image"), "takes one input named 'logits'"),
        (request(name="x" * 10_000), "inputs[0] is named 'xxx"),
        (request(name=...), "inputs[0].name is missing"),
        (request(datatype="BYTES"), "must be one of FP32, FP64"),
        (request(datatype="BOOL"), "got 'BOOL'"),
        (request(datatype=32), "inputs[0].datatype must be a string, got 32"),
        (request(datatype="BF16"), "as a binary tensor"),
        (request(datatype="INT32"), "must contain only integers"),
        (request(datatype="INT8", data=[1, 2, 300]), "outside the range of INT8"),
        (request(datatype="FP16", data=[1, 2, 1e6]), "outside the range of FP16"),
        (request(data=[1, 2, -1e300]), "outside the range of FP32"),
        (request(shape=[3]), "must be [n, 3] with n at least 1, got [3]"),
        (request(shape=[0, 3], data=[]), "n at least 1"),
        (request(shape=[-1, 3]), "n at least 1"),
        (request(shape=[1.0, 3]), "n at least 1"),
        (request(shape=[True, 3]), "n at least 1"),
        (request(shape="3"), "inputs[0].shape must be a list"),
        (request(shape=[2, 3]), "must contain 6 values for the shape [2, 3], got 3"),
        (request(shape=[2, 3], data=[[1, 2], [3, 4, 5, 6]]), "every row of inputs[0].data"),
        (request(data=[[ROW]]), "every row of inputs[0].data"),
        (request(data=[[[1], [2], [3]]]), "must contain only numbers"),
        (request(data=[1, 2, None]), "must contain only numbers"),
        (request(data=[1, 2, "3"]), "must contain only numbers"),
        (request(data=[1, 2, True]), "must contain only numbers"),
        (request(data=...), "inputs[0].data is missing"),
        (request(data={"0": 1}), "inputs[0].data must be a list"),
        (request(parameters=[]), "inputs[0].parameters must be an object"),
        (sized(12), "between 0 and 0, the number of bytes left"),
        (sized(True), "binary_data_size must be an integer, got True"),
        ({**request(), "id": 7}, "id must be a string, got 7"),
        ({**request(), "outputs": [{"name": "temperature"}]}, "the only output is 'probabilities'"),
        ({**request(), "outputs": [OUTPUT, OUTPUT]}, "got 2 entries"),
        (
            {**request(), "outputs": ["probabilities"]},
            "outputs must be a list of at most one object",
        ),
        ({**request(), "outputs": [{}]}, "outputs[0].name is missing"),
        ({**request(), "parameters": {"binary_data_output": 1}}, "must be true or false, got 1"),
        ({**request(), "parameters": {"model": 1}}, "parameters.model must be a string, got 1"),
        ({**request(), "parameters": {"fingerprint": "no"}}, "refuse or warn, got 'no'"),
        (
            {**request(), "outputs": [{**OUTPUT, "parameters": {"classification": 2}}]},
            "not supported",
        ),
    ],
)
def test_documents_that_are_refused(http: httpx.Client, document: Any, sentence: str) -> None:
    answer = http.post("/v2/models/plain/infer", json=document)
    assert answer.status_code == 400, answer.text
    assert sentence in answer.json()["error"]
    assert len(answer.json()["error"]) < 300


@pytest.mark.parametrize(
    ("body", "headers", "status", "sentence"),
    [
        (b"", {}, 400, "cannot be read"),
        (b"\xff\xfe", {}, 400, "cannot be read"),
        (b"[" * 100_000, {}, 422, "32 levels deep"),
        (json.dumps(request(data=[1, 2, float("nan")])).encode(), {}, 400, "are not JSON"),
        (b'{"inputs": [1e999]}', {}, 400, "cannot be read"),
        (b'{"inputs": ' + b"[" * 1000 + b"]" * 1000 + b"}", {}, 422, "32 levels deep"),
        (b'{"inputs": "\\ud800"}', {}, 400, "cannot be read"),
        (b'{"id": ' + b'{"a":' * 900 + b"1" + b"}" * 900 + b"}", {}, 422, "32 levels deep"),
        (b'{"id": "\\ud800"}', {}, 400, "cannot be read"),
        (*raw(request(), THREE), 400, "12 bytes after the JSON are not covered by any"),
        (*raw(sized(12), THREE[:-1]), 400, "between 0 and 11, the number of bytes left"),
        (*raw(sized(12), THREE + b"\0"), 400, "1 bytes after the JSON are not covered by any"),
        (
            *raw(sized(16), FOUR),
            400,
            "3 values of FP32 are 12 bytes, but binary_data_size of inputs[0] is 16",
        ),
        (*raw(sized(16, shape=[1, 4]), FOUR), 422, "fitted on 3 classes, got 4 columns"),
        (*raw(sized(12, datatype="FP64"), THREE), 400, "3 values of FP64 are 24 bytes"),
        (*raw(sized(-12), THREE), 400, "after the JSON, got -12"),
        (*raw({**sized(12)}, THREE, 10**6), 400, "is 1000000, but the body has only"),
        (*raw(sized(12), THREE, 0), 400, "cannot be read"),
        (*raw(request(parameters={"binary_data_size": 12}), THREE), 400, "must have either"),
        (*raw(sized(0, shape=[2**62, 3]), b""), 400, "but binary_data_size of inputs[0] is 0"),
        (*raw(sized(12, shape=[2**64, 3]), THREE), 400, "n at least 1"),
        (json.dumps(request()).encode(), {"Inference-Header-Content-Length": "-1"}, 400, "integer"),
        (b"nonsense", {"Content-Encoding": "gzip"}, 400, "not valid gzip"),
        (
            gzip.compress(b"{}", mtime=0)[:-3],
            {"Content-Encoding": "gzip"},
            400,
            "must be exactly one complete gzip",
        ),
        (zlib.compress(b"{}") * 2, {"Content-Encoding": "deflate"}, 400, "one complete deflate"),
        (
            gzip.compress(b" " * (LIMIT + 1), mtime=0),
            {"Content-Encoding": "gzip"},
            413,
            "unpacks to more",
        ),
        (b"{}", {"Content-Encoding": "br"}, 415, "must be gzip, deflate or absent, got 'br'"),
        (b" " * (JSON_LIMIT + 1), {}, 413, "use binary tensors"),
        (json.dumps(request(shape=[1, 4])).encode(), {}, 422, "fitted on 3 classes, got 4 columns"),
        (json.dumps(request(shape=[1, 1])).encode(), {}, 422, "fitted on 3 classes, got 1 columns"),
        (*raw(sized(12), np.float32([1, np.nan, 2]).tobytes()), 422, "must not be NaN"),
        (*raw(sized(12), np.float32([1, np.inf, 2]).tobytes()), 422, "must not be +inf"),
    ],
)
def test_bodies_that_are_refused(
    http: httpx.Client, body: bytes, headers: dict[str, str], status: int, sentence: str
) -> None:
    answer = http.post("/v2/models/plain/infer", content=body, headers=headers)
    assert answer.status_code == status, answer.text
    assert sentence in answer.json()["error"]


def test_a_bomb_is_not_unpacked_beyond_the_limit() -> None:
    bomb = gzip.compress(bytes(32 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge, match="unpacks to more than 1048576 bytes"):
            unpack(bomb, "gzip", 1 << 20)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("binary", "number", "advice"),
    [(True, 8, "send fewer rows"), (False, 20, "send fewer rows, or set binary_data_output")],
)
def test_small_input_cannot_request_a_huge_response(
    http: httpx.Client, binary: bool, number: int, advice: str
) -> None:
    rows = LIMIT // (2 * number) + 1
    asked = sized(rows, datatype="INT8", shape=[rows, 1])
    asked["parameters"] = {"binary_data_output": binary}
    body, headers = raw(asked, bytes(rows))
    answer = http.post("/v2/models/binary/infer", content=body, headers=headers)
    assert answer.status_code == 413
    assert f"about {rows * 2 * number} bytes" in answer.json()["error"]
    assert answer.json()["error"].endswith(f": {advice}")


def test_a_key_needs_the_predict_scope(http: httpx.Client) -> None:
    headers = {"Authorization": "Bearer fit-only"}
    for answer in (
        http.post("/v2/models/plain/infer", json=request(), headers=headers),
        http.get("/v2/models/plain/versions/2", headers=headers),
        http.get("/v2/models/plain/ready", headers=headers),
    ):
        assert answer.status_code == 403
        assert "predict scope" in answer.json()["error"]


def fingerprinted(http: httpx.Client, header: bytes | None, **parameters: Any) -> httpx.Response:
    headers = {} if header is None else {"Calibrd-Model": header}
    body = {**request(), "parameters": parameters}
    return http.post("/v2/models/fingerprinted/infer", json=body, headers=headers)


def test_the_fingerprint_of_the_model(http: httpx.Client) -> None:
    same = "modèle:v1"
    for header in (None, same.encode(), same.encode("latin-1")):
        assert fingerprinted(http, header).status_code == 200
        assert fingerprinted(http, header, model=same).status_code == 200
    for refused in (fingerprinted(http, b"v2"), fingerprinted(http, None, model="v2")):
        assert refused.status_code == 409
        assert refused.json()["error"] == (
            r"fingerprinted@1 was fitted for 'mod\xe8le:v1', but the caller's model is 'v2': "
            "send values from that version's model, or use fingerprint=warn"
        )
    for header, model, sentence in (
        (b"v2", same, "two different model fingerprints"),
        (None, "", "must not be empty"),
        (b"", None, "must not be empty"),
    ):
        refused = fingerprinted(http, header, model=model, fingerprint="warn")
        assert refused.status_code == 422
        assert sentence in refused.json()["error"]


@pytest.mark.parametrize("binary", [False, True])
def test_another_model_can_be_only_warned_of(http: httpx.Client, binary: bool) -> None:
    warn = {"fingerprint": "warn", "binary_data_output": binary}
    answer = fingerprinted(http, b"v2", **warn)
    assert answer.status_code == 200
    assert answer.headers["calibrd-warning"].startswith("model_mismatch; fingerprinted@1 was")
    assert "calibrd-warning" not in fingerprinted(http, "modèle:v1".encode(), **warn).headers
    assert fingerprinted(http, b"v2", fingerprint="refuse").status_code == 409


def test_zeros_are_raised_with_a_warning(http: httpx.Client) -> None:
    body = request(name="probabilities", data=[0.0, 0.4, 0.6])
    answer = http.post("/v2/models/from-probabilities/infer", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["calibrd-warning"].startswith("clipped_probabilities; 1 zeros")


def test_null_is_absent(http: httpx.Client) -> None:
    body = {**request(parameters=None), "id": None, "outputs": None, "parameters": None}
    assert http.post("/v2/models/plain/infer", json=body).status_code == 200


LIMITS = InferLimits(LIMIT, JSON_LIMIT)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
PATHS = [
    ("id",),
    ("inputs",),
    ("inputs", 0),
    ("inputs", 0, "name"),
    ("inputs", 0, "datatype"),
    ("inputs", 0, "shape"),
    ("inputs", 0, "shape", 0),
    ("inputs", 0, "shape", 1),
    ("inputs", 0, "data"),
    ("inputs", 0, "data", 1),
    ("inputs", 0, "parameters"),
    ("inputs", 0, "parameters", "binary_data_size"),
    ("outputs",),
    ("outputs", 0),
    ("outputs", 0, "name"),
    ("outputs", 0, "parameters", "binary_data"),
    ("parameters",),
    ("parameters", "binary_data_output"),
    ("parameters", "model"),
    ("parameters", "fingerprint"),
]


def infer(body: bytes, length: int | None) -> None:
    try:
        asked = decode(body, length, PLAIN, LIMITS)
        probabilities = PLAIN.map.apply(asked.values)
    except (ServiceError, DataError) as error:
        assert len(str(error)) > 10  # noqa: PT017 - either outcome is right
        return
    assert probabilities.shape == (len(asked.values), 3)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    text, json_length = encode(asked, Prediction(probabilities), PLAIN)
    (output,) = json.loads(text[:json_length])["outputs"]
    assert output["shape"] == list(probabilities.shape)


def planted(path: tuple[str | int, ...], value: Any, binary: bool) -> dict[str, Any]:
    """Return a valid request with one value replaced."""
    data = ... if binary and "data" not in path else [1.0, 2.0, 3.0]
    document = {
        **request(shape=[1, 3], data=data, parameters={"binary_data_size": 12} if binary else {}),
        "outputs": [{"name": "probabilities", "parameters": {}}],
        "parameters": {},
    }
    place: Any = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return document


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(PATHS), anything, st.booleans())
def test_any_value_in_any_place(path: tuple[str | int, ...], value: Any, binary: bool) -> None:
    text = json.dumps(planted(path, value, binary)).encode()
    infer(text + THREE if binary else text, len(text) if binary else None)


@settings(max_examples=300, deadline=None)
@given(
    st.integers(0, 400),
    st.integers(0, 20),
    st.binary(max_size=20),
    st.none() | st.integers(0, 300),
    st.sampled_from(["FP32", "FP16", "BF16", "INT64", "UINT8", "FP64"]),
)
def test_any_damage_to_the_bytes(
    start: int, cut: int, put: bytes, length: int | None, datatype: str
) -> None:
    text = json.dumps(sized(12, datatype=datatype)).encode()
    body = text + THREE
    start %= len(body)
    infer(body[:start] + put + body[start + cut :], len(text) if length is None else length)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(["FP32", "FP64", "FP16", "BF16", "INT8", "UINT64"]), st.data())
def test_any_values(datatype: str, data: st.DataObject) -> None:
    size = 3 * {"FP32": 4, "FP64": 8, "INT8": 1, "UINT64": 8}.get(datatype, 2)
    text = json.dumps(sized(size, datatype=datatype)).encode()
    infer(text + data.draw(st.binary(min_size=size, max_size=size)), len(text))
