"""Segments as a second input of the Open Inference Protocol, with Triton's client and by hand."""

from __future__ import annotations

import contextlib
import json
import struct
import tracemalloc
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.http as triton
from helpers.inference_server import (
    JSON_LIMIT,
    LIMIT,
    VERSIONS,
    Shelf,
    logits,
    raw,
    request,
    serving,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrators.errors import DataError
from service.datasets.formats.segment_names import from_names
from service.errors import ServiceError
from service.serving.inference_protocol.codec import InferLimits, decode
from service.serving.inference_protocol.tensors import names_from_bytes

SEGMENTED = VERSIONS["segmented", "production"]
URL = "/v2/models/segmented/infer"
NAMES = ["wéb", "app", "wéb", "elsewhere"]
VALUES = logits(4, 3)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving(Shelf()) as address:
        yield address


@pytest.fixture
def http(address: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://{address}", timeout=20) as client:
        yield client


def tensor(name: str, values: np.ndarray, datatype: str, *, binary: bool) -> triton.InferInput:
    made = triton.InferInput(name, list(values.shape), datatype)
    return made.set_data_from_numpy(values, binary_data=binary)


@pytest.mark.parametrize("binary_names", [True, False])
@pytest.mark.parametrize("binary_values", [True, False])
@pytest.mark.parametrize("names_first", [True, False])
@pytest.mark.parametrize("shape", [(4,), (4, 1)])
def test_rows_are_calibrated_by_their_segments(
    address: str, binary_names: bool, binary_values: bool, names_first: bool, shape: tuple[int, ...]
) -> None:
    names = np.array(NAMES, dtype=object).reshape(shape)
    inputs = [
        tensor("logits", VALUES, "FP32", binary=binary_values),
        tensor("segments", names, "BYTES", binary=binary_names),
    ]
    with triton.InferenceServerClient(address, network_timeout=20) as client:
        answer = client.infer("segmented", inputs[::-1] if names_first else inputs)
    expected = SEGMENTED.map.apply(VALUES, NAMES)
    np.testing.assert_array_equal(answer.as_numpy("probabilities"), expected)
    assert np.abs(expected - SEGMENTED.map.apply(VALUES)).max() > 0.01


@pytest.mark.parametrize("datatype", ["INT64", "UINT8"])
@pytest.mark.parametrize("binary", [True, False])
def test_segments_may_be_whole_numbers(address: str, datatype: str, binary: bool) -> None:
    numbers = np.array([12, 7, 12, 12], dtype=datatype.lower())
    inputs = [
        tensor("logits", VALUES, "FP32", binary=True),
        tensor("segments", numbers, datatype, binary=binary),
    ]
    with triton.InferenceServerClient(address, network_timeout=20) as client:
        answer = client.infer("segmented", inputs)
    expected = SEGMENTED.map.apply(VALUES, numbers)
    np.testing.assert_array_equal(answer.as_numpy("probabilities"), expected)


def test_the_metadata_names_them_where_they_are_taken(http: httpx.Client) -> None:
    inputs = http.get("/v2/models/segmented").json()["inputs"]
    assert inputs[1:] == [{"name": "segments", "datatype": "BYTES", "shape": [-1]}]
    assert len(http.get("/v2/models/plain").json()["inputs"]) == 1


def both(**changes: Any) -> dict[str, Any]:
    """Return a valid request of one row and its segment, with these changes to the segment."""
    segments = {"name": "segments", "datatype": "BYTES", "shape": [1], "data": ["app"], **changes}
    sent = {key: one for key, one in segments.items() if one is not ...}
    return {"inputs": [*request()["inputs"], sent]}


def parameters_of(answer: httpx.Response) -> dict[str, Any]:
    length = int(answer.headers.get("inference-header-content-length", len(answer.content)))
    parameters: dict[str, Any] = json.loads(answer.content[:length])["parameters"]
    return parameters


@pytest.mark.parametrize("binary", [True, False])
def test_unknown_segments_are_counted_in_a_warning(http: httpx.Client, binary: bool) -> None:
    wanted = {"parameters": {"binary_data_output": binary}}
    answer = http.post(URL, json={**both(data=["elsewhere"]), **wanted})
    warning = answer.headers["calibrd-warning"]
    assert warning.startswith("unknown_segments; 1 of 1 rows")
    assert parameters_of(answer)["warning"] == warning  # Triton's client shows no headers
    known = http.post(URL, json={**both(), **wanted})
    assert known.status_code == 200
    assert "calibrd-warning" not in known.headers
    assert "warning" not in parameters_of(known)


def test_they_may_be_left_out(http: httpx.Client) -> None:
    (output,) = http.post(URL, json=request()).json()["outputs"]
    expected = SEGMENTED.map.apply(np.float32([request()["inputs"][0]["data"]]))
    np.testing.assert_array_equal(np.float32(output["data"]), expected[0])


def text(*names: str) -> bytes:
    return b"".join(struct.pack("<I", len(one.encode())) + one.encode() for one in names)


APP = text("app")


def sized(size: int, **changes: Any) -> dict[str, Any]:
    return both(data=..., parameters={"binary_data_size": size}, **changes)


@pytest.mark.parametrize(
    ("document", "tail", "status", "sentence"),
    [
        (both(name="logits"), b"", 400, "one named 'segments'; inputs[1] is named 'logits'"),
        ({"inputs": both()["inputs"][1:]}, b"", 400, "must contain a tensor named 'logits'"),
        ({"inputs": both()["inputs"] * 2}, b"", 400, "inputs[2] is named 'logits'"),
        (both(name="groups"), b"", 400, "inputs[1] is named 'groups'"),
        (both(datatype="FP32", data=[1.5]), b"", 400, "inputs[1].datatype must be one of BYTES"),
        (
            both(data=[1]),
            b"",
            400,
            "inputs[1].data has datatype BYTES and must contain only strings",
        ),
        (both(datatype="INT8", data=["app"]), b"", 400, "must contain only integers"),
        (both(datatype="INT8", data=[300]), b"", 400, "inputs[1].data contains numbers outside"),
        (both(data=["app", "web"]), b"", 400, "must contain 1 values for the shape [1], got 2"),
        (both(data=[["app", "web"]]), b"", 400, "every row of inputs[1].data must be a list of 1"),
        (both(shape=[1, 2], data=["a", "b"]), b"", 400, "inputs[1].shape must be [n] or [n, 1]"),
        (both(shape=[]), b"", 400, "inputs[1].shape must be [n] or [n, 1]"),
        (both(shape=[2], data=["a", "b"]), b"", 422, "1 rows but 2 segments"),
        (both(data=[" "]), b"", 422, "printable characters, not all spaces"),
        (both(data=["x" * 201]), b"", 422, "must be 1 to 200"),
        (both(data=["app\0"]), b"", 422, "printable characters"),
        (sized(7), APP[:-1], 400, "between 0 and 6, the number of bytes left"),
        (sized(8), APP, 400, "between 0 and 7, the number of bytes left"),
        (sized(6), APP[:-1], 400, "must be exactly 1 strings, each preceded by its 4-byte length"),
        (
            sized(8),
            APP + b"\0",
            400,
            "must be exactly 1 strings, each preceded by its 4-byte length",
        ),
        (sized(7), APP + b"\0", 400, "1 bytes after the JSON are not covered by any"),
        (sized(7, shape=[2**60]), APP, 422, "1 rows but 1152921504606846976 segments"),
        (sized(8), struct.pack("<I", 2**32 - 1) + b"abcd", 400, "must be exactly 1 strings"),
        (sized(5), struct.pack("<I", 1) + b"\xff", 400, "must contain UTF-8 strings"),
        (sized(6), text("é")[:-1] + b"a", 400, "must contain UTF-8 strings"),
        (sized(5), text("é")[:-1], 400, "must be exactly 1 strings"),
        (sized(-7), APP, 400, "after the JSON, got -7"),
        (sized(7, datatype="INT64"), APP, 400, "1 values of INT64 are 8 bytes"),
    ],
)
def test_refused_input(
    http: httpx.Client, document: dict[str, Any], tail: bytes, status: int, sentence: str
) -> None:
    body, headers = raw(document, tail)
    answer = http.post(URL, content=body, headers=headers)
    assert answer.status_code == status, answer.text
    assert sentence in answer.json()["error"]
    assert len(answer.json()["error"]) < 300


def test_maps_without_segments_take_none(http: httpx.Client) -> None:
    answer = http.post("/v2/models/plain/infer", json=both())
    assert answer.status_code == 422
    assert "has no segments: leave them out" in answer.json()["error"]


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=24), st.integers(-2, 30), st.integers(1, 4), st.booleans())
def test_any_bytes_are_names_or_refused(data: bytes, size: int, rows: int, is_text: bool) -> None:
    datatype = "BYTES" if is_text else "INT32"
    inputs = sized(size, shape=[rows], datatype=datatype)["inputs"]
    values = {**inputs[0], "shape": [rows, 3], "data": [[1.0, 2.0, 3.0]] * rows}
    head = json.dumps({"inputs": [values, inputs[1]]}).encode()
    with contextlib.suppress(ServiceError, DataError):
        asked = decode(head + data, len(head), SEGMENTED, InferLimits(LIMIT, JSON_LIMIT))
        assert asked.segments is not None
        assert len(asked.segments) == rows
        assert size == len(data)
        assert is_text or size == 4 * rows


def test_texts_of_a_tensor_are_kept_once() -> None:
    rows = 100_000
    data = memoryview(b"\2\0\0\0aa" * rows)
    tracemalloc.start()
    segments = from_names(names_from_bytes(data, rows, "inputs[1]"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (segments.names, len(segments)) == (("aa",), rows)
    assert peak < 3e6, peak
