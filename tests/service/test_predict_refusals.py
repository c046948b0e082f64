"""Everything that the predict route refuses."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np
import pytest
from predict_app import (
    LIMITS,
    LOGITS,
    MAPS,
    Registry,
    call,
    code_of,
    make_app,
    npy,
    post,
)

from calibrators import all_methods
from service.api.predict import OPENAPI, predict_route
from service.core.access import Principal, Scope

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
    "damaged": (npy(LOGITS)[:-1], 400, "truncated"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_bodies(case):
    body, status, code = BAD[case]
    assert code_of(post(body)) == (status, code)


def test_the_first_bad_row_is_named():
    detail = post(BAD["NaN"][0]).json()["detail"]
    assert detail == "logits must not be NaN (1 row breaks this rule, first row 1)"
    detail = post(BAD["four classes"][0]).json()["detail"]
    assert "3 classes" in detail
    assert "rows of 4" in detail


@pytest.mark.parametrize("method", [name for name in all_methods() if name != "auto"])
@pytest.mark.parametrize(("value", "code"), [(np.nan, "nan"), (np.inf, "infinite")])
def test_no_method_answers_for_nan(method, value, code, overconfident, monkeypatch):
    monkeypatch.setitem(MAPS, "fitted", all_methods()[method]().fit(overconfident))
    values = np.array(overconfident.logits[:3])
    values[2, 1] = value
    assert code_of(post(npy(values), "fitted@3/predict")) == (422, code)


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
}


@pytest.mark.parametrize("query", REFUSED_QUERIES)
def test_bad_queries(query):
    answer = post(npy(LOGITS), f"three@3/predict?{query}")
    assert code_of(answer) == (422, REFUSED_QUERIES[query])
    assert query.partition("=")[0] in answer.json()["detail"]


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
    assert code_of(call("GET", f"three@3/predict?{query}")) == (422, REFUSED_GETS[query])


def test_a_query_that_is_no_text():
    assert code_of(post(npy(LOGITS), "three@3/predict?model=%ff")) == (400, "bad_query")


@pytest.mark.parametrize("accept", ["text/html", "application/json;q=0", "application/json;q=x"])
def test_unknown_accept(accept):
    assert code_of(post(npy(LOGITS), accept=accept)) == (406, "not_acceptable")


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
    assert code_of(post(npy(LOGITS), path)) == (status, code)


def test_methods_and_scopes():
    assert call("PUT", "three@3/predict", content=b"x").status_code == 405
    reader = Principal("default", "reader", frozenset({Scope.FIT}))
    answer = call("POST", "three@3/predict", content=npy(LOGITS), caller=reader)
    assert code_of(answer) == (403, "missing_scope")
    owner = Principal("default", "owner", frozenset({Scope.ADMIN}))
    answer = call("POST", "three@3/predict", content=npy(LOGITS), caller=owner)
    assert answer.status_code == 200


def test_size_is_refused_before_and_while_reading():
    async def ask(headers: list[tuple[bytes, bytes]], pieces: int) -> tuple[int, int]:
        """The status, and how many pieces of 1 MB were read."""
        statuses, read = [], 0

        async def receive() -> dict[str, Any]:
            nonlocal read
            read += 1
            return {"type": "http.request", "body": bytes(1 << 20), "more_body": read < pieces}

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        path = "/v1/calibrators/three@3/predict"
        scope = {"type": "http", "method": "POST", "path": path, "query_string": b""}
        await make_app(Registry())({**scope, "headers": headers}, receive, send)
        return statuses[0], read

    assert asyncio.run(ask([(b"content-length", b"99999999")], 100)) == (413, 0)
    assert asyncio.run(ask([(b"content-length", b"9" * 50)], 100)) == (400, 0)
    assert asyncio.run(ask([], 100)) == (413, 9)
    assert asyncio.run(ask([(b"content-type", b"application/json")], 100)) == (413, 2)


def test_openapi_describes_the_route():
    (path,) = OPENAPI
    assert path == predict_route(Registry().find, Registry().load, LIMITS).path
    known = {one["name"] for one in OPENAPI[path]["get"]["parameters"]}
    assert known == {"logits", "probabilities", "dtype", "top", "model", "fingerprint"} | {
        "Calibrd-Model"
    }
    for example in OPENAPI[path]["post"]["requestBody"]["content"]["application/json"][
        "examples"
    ].values():
        assert post(json.dumps(example["value"]).encode()).status_code == 200
