"""The Open Inference Protocol with Triton's own client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema_rs
import numpy as np
import pytest
import tritonclient.http as triton
from helpers.inference_server import (
    LIMIT,
    PLAIN,
    SMART,
    VERSIONS,
    NotingMap,
    Shelf,
    logits,
    serving,
)
from helpers.large_calls import large_calls
from tritonclient.utils import InferenceServerException

from service.serving.inference_protocol import OPENAPI, inference_routes


@pytest.fixture(scope="module")
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture(scope="module")
def address(shelf: Shelf) -> Iterator[str]:
    with serving(shelf) as address:
        yield address


@pytest.fixture
def client(address: str) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(address, concurrency=4, network_timeout=20) as client:
        yield client


def tensor(values: np.ndarray, datatype: str = "FP32", name: str = "logits", **how: Any) -> Any:
    made = triton.InferInput(name, list(values.shape), datatype)
    return made.set_data_from_numpy(values, **how)


def test_the_client_finds_server_and_models(client: Any, shelf: Shelf) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("plain")
    assert client.is_model_ready("plain", "2")
    assert client.is_model_ready("plain", "candidate")
    assert not client.is_model_ready("plain", "9")
    assert not client.is_model_ready("unheard-of")
    assert client.get_server_metadata() == {
        "name": "calibrd",
        "version": "0.1.0",
        "extensions": ["binary_tensor_data"],
    }


def test_a_server_that_is_not_ready_reports_it(client: Any, shelf: Shelf) -> None:
    shelf.ready = False
    try:
        assert not client.is_server_ready()
        assert client.is_server_live()
    finally:
        shelf.ready = True


def test_model_metadata(client: Any) -> None:
    assert client.get_model_metadata("plain", "candidate") == {
        "name": "plain",
        "versions": ["2"],
        "platform": "calibrd",
        "inputs": [{"name": "logits", "datatype": "FP32", "shape": [-1, 3]}],
        "outputs": [{"name": "probabilities", "datatype": "FP32", "shape": [-1, 3]}],
    }
    assert client.get_model_metadata("from-probabilities")["inputs"][0]["name"] == "probabilities"


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False, None])
@pytest.mark.parametrize("packing", [None, "gzip", "deflate"])
def test_infer_is_apply(
    client: Any, binary_in: bool, binary_out: bool | None, packing: str | None
) -> None:
    values = logits(7, 10)
    wanted = None
    if binary_out is not None:
        wanted = [triton.InferRequestedOutput("probabilities", binary_data=binary_out)]
    result = client.infer(
        "smart",
        [tensor(values, binary_data=binary_in)],
        outputs=wanted,
        request_id="a-7",
        request_compression_algorithm=packing,
    )
    answer = result.as_numpy("probabilities")
    assert answer.dtype == np.float32
    np.testing.assert_array_equal(answer, SMART.map.apply(values))
    response = result.get_response()
    assert response["id"] == "a-7"
    assert (response["model_name"], response["model_version"]) == ("smart", "1")
    assert response["parameters"] == {"calibrator_version": 1, "sha256": SMART.sha256}
    assert ("data" in response["outputs"][0]) == (binary_out is False)


def test_the_version_in_the_path_is_used(client: Any) -> None:
    values = logits(2, 3)
    for ref in ("2", "candidate"):
        result = client.infer("plain", [tensor(values)], ref)
        expected = VERSIONS["plain", ref].map.apply(values)
        np.testing.assert_array_equal(result.as_numpy("probabilities"), expected)
        assert result.get_response()["model_version"] == "2"


def test_several_requests_at_once(client: Any) -> None:
    batches = [logits(rows, 10) for rows in range(1, 13)]
    waiting = [client.async_infer("smart", [tensor(one)]) for one in batches]
    for values, one in zip(batches, waiting, strict=True):
        answer = one.get_result(timeout=20).as_numpy("probabilities")
        np.testing.assert_array_equal(answer, SMART.map.apply(values))


@pytest.mark.parametrize(
    ("datatype", "dtype", "answered"),
    [
        ("FP16", np.float16, np.float32),
        ("FP32", np.float32, np.float32),
        ("FP64", np.float64, np.float64),
        ("INT8", np.int8, np.float64),
        ("INT64", np.int64, np.float64),
        ("UINT16", np.uint16, np.float64),
    ],
)
@pytest.mark.parametrize("binary", [True, False])
def test_datatypes(client: Any, datatype: str, dtype: Any, answered: Any, binary: bool) -> None:
    values = np.abs(logits(3, 10)).astype(dtype)
    result = client.infer("smart", [tensor(values, datatype, binary_data=binary)])
    answer = result.as_numpy("probabilities")
    assert answer.dtype == answered
    np.testing.assert_array_equal(answer, SMART.map.apply(values))


def test_bfloat16_is_read_exactly(client: Any) -> None:
    values = np.float32([[1.5, -2.0, 0.0078125, -0.0, 3e38, 1, 2, 3, 4, -np.inf]])
    cut = (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    answer = client.infer("smart", [tensor(values, "BF16")]).as_numpy("probabilities")
    np.testing.assert_array_equal(answer, SMART.map.apply(cut))


def test_binary_maps_take_one_column_and_return_two(client: Any) -> None:
    fitted = VERSIONS["binary", "production"].map
    for columns in (1, 2):
        values = logits(5, columns)
        answer = client.infer("binary", [tensor(values)]).as_numpy("probabilities")
        assert answer.shape == (5, 2)
        np.testing.assert_array_equal(answer, fitted.apply(values))


def test_minus_infinity_is_sent_in_binary(client: Any) -> None:
    values = np.float32([[1.0, -np.inf, 0.5]])
    answer = client.infer("plain", [tensor(values)]).as_numpy("probabilities")
    assert answer[0, 1] == 0
    np.testing.assert_array_equal(answer, PLAIN.map.apply(values))


def test_probabilities_in(client: Any) -> None:
    values = np.float32([[0.2, 0.3, 0.5]])
    answer = client.infer("from-probabilities", [tensor(values, name="probabilities")])
    expected = VERSIONS["from-probabilities", "production"].map.apply(values)
    np.testing.assert_array_equal(answer.as_numpy("probabilities"), expected)


def test_large_and_compressed_bodies_leave_the_event_loop(client: Any) -> None:
    fitted = VERSIONS["large", "production"].map
    seen = {}
    for rows, datatype, dtype, packing in (
        (2, "FP32", np.float32, None),
        (2, "FP32", np.float32, "gzip"),
        (500, "FP32", np.float32, None),
        (500, "INT8", np.int8, None),
    ):
        NotingMap.threads.clear()
        values = logits(rows, 1000, dtype)
        result = client.infer(
            "large", [tensor(values, datatype)], request_compression_algorithm=packing
        )
        seen[rows, datatype, packing] = NotingMap.threads - {"MainThread"}
        np.testing.assert_array_equal(result.as_numpy("probabilities"), fitted.apply(values))
    assert seen.pop((2, "FP32", None)) == {"server"}
    for threads in seen.values():
        assert threads
        assert "server" not in threads


def test_a_version_is_loaded_once(client: Any, shelf: Shelf) -> None:
    for _ in range(3):
        client.infer("plain", [tensor(logits(1, 3))], "2")
    assert shelf.loaded.count("plain@2") == 1


def test_the_client_raises_the_error_of_the_server(client: Any) -> None:
    with pytest.raises(InferenceServerException, match="fitted on 3 classes, got 4 columns"):
        client.infer("plain", [tensor(logits(2, 4))])
    with pytest.raises(InferenceServerException, match=r"NaN \(1 invalid row, first"):
        client.infer("plain", [tensor(np.float32([[1, 2, 3], [1, np.nan, 2]]))])
    with pytest.raises(InferenceServerException, match="NaN and Infinity are not JSON"):
        client.infer("plain", [tensor(np.float32([[1, np.nan, 2]]), binary_data=False)])
    region = triton.InferInput("logits", [1, 3], "FP32").set_shared_memory("region", 12)
    with pytest.raises(InferenceServerException, match="extension that is not supported"):
        client.infer("plain", [region])
    with pytest.raises(InferenceServerException, match="there is no unheard-of@production"):
        client.infer("unheard-of", [tensor(logits(1, 3))])


def test_every_route_is_described() -> None:
    shelf = Shelf()
    routes = inference_routes(shelf.find, shelf.load, "1", LIMIT, shelf.is_ready, large_calls())
    described = {
        (path, method.upper(), operation["operationId"])
        for path, item in OPENAPI.items()
        for method, operation in item.items()
        if method != "parameters"
    }
    there = {
        (one.path, method) for one in routes for method in one.methods or () if method != "HEAD"
    }
    assert {(path, method) for path, method, _ in described} == there
    assert len({name for _, _, name in described}) == len(described)


def test_examples_obey_their_schemas() -> None:
    checked = 0
    for item in OPENAPI.values():
        for operation in (one for key, one in item.items() if key != "parameters"):
            assert operation["summary"]
            bodies = [*operation["responses"].values(), operation.get("requestBody", {})]
            for content in (body["content"]["application/json"] for body in bodies if body):
                jsonschema_rs.validate(content["schema"], content["example"])
                checked += 1
    assert checked > 30


def test_the_example_of_infer_is_the_actual_response(address: str) -> None:
    operation = OPENAPI["/v2/models/{name}/infer"]["post"]
    asked = operation["requestBody"]["content"]["application/json"]["example"]
    described = operation["responses"]["200"]["content"]["application/json"]
    answer = httpx.post(f"http://{address}/v2/models/plain/infer", json=asked, timeout=20).json()
    jsonschema_rs.validate(described["schema"], answer)
    assert answer["id"] == described["example"]["id"]
    assert answer["outputs"] == described["example"]["outputs"]
    assert answer.keys() == described["example"].keys()
