"""Segments over HTTP: uploads, fits, predict calls, and refusals."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest
import safetensors.numpy
from helpers.format_samples import npz
from helpers.http_calls import fitted, json_of, upload
from helpers.live_service import NPZ, Local
from helpers.live_service import npz as plain_npz
from helpers.registration import registration
from helpers.segment_samples import rows_of_segments

from calibrators import CalibrationSet, archive
from calibrators.methods.segmented import Segmented, SegmentedMap
from calibrators.methods.temperature import TemperatureMap

DATA = rows_of_segments()
SET = CalibrationSet(**DATA)
ROWS = {name: array[:6] for name, array in DATA.items()}


@pytest.fixture
def uploaded(client: httpx.Client) -> dict[str, Any]:
    return upload(client, **DATA)


@pytest.fixture
def segmented(client: httpx.Client, uploaded: dict[str, Any]) -> SegmentedMap:
    """Return the map that the service has fitted on rows with segments."""
    if client.get("/v1/calibrators/segments").status_code == 404:
        job = fitted(client, "segments", dataset=uploaded["id"], method="segmented")
        assert job["status"] == "succeeded", job
    content = client.get("/v1/calibrators/segments/versions/1/map").content
    found = archive.load(content)
    assert isinstance(found, SegmentedMap)
    return found


def test_the_fit_is_that_of_calibrators(client: httpx.Client, segmented: SegmentedMap) -> None:
    local = Segmented().fit(CalibrationSet(**DATA))
    assert segmented.segments == ("app", "web")
    np.testing.assert_array_equal(segmented.temperatures, local.temperatures)
    report = client.get("/v1/calibrators/segments/versions/1/report").json()
    assert {row["name"] for row in report["by_segment"]} == {"app", "web"}


def test_the_methods_declare_which_needs_segments(client: httpx.Client) -> None:
    needing = [one["name"] for one in client.get("/v1/methods").json() if one["needs_segments"]]
    assert needing == ["segmented"]


def test_a_missing_onnx_model_has_a_reason(
    client: httpx.Client, local: Local, segmented: SegmentedMap
) -> None:
    answer = client.get("/v1/calibrators/segments/versions/1/onnx")
    assert (answer.status_code, answer.json()["code"]) == (404, "no_onnx")
    kept = client.get("/v1/calibrators/segments/versions/1").json()["fit_info"]["warnings"]
    (why,) = (one["message"].removeprefix("no ONNX: ") for one in kept)
    assert "base" in why
    assert answer.json()["detail"] == f"version 1 of segments has no ONNX model: {why}"
    local.post("/v1/calibrators/foreign/versions", json=registration(Segmented().fit(SET)))
    answer = local.get("/v1/calibrators/foreign/versions/1/onnx")
    assert "only versions that were fitted by this service have one" in answer.json()["detail"]


def test_a_dataset_counts_its_segments(client: httpx.Client, uploaded) -> None:
    assert uploaded["segments"] == 2
    assert client.get(f"/v1/datasets/{uploaded['id']}").json()["segments"] == 2
    plain = client.post(
        "/v1/datasets", content=plain_npz(DATA["logits"], DATA["labels"]), headers=NPZ
    ).json()
    assert plain["segments"] is None
    assert plain["sha256"] != uploaded["sha256"]


@pytest.mark.parametrize("media_type", ["application/x-npz", "application/json"])
def test_a_fit_in_one_call_takes_them_too(client: httpx.Client, media_type: str) -> None:
    name = f"one-call-{media_type[-3:]}"
    url, headers = f"/v1/calibrators/{name}/fits", {"Prefer": "wait=30"}
    if media_type == "application/json":
        lists = {one: array.tolist() for one, array in DATA.items()}
        answer = client.post(url, json={**lists, "method": "segmented"}, headers=headers)
    else:
        answer = client.post(
            f"{url}?method=segmented", content=npz(**DATA), headers={**NPZ, **headers}
        )
    assert answer.json()["status"] == "succeeded", answer.text


PREDICT = "/v1/calibrators/segments@1/predict"
BODIES = {
    "json": ("application/json", json_of),
    "npz": ("application/x-npz", npz),
}


@pytest.mark.parametrize("format", BODIES)
def test_each_row_gets_the_map_of_its_segment(
    client: httpx.Client, segmented: SegmentedMap, format: str
) -> None:
    media_type, encode = BODIES[format]
    segments = np.array(["app", "web", "nowhere", "web", "app", "app"])
    body = encode(logits=ROWS["logits"], segments=segments)
    answer = client.post(
        PREDICT,
        content=body,
        headers={"Content-Type": media_type, "Accept": "application/json"},
    )
    assert answer.status_code == 200, answer.text
    found = np.array(answer.json()["probabilities"])
    np.testing.assert_allclose(found, segmented.apply(ROWS["logits"], segments), atol=1e-6)
    np.testing.assert_allclose(found[2], segmented.base.apply(ROWS["logits"])[2], atol=1e-6)
    assert np.abs(found[0] - segmented.base.apply(ROWS["logits"])[0]).max() > 1e-3
    told = answer.headers["calibrd-warning"]
    assert told.startswith("unknown_segments; 1 of 6 rows ")
    assert told.endswith(": 'nowhere'")


def test_segments_that_are_known_or_not_sent_are_no_reason_to_warn(
    client: httpx.Client, segmented: SegmentedMap
) -> None:
    rows = ROWS["logits"].tolist()
    for document in ({"logits": rows}, {"logits": rows, "segments": ["app", "web"] * 3}):
        answer = client.post(PREDICT, json=document)
        assert answer.status_code == 200
        assert "calibrd-warning" not in answer.headers


def test_whole_numbers_are_names_too(client: httpx.Client) -> None:
    numbers = (DATA["segments"] == "web").astype(np.int64)
    body = safetensors.numpy.save({**DATA, "segments": numbers})
    headers = {"Content-Type": "application/x-safetensors"}
    made = client.post("/v1/datasets", content=body, headers=headers).json()
    assert made["segments"] == 2
    job = fitted(client, "numbered", dataset=made["id"], method="segmented")
    assert job["status"] == "succeeded", job
    url = "/v1/calibrators/numbered@1/predict"
    rows = safetensors.numpy.save({"logits": ROWS["logits"], "segments": numbers[:6]})
    tensors = client.post(url, content=rows, headers={**headers, "Accept": "application/json"})
    document = {"logits": ROWS["logits"].tolist(), "segments": [str(one) for one in numbers[:6]]}
    as_text = client.post(url, json=document)
    np.testing.assert_allclose(
        tensors.json()["probabilities"], as_text.json()["probabilities"], atol=1e-7
    )


def test_an_evaluation_reports_segments_for_any_map(
    client: httpx.Client, segmented: SegmentedMap
) -> None:
    document = {name: array[:1000].tolist() for name, array in DATA.items()}
    found = client.post(PREDICT, json=document).json()["evaluation"]
    assert {row["name"]: row["rows"] for row in found["by_segment"]} == {"app": 500, "web": 500}
    made = fitted(client, "whole", **document, method="temperature")
    assert made["status"] == "succeeded"
    url = "/v1/calibrators/whole@1/predict"
    plain = client.post(url, json=document).json()
    assert {row["name"] for row in plain["evaluation"]["by_segment"]} == {"app", "web"}
    assert found["metrics"]["nll"] < plain["evaluation"]["metrics"]["nll"]


def test_segments_are_refused_where_nothing_has_them(client: httpx.Client, local: Local) -> None:
    plain = {name: ROWS[name].tolist() for name in ("logits", "labels")}
    made = client.post("/v1/datasets", json=plain).json()
    answer = client.post(
        "/v1/calibrators/none/fits", json={"dataset": made["id"], "method": "segmented"}
    )
    assert (answer.status_code, answer.json()["code"]) == (422, "missing_segments")
    fitted(client, "unsegmented", **plain, method="temperature")
    document = {"logits": plain["logits"], "segments": ["web"] * 6}
    answer = client.post("/v1/calibrators/unsegmented@1/predict", json=document)
    assert (answer.status_code, answer.json()["code"]) == (422, "no_segments")


def test_an_evaluation_set_must_name_segments_as_well(client: httpx.Client, uploaded) -> None:
    other = rows_of_segments(400, seed=6)
    plain = client.post(
        "/v1/datasets", content=plain_npz(other["logits"], other["labels"]), headers=NPZ
    ).json()
    order = {"dataset": uploaded["id"], "evaluation": plain["id"], "method": "segmented"}
    answer = client.post("/v1/calibrators/none/fits", json=order)
    assert (answer.status_code, answer.json()["code"]) == (422, "missing_segments")
    assert "evaluation dataset" in answer.json()["detail"]
    named = upload(client, **other)
    job = fitted(client, "judged", **{**order, "evaluation": named["id"]})
    assert job["status"] == "succeeded", job


REFUSED = {
    "too few": (["web"] * 5, "segments_length"),
    "empty name": (["web"] * 5 + [""], "bad_segment_name"),
    "mixed": (["web"] * 5 + [1], "bad_segments"),
    "no list": ("web", "not_an_array"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_segments_are_refused_by_row_and_rule(
    client: httpx.Client, segmented: SegmentedMap, case: str
) -> None:
    segments, code = REFUSED[case]
    lists: dict[str, Any] = {name: array.tolist() for name, array in ROWS.items()}
    document = {**lists, "segments": segments}
    for url in ("/v1/datasets", PREDICT):
        answer = client.post(url, json=document)
        assert (answer.status_code, answer.json()["code"]) == (422, code), answer.text
        if code in ("bad_segment_name", "bad_segments"):
            assert (answer.json()["rows"], answer.json()["first"]) == (1, 5)


def test_a_map_with_segments_can_be_registered(local: Local, segmented: SegmentedMap) -> None:
    for fitted_map in (segmented, TemperatureMap(k=5, temperature=2.0)):
        answer = local.post("/v1/calibrators/brought/versions", json=registration(fitted_map))
        assert answer.status_code == 201, answer.text
    document = {"logits": ROWS["logits"].tolist(), "segments": ROWS["segments"].tolist()}
    found = local.post("/v1/calibrators/brought@1/predict", json=document).json()
    expected = segmented.apply(ROWS["logits"], ROWS["segments"])
    np.testing.assert_allclose(found["probabilities"], expected, atol=1e-6)
    refused = local.post("/v1/calibrators/brought@2/predict", json=document)
    assert refused.json()["code"] == "no_segments"
