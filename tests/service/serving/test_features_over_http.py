"""Features over HTTP: uploads, fits, predict calls, and refusals."""

from __future__ import annotations

import io
from typing import Any

import httpx
import numpy as np
import pytest
import safetensors.numpy
from helpers.feature_samples import CLASSES, WIDTH, arrays_with_features, rows_with_features
from helpers.format_samples import npz
from helpers.http_calls import fitted, json_of, refusal, upload
from helpers.live_service import NPZ

from calibrators import CalibrationSet, archive
from calibrators.features import MAX_FEATURES
from calibrators.methods.feature_clipping import FeatureClipping, FeatureClippingMap
from calibrators.methods.procal import ProCal
from calibrators.methods.temperature import TemperatureScaling
from service.datasets.formats import npy as npy_format

DATA = arrays_with_features()
ROWS = {name: DATA[name][:6] for name in ("logits", "features")}
SAFETENSORS = {"Content-Type": "application/x-safetensors"}
METHODS = ("feature_clipping", "grouping", "procal")


@pytest.fixture
def uploaded(client: httpx.Client) -> dict[str, Any]:
    return upload(client, **DATA)


@pytest.fixture
def clipped(client: httpx.Client, uploaded: dict[str, Any]) -> FeatureClippingMap:
    """Return the map that the service has fitted."""
    if client.get("/v1/calibrators/clipped").status_code == 404:
        job = fitted(client, "clipped", dataset=uploaded["id"], method="feature_clipping")
        assert job["status"] == "succeeded", job
        job = fitted(client, "plain", dataset=uploaded["id"], method="temperature")
        assert job["status"] == "succeeded", job
    found = archive.load(client.get("/v1/calibrators/clipped/versions/1/map").content)
    assert isinstance(found, FeatureClippingMap)
    return found


def test_the_fit_is_that_of_calibrators(client: httpx.Client, clipped: FeatureClippingMap) -> None:
    local = FeatureClipping().fit(CalibrationSet(**rows_with_features()))
    assert clipped.threshold == local.threshold
    assert clipped.temperature == pytest.approx(local.temperature, rel=1e-6)
    np.testing.assert_array_equal(clipped.weight, local.weight)
    report = client.get("/v1/calibrators/clipped/versions/1/report").json()
    assert report["n"] == 300


def test_the_methods_declare_their_requirements(client: httpx.Client) -> None:
    found = client.get("/v1/methods").json()
    assert {one["name"] for one in found if one["needs_features"]} == set(METHODS)
    assert [one["name"] for one in found if one["needs_head"]] == ["feature_clipping"]


def test_a_dataset_describes_its_features(client: httpx.Client, uploaded: Any) -> None:
    assert (uploaded["features"], uploaded["has_head"]) == (WIDTH, True)
    body = npz(logits=DATA["logits"], labels=DATA["labels"], features=DATA["features"])
    bare = client.post("/v1/datasets", content=body, headers=NPZ).json()
    assert (bare["features"], bare["has_head"]) == (WIDTH, False)
    body = npz(logits=DATA["logits"], labels=DATA["labels"])
    plain = client.post("/v1/datasets", content=body, headers=NPZ).json()
    assert (plain["features"], plain["has_head"]) == (None, False)


@pytest.mark.parametrize("form", ["npz", "float16", "packed", "fortran", "safetensors", "json"])
def test_all_formats_of_arrays_hold_features(client: httpx.Client, form: str) -> None:
    arrays = dict(DATA)
    if form == "float16":
        arrays["features"] = arrays["features"].astype(np.float16)
    if form == "fortran":
        arrays = {name: np.asfortranarray(one) for name, one in arrays.items()}
    body, headers = npz(**arrays), NPZ
    if form == "packed":
        file = io.BytesIO()
        np.savez_compressed(file, **arrays)
        body = file.getvalue()
    elif form == "safetensors":
        body, headers = safetensors.numpy.save(arrays), SAFETENSORS
    elif form == "json":
        arrays = {name: one[:200] if len(one) == 1500 else one for name, one in arrays.items()}
        body, headers = json_of(**arrays), {"Content-Type": "application/json"}
    answer = client.post("/v1/datasets", content=body, headers=headers)
    assert answer.status_code in (200, 201), answer.text
    name = f"formats-{form}"
    job = fitted(client, name, dataset=answer.json()["id"], method="feature_clipping")
    assert job["status"] == "succeeded", job
    found = archive.load(client.get(f"/v1/calibrators/{name}/versions/1/map").content)
    rows = rows_with_features() if form != "json" else {}
    if rows:
        local = FeatureClipping().fit(CalibrationSet(**rows))
        assert found.threshold == pytest.approx(local.threshold, rel=1e-2)


@pytest.mark.parametrize("form", ["npz", "safetensors", "json"])
def test_predict_takes_features(
    client: httpx.Client, clipped: FeatureClippingMap, form: str
) -> None:
    url = "/v1/calibrators/clipped@1/predict"
    expected = clipped.apply(ROWS["logits"], features=ROWS["features"])
    if form == "json":
        answer = client.post(url, json={name: one.tolist() for name, one in ROWS.items()})
        found = np.array(answer.json()["probabilities"])
    elif form == "npz":
        answer = client.post(url, content=npz(**ROWS), headers=NPZ)
        found = np.load(io.BytesIO(answer.content))["probabilities"]
    else:
        answer = client.post(url, content=safetensors.numpy.save(ROWS), headers=SAFETENSORS)
        found = safetensors.numpy.load(answer.content)["probabilities"]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_method_without_a_head_needs_features_alone(client: httpx.Client) -> None:
    content = npz(**without("head_weight", "head_bias"))
    data = client.post("/v1/datasets", content=content, headers=NPZ).json()
    job = fitted(client, "procal", dataset=data["id"], method="procal")
    assert job["status"] == "succeeded", job
    answer = client.post("/v1/calibrators/procal@1/predict", content=npz(**ROWS), headers=NPZ)
    found = np.load(io.BytesIO(answer.content))["probabilities"]
    rows = CalibrationSet(DATA["logits"], DATA["labels"], features=DATA["features"])
    expected = ProCal().fit(rows).apply(ROWS["logits"], features=ROWS["features"])
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_predict_evaluates_a_dataset_as_it_was_uploaded(
    client: httpx.Client, clipped: FeatureClippingMap
) -> None:
    headers = {**NPZ, "Accept": "application/json"}
    answer = client.post("/v1/calibrators/clipped@1/predict", content=npz(**DATA), headers=headers)
    found = answer.json()["evaluation"]
    assert found["n"] == 1500
    p = clipped.apply(DATA["logits"], features=DATA["features"])
    nll = -np.log(p[np.arange(1500), DATA["labels"]]).mean()
    assert found["metrics"]["nll"] == pytest.approx(nll, rel=1e-4)


def test_predict_refuses_wrong_features(client: httpx.Client, clipped: FeatureClippingMap) -> None:
    def post(name: str, **arrays: np.ndarray) -> tuple[int, str]:
        url = f"/v1/calibrators/{name}@1/predict"
        return refusal(client.post(url, content=npz(**arrays), headers=NPZ))

    assert post("clipped", logits=ROWS["logits"]) == (422, "missing_features")
    assert post("plain", **ROWS) == (422, "no_features")
    few = {**ROWS, "features": ROWS["features"][:5]}
    assert post("clipped", **few) == (422, "features_length")
    narrow = {**ROWS, "features": ROWS["features"][:, 1:]}
    assert post("clipped", **narrow) == (422, "wrong_features")
    flat = {**ROWS, "features": ROWS["features"][:, 0]}
    assert post("clipped", **flat) == (422, "bad_features")
    broken = ROWS["features"].copy()
    broken[4, 2] = np.inf
    answer = client.post(
        "/v1/calibrators/clipped@1/predict",
        content=npz(**{**ROWS, "features": broken}),
        headers=NPZ,
    )
    assert refusal(answer) == (422, "features_not_finite")
    assert "first row 4" in answer.json()["detail"]
    inputs = [{"name": "logits", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]
    answer = client.post("/v2/models/clipped/versions/1/infer", json={"inputs": inputs})
    assert answer.status_code == 422
    assert "needs the 6 features" in answer.text


def changed(name: str, array: Any) -> dict[str, Any]:
    return {**DATA, name: array}


def without(*names: str) -> dict[str, Any]:
    return {name: one for name, one in DATA.items() if name not in names}


def spoilt(name: str, *place: int) -> dict[str, Any]:
    array = DATA[name].copy()
    array[place] = np.nan
    return changed(name, array)


BROKEN: dict[str, tuple[dict[str, Any], str, str]] = {
    "NaN": (spoilt("features", 1400, 3), "features_not_finite", "first row 1400"),
    "too few": (changed("features", DATA["features"][1:]), "features_length", "1499"),
    "one dimension": (changed("features", DATA["features"][:, 0]), "bad_features", "(1500,)"),
    "integers": (changed("features", DATA["features"].astype(int)), "bad_features", "int64"),
    "too wide": (
        changed("features", np.zeros((1500, MAX_FEATURES + 1), np.float16)),
        "bad_features",
        "16,385",
    ),
    "a head of other classes": (
        changed("head_weight", np.ones((CLASSES + 1, WIDTH))),
        "bad_head",
        "for 4 classes",
    ),
    "a head of other features": (
        changed("head_weight", np.ones((CLASSES, WIDTH + 1))),
        "bad_head",
        "each of the 6 features, got 7",
    ),
    "NaN in the head": (spoilt("head_weight", 0, 0), "bad_head", "must be finite"),
    "a bias alone": (without("head_weight"), "bad_head", "without head_weight"),
    "a head alone": (without("features"), "missing_features", "without features"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_datasets_that_break_a_rule_are_refused(client: httpx.Client, case: str) -> None:
    arrays, code, words = BROKEN[case]
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    answer = client.post("/v1/datasets", content=file.getvalue(), headers=NPZ)
    assert refusal(answer) == (422, code), answer.text
    assert words in answer.json()["detail"]


@pytest.mark.parametrize("value", [np.float32(0.5), True], ids=["number", "bool"])
@pytest.mark.parametrize("name", DATA)
def test_no_array_may_be_a_scalar(client: httpx.Client, name: str, value: Any) -> None:
    two_classes = {
        **DATA,
        "logits": DATA["logits"][:, :2],
        "labels": DATA["labels"] % 2,
        "head_weight": DATA["head_weight"][:1],
        "head_bias": DATA["head_bias"][:1],
    }
    for arrays in (DATA, two_classes):
        body = npz(**{**arrays, name: np.asarray(value)})
        answer = client.post("/v1/datasets", content=body, headers=NPZ)
        assert answer.status_code == 422, answer.text


def test_features_stored_by_columns_are_read_in_large_pieces(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []
    real = npy_format.read_at

    def counting(file: Any, offset: int, size: int) -> bytes:
        reads.append(size)
        return real(file, offset, size)

    monkeypatch.setattr(npy_format, "read_at", counting)
    rows, width = 4096, 1024
    features = np.asfortranarray(np.zeros((rows, width), np.float16))
    body = npz(logits=np.eye(rows, 2), labels=np.zeros(rows, int), features=features)
    assert client.post("/v1/datasets", content=body, headers=NPZ).status_code == 201
    of_columns = [size for size in reads if size <= 2 * rows]
    assert len(of_columns) <= 5 * width


@pytest.mark.parametrize("name", ["head_weight", "head_bias"])
def test_a_boolean_head_is_refused_on_arrival(client: httpx.Client, name: str) -> None:
    body = npz(**changed(name, DATA[name] > 0))
    answer = client.post("/v1/datasets", content=body, headers=NPZ)
    assert refusal(answer) == (422, "bad_head"), answer.text
    assert f"{name} must be numbers, got bool" in answer.json()["detail"]


def test_a_fit_needs_what_its_method_needs(client: httpx.Client, uploaded: Any) -> None:
    body = npz(logits=DATA["logits"], labels=DATA["labels"])
    plain = client.post("/v1/datasets", content=body, headers=NPZ).json()
    body = npz(**without("head_weight", "head_bias"))
    headless = client.post("/v1/datasets", content=body, headers=NPZ).json()
    other = arrays_with_features(900, seed=4)
    other["features"] = other["features"][:, :5]
    del other["head_weight"], other["head_bias"]
    narrow = upload(client, **other)
    for data, evaluation, code in (
        (plain, None, "missing_features"),
        (headless, None, "missing_head"),
        (uploaded, plain, "missing_features"),
        (uploaded, narrow, "evaluation_differs"),
    ):
        order = {"dataset": data["id"], "method": "feature_clipping"}
        if evaluation is not None:
            order["evaluation"] = evaluation["id"]
        answer = client.post("/v1/calibrators/lacking/fits", json=order)
        assert refusal(answer) == (422, code), answer.text


def test_a_head_of_another_layer_fails_the_fit(client: httpx.Client) -> None:
    body = npz(**changed("head_weight", -DATA["head_weight"]))
    answer = client.post("/v1/datasets", content=body, headers=NPZ)
    job = fitted(client, "other-head", dataset=answer.json()["id"], method="feature_clipping")
    assert (job["status"], job["error"]["code"]) == ("failed", "head_differs")


def test_versions_are_compared_on_a_dataset_with_features(
    client: httpx.Client, clipped: FeatureClippingMap
) -> None:
    other = arrays_with_features(700, seed=8)
    dataset = upload(client, **other)
    job = fitted(client, "clipped", dataset=dataset["id"], method="temperature")
    second = job["versions"][0]
    url = "/v1/calibrators/clipped/compare"
    query = {"first": 1, "second": second, "dataset": dataset["id"]}
    answer = client.get(url, params=query)
    assert answer.status_code == 200, answer.text
    rows = CalibrationSet(other["logits"], other["labels"])
    p = clipped.apply(rows.logits, features=other["features"])
    before = -np.log(p[np.arange(rows.n), rows.labels]).mean()
    p = TemperatureScaling().fit(rows).apply(rows.logits)
    after = -np.log(p[np.arange(rows.n), rows.labels]).mean()
    report = answer.json()["report"]
    assert report["before"]["metrics"]["nll"] == pytest.approx(before, rel=1e-4)
    assert report["metrics"]["nll"] == pytest.approx(after, rel=1e-4)


def test_an_alias_does_not_move_to_other_input_by_itself(
    client: httpx.Client, clipped: FeatureClippingMap, uploaded: Any
) -> None:
    first = fitted(client, "moved", dataset=uploaded["id"], method="temperature")["versions"][0]
    job = fitted(client, "moved", dataset=uploaded["id"], method="feature_clipping")
    (second,) = job["versions"]
    url = "/v1/calibrators/moved/aliases/production"
    assert client.put(url, json={"version": first, "force": True, "reason": "x"}).status_code < 300
    answer = client.put(url, json={"version": second})
    assert refusal(answer) == (409, "needs_force")
    assert "needs features, but version 1" in answer.json()["detail"]
