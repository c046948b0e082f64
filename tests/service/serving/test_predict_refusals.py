"""All refusals of the predict route."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest
from helpers.format_samples import npy
from helpers.http_calls import refusal
from helpers.large_calls import large_calls
from helpers.predict_app import LIMITS, LOGITS, MAPS, Registry, call, post
from helpers.samples import suited

from calibrators import all_methods
from calibrators.methods.temperature import TemperatureMap
from service.access.permissions import Principal, Scope
from service.datasets.formats import Arrays, Format
from service.serving.predict import OPENAPI, predict_route
from service.serving.predict.request import PredictRequest
from service.serving.predict.route import answer_size

BAD = {
    "NaN": (npy([[1, 2, 3], [1, np.nan, 3]]), 422, "nan"),
    "infinity": (npy([[1, 2, np.inf]]), 422, "infinite"),
    "no finite logit": (npy([[-np.inf] * 3]), 422, "no_finite_logit"),
    "four classes": (npy(np.ones((2, 4))), 422, "wrong_classes"),
    "one column": (npy(np.ones((5, 1))), 422, "wrong_classes"),
    "four numbers": (npy(np.ones(4)), 422, "wrong_classes"),
    "no rows": (npy(np.ones((0, 3))), 422, "empty"),
    "nothing": (npy(np.ones(0)), 422, "empty"),
    "no columns": (npy(np.ones((3, 0))), 422, "too_few_classes"),
    "3-d": (npy(np.ones((1, 1, 3))), 422, "bad_shape"),
    "0-d": (npy(1.0), 422, "bad_shape"),
    "booleans": (npy([[True, False, True]]), 422, "bad_type"),
    "probabilities": (b'{"probabilities": [[0.5, 0.25, 0.25]]}', 422, "wrong_kind"),
    "labels out of range": (b'{"logits": [[1, 2, 3]], "labels": [3]}', 422, "label_out_of_range"),
    "too few labels": (b'{"logits": [[1, 2, 3]], "labels": []}', 422, "length_mismatch"),
    "unknown array": (b'{"logits": [[1, 2, 3]], "weights": [1]}', 422, "unknown_array"),
    "empty": (b"", 415, "unsupported_media_type"),
    "text": (b"1,2,3", 415, "unsupported_media_type"),
    "damaged": (npy(LOGITS)[:-1], 400, "truncated_body"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_bodies(case):
    body, status, code = BAD[case]
    assert refusal(post(body)) == (status, code)


def test_the_first_bad_row_is_named():
    detail = post(BAD["NaN"][0]).json()["detail"]
    assert detail == "logits must not be NaN (1 invalid row, first row 1)"
    detail = post(BAD["four classes"][0]).json()["detail"]
    assert "3 classes" in detail
    assert "got 4 columns" in detail


@pytest.mark.parametrize("method", [name for name in all_methods() if name != "auto"])
@pytest.mark.parametrize(("value", "code"), [(np.nan, "nan"), (np.inf, "infinite")])
def test_no_method_accepts_nan(method, value, code, overconfident, monkeypatch):
    data = suited(overconfident, all_methods()[method])
    monkeypatch.setitem(MAPS, "fitted", all_methods()[method]().fit(data))
    values = np.array(overconfident.logits[:3])
    values[2, 1] = value
    assert refusal(post(npy(values), "fitted@3/predict")) == (422, code)


REFUSED_QUERIES = {
    "wrong=1": "unknown_parameter",
    "logits=1,2,3": "unknown_parameter",
    "top=0": "bad_parameter",
    "top=-1": "bad_parameter",
    "top=1e3": "bad_parameter",
    "top=": "bad_parameter",
    "dtype=float16": "bad_parameter",
    "fingerprint=ignore": "bad_parameter",
    "top=1&top=2": "bad_parameter",
    "model=": "bad_parameter",
    "model=&fingerprint=warn": "bad_parameter",
}


@pytest.mark.parametrize("query", REFUSED_QUERIES)
def test_bad_queries(query):
    answer = post(npy(LOGITS), f"three@3/predict?{query}")
    assert refusal(answer) == (422, REFUSED_QUERIES[query])
    assert query.partition("=")[0] in answer.json()["detail"]


@pytest.mark.parametrize("path", ["two@3/predict", "two-shares@3/predict"])
@pytest.mark.parametrize("body", [b"[0.25, 0.75]", b"[0.5]", npy([0.25, 0.75]), npy(np.ones(3))])
def test_a_list_of_numbers_is_not_a_row_of_two_classes(path, body):
    refused = post(body, path)
    assert refusal(refused) == (422, "ambiguous_row")
    assert "[[a, b]] for two columns, or [[a]] for one" in refused.json()["detail"]
    assert refusal(post(b"[]", path)) == (422, "empty")


REFUSED_GETS = {
    "": "missing_parameter",
    "logits=1,2": "wrong_classes",
    "logits=1,2,x": "not_a_number",
    "logits=1,2,1_0": "not_a_number",
    "logits=1,2,": "not_a_number",
    "logits=1,2,nan": "nan",
    "logits=1,2,1e999": "infinite",
    "logits=1,2,3&probabilities=1,0,0": "logits_or_probabilities",
    "probabilities=1,0,0": "wrong_kind",
}


@pytest.mark.parametrize("query", REFUSED_GETS)
def test_bad_gets(query):
    assert refusal(call("GET", f"three@3/predict?{query}")) == (422, REFUSED_GETS[query])


def test_a_query_that_is_not_text():
    assert refusal(post(npy(LOGITS), "three@3/predict?model=%ff")) == (400, "bad_query")


@pytest.mark.parametrize("accept", ["text/html", "application/json;q=0", "application/json;q=x"])
def test_unknown_accept(accept):
    assert refusal(post(npy(LOGITS), accept=accept)) == (406, "not_acceptable")


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("other@production/predict", 404, "no_such_calibrator"),
        ("three@staging/predict", 404, "no_such_calibrator"),
        ("Three@production/predict", 422, "bad_name"),
        ("three@PROD/predict", 422, "bad_name"),
        (f"{'a' * 65}@1/predict", 422, "bad_name"),
        ("a%00b@1/predict", 422, "bad_name"),
    ],
)
def test_unknown_names(path, status, code):
    assert refusal(post(npy(LOGITS), path)) == (status, code)


def test_methods_and_scopes():
    assert call("PUT", "three@3/predict", content=b"x").status_code == 405
    reader = Principal("default", "reader", frozenset({Scope.FIT}))
    answer = call("POST", "three@3/predict", content=npy(LOGITS), caller=reader)
    assert refusal(answer) == (403, "missing_scope")
    owner = Principal("default", "owner", frozenset({Scope.ADMIN}))
    answer = call("POST", "three@3/predict", content=npy(LOGITS), caller=owner)
    assert answer.status_code == 200


def test_bodies_beyond_the_limits():
    in_json = json.dumps(np.zeros((90_000, 3)).tolist()).encode()
    assert LIMITS.json_bytes < len(in_json) < LIMITS.bytes
    refused = post(in_json)
    assert refusal(refused) == (413, "body_too_large")
    assert f"at most {LIMITS.json_bytes} bytes are allowed" in refused.json()["detail"]
    packed = io.BytesIO()
    np.savez_compressed(packed, logits=np.zeros((400_000, 3)))
    assert refusal(post(packed.getvalue())) == (413, "body_too_large")


class Untouchable(TemperatureMap):
    """A map for responses that must be refused before they are computed."""

    def apply(self, values: Any) -> Any:
        raise AssertionError("the answer was calculated")


JSON, NPY, NPZ = ("application/json", "application/x-npy", "application/x-npz")


@pytest.mark.parametrize(
    ("classes", "values", "query", "accept", "size"),
    [
        (1000, np.zeros((420, 1000), np.int8), "", JSON, 420_000 * 20),
        (1000, np.zeros((700, 1000), np.float32), "", JSON, 700_000 * 12),
        (1000, np.zeros((700, 1000), ">f2"), "", JSON, 700_000 * 12),
        (1000, np.zeros((420, 1000), np.float16), "dtype=float64", JSON, 420_000 * 20),
        (1000, np.zeros((1100, 1000), np.int8), "", NPY, 1_100_000 * 8),
        (1000, np.zeros((1100, 1000), np.float32), "dtype=float64", NPY, 1_100_000 * 8),
        (1000, np.zeros((2200, 1000), np.float16), "", NPZ, 2_200_000 * 4),
        (2, np.zeros((300_000, 1), np.int8), "", JSON, 600_000 * 20),
        (2, np.zeros((600_000, 1), np.int8), "", NPY, 1_200_000 * 8),
        (3, np.zeros((150_000, 3), np.float32), "top=2", JSON, 150_000 * (34 + 40)),
        (3, np.zeros((300_000, 3), np.int8), "top=9", NPZ, 300_000 * 3 * 16),
    ],
)
def test_responses_beyond_the_limit(classes, values, query, accept, size, monkeypatch):
    monkeypatch.setitem(MAPS, "untouchable", Untouchable(k=classes, temperature=1.0))
    body = npy(values)
    assert len(body) < LIMITS.bytes < size
    refused = post(body, f"untouchable@3/predict?{query}", accept=accept)
    assert refusal(refused) == (413, "answer_too_large")
    detail = refused.json()["detail"]
    limit = LIMITS.json_bytes if accept == JSON else LIMITS.bytes
    assert f"about {size} bytes, but the limit is {limit}: send fewer rows" in detail
    assert ("accept npy" in detail) == (accept == JSON)


@pytest.mark.parametrize("dtype", [np.int8, np.float32, np.float64])
@pytest.mark.parametrize(
    "asked", [PredictRequest(), PredictRequest(top=2), PredictRequest(dtype=np.float64)]
)
@pytest.mark.parametrize("written", [Format.JSON, Format.NPZ])
def test_the_size_of_a_response_is_known_in_advance(dtype, asked, written):
    rows = 40 if written is Format.JSON else 200
    values = np.random.default_rng(5).normal(scale=3, size=(rows, 1000)).astype(dtype)
    query = "top=2" if asked.top else "dtype=float64" if asked.dtype else ""
    answer = post(npy(values), f"wide@3/predict?{query}", accept=written.media_type)
    assert answer.status_code == 200
    expected = answer_size(1000, Arrays(values), asked, written)
    assert len(answer.content) == pytest.approx(expected, rel=0.25)


HOSTILE_JSON = {
    "deep list": (b"[" * 1000 + b"1" + b"]" * 1000, 422, "too_deep"),
    "deeper list": (b"[" * 50_000 + b"]" * 50_000, 422, "too_deep"),
    "deep object": (b'{"logits":' * 1000 + b"1" + b"}" * 1000, 422, "too_deep"),
    "deep labels": (
        b'{"logits": [1, 2, 3], "labels": ' + b"[" * 900 + b"]" * 900 + b"}",
        422,
        "too_deep",
    ),
    "30 digits": (b"[1, 2, " + b"9" * 30 + b"]", 200, None),
    "5000 digits": (b"[1, 2, " + b"9" * 5000 + b"]", 400, "malformed_json"),
    "65 bits of label": (b'{"logits": [[1, 2, 3]], "labels": [36893488147419103232]}', 422, None),
    "half a pair as name": (b'{"\\ud800": [1, 2, 3]}', 400, "malformed_json"),
    "half a pair as number": (b'{"logits": ["\\ud800", 1, 2]}', 400, "malformed_json"),
}


@pytest.mark.parametrize("case", HOSTILE_JSON)
def test_hostile_json(case):
    body, status, code = HOSTILE_JSON[case]
    answer = post(body, content_type="application/json")
    assert answer.status_code == status, answer.text
    assert code in (None, answer.json().get("code"))


@pytest.mark.parametrize("depth", [10, 300, 900, 10_000])
def test_hostile_tensor_headers(depth):
    deep = "[" * depth + "1" + "]" * depth
    for header in (
        f'{{"logits": {{"dtype": {deep}, "shape": [1, 3], "data_offsets": [0, 12]}}}}',
        f'{{"logits": {{"dtype": "F32", "shape": {deep}, "data_offsets": [0, 12]}}}}',
        f'{{"\\ud800": {deep}}}',
        '{"\\ud800": {"dtype": "F32", "shape": [1, 3], "data_offsets": [0, 12]}}',
    ):
        text = header.encode()
        body = len(text).to_bytes(8, "little") + text + bytes(12)
        answer = post(body, content_type="application/x-safetensors")
        assert refusal(answer)[1] in ("bad_header", "bad_type", "unknown_array")


@pytest.mark.parametrize("model", ["%ED%A0%80", "%ff", "%C3"])
def test_models_that_are_not_text(model):
    answer = post(npy(LOGITS), f"three@3/predict?fingerprint=warn&model={model}")
    assert refusal(answer) == (400, "bad_query")


def test_openapi_describes_the_route():
    (path,) = OPENAPI
    assert path == predict_route(Registry().find, Registry().load, LIMITS, large_calls()).path
    known = {one["name"] for one in OPENAPI[path]["get"]["parameters"]}
    assert known == {
        "logits",
        "probabilities",
        "dtype",
        "top",
        "model",
        "fingerprint",
        "interval",
    } | {"Calibrd-Model"}
    for example in OPENAPI[path]["post"]["requestBody"]["content"]["application/json"][
        "examples"
    ].values():
        name = "segments" if "segments" in example["value"] else "three"
        answer = post(json.dumps(example["value"]).encode(), f"{name}@3/predict")
        assert answer.status_code == 200
