"""Maps and reports from any source are accepted only if they can be applied and displayed.

The hash in an archive does not prove who created it, so these archives have correct hashes.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import io
import json
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from helpers.live_service import Local, in_process
from helpers.workspace_contents import fitted_elsewhere

from calibrators import archive
from calibrators.methods.smart import SmartMap
from calibrators.methods.temperature import TemperatureMap

URL = "/v1/calibrators/foreign/versions"
ABSENT = object()
HUGE = 2**70


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    with in_process(tmp_path_factory.mktemp("foreign")) as local:
        yield local


def changed(document: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """Return a copy of a document with another value at a path such as ``fit.parameters``."""
    whole = copy.deepcopy(document)
    *parents, last = (int(one) if one.isdigit() else one for one in path.split("."))
    place: Any = whole
    for parent in parents:
        place = place[parent]
    if value is ABSENT:
        del place[last]
    else:
        place[last] = value
    return whole


def forged(path: str, value: object) -> str:
    """Return the map with another header and the matching hash."""
    data = base64.b64decode(fitted_elsewhere()["map"])
    (length,) = struct.unpack_from("<I", data, 40)
    header = changed(json.loads(data[44 : 44 + length]), path, value)
    text = json.dumps(header).encode()
    body = struct.pack("<I", len(text)) + text + data[44 + length :]
    return base64.b64encode(data[:8] + hashlib.sha256(body).digest() + body).decode()


def refused(service: Local, body: dict[str, Any]) -> str:
    answer = service.post(URL, json=body)
    assert answer.status_code == 422, answer.text
    assert service.get("/v1/calibrators/foreign").status_code == 404
    return answer.json()["code"]


@pytest.mark.parametrize(
    ("path", "value", "code"),
    [
        ("libraries", ABSENT, "bad_map"),
        ("libraries", "numpy", "bad_map"),
        ("libraries", {"numpy": 2}, "bad_map"),
        ("parameters.fit_info", {"rows": "many"}, "bad_map"),
        ("parameters.fit_info", {"rows": HUGE}, "bad_map"),
        ("parameters.fit_info", {"rows": True}, "bad_map"),
        ("parameters.fit_info", [], "wrong_fields"),
        ("parameters.k", HUGE, "wrong_fields"),
        ("parameters.k", "5", "wrong_fields"),
        ("parameters.temperature", 0, "wrong_fields"),
        ("parameters.temperature", ABSENT, "wrong_fields"),
        ("method", "../temperature", "unknown_method"),
    ],
)
def test_inconsistent_headers(service: Local, path: str, value: object, code: str) -> None:
    assert refused(service, {"map": forged(path, value)}) == code


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("format", 99),
        ("k", "five"),
        ("metrics", []),
        ("metrics.ada_ece", ABSENT),
        ("verdict", "splendid"),
        ("fit.parameters", None),
        ("fit.parameters", HUGE),
        ("by_margin.0.before.equal_mass.0.confidence", None),
    ],
)
def test_reports_that_cannot_be_shown(service: Local, path: str, value: object) -> None:
    body = fitted_elsewhere()
    report = changed(body["report"], path, value)
    assert refused(service, {**body, "report": report}) == "bad_report"


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ("", "not_an_archive"),
        ("not base64!", "bad_base64"),
        ("é", "bad_base64"),
        (base64.b64encode(b"\x80\x04N.").decode(), "not_an_archive"),
    ],
)
def test_bytes_that_are_no_map(service: Local, content: str, code: str) -> None:
    assert refused(service, {"map": content}) == code


def test_a_map_that_was_cut_short(service: Local) -> None:
    assert refused(service, {"map": fitted_elsewhere()["map"][:-4]}) == "wrong_hash"


def test_a_report_on_another_number_of_classes_is_refused(service: Local) -> None:
    body = fitted_elsewhere()
    assert refused(service, {**body, "report": {**body["report"], "k": 7}}) == "wrong_classes"


@pytest.mark.parametrize("value", [-1e308, 1e308, 0])
def test_accepted_reports_can_be_rendered(service: Local, value: float) -> None:
    """Registering builds the charts but does not draw them."""
    body = fitted_elsewhere()
    report = changed(body["report"], "by_margin.0.before.equal_mass.0.confidence", value)
    taken = service.post("/v1/calibrators/odd/versions", json={**body, "report": report})
    assert taken.status_code == 201, taken.text
    place = f"/v1/calibrators/odd/versions/{taken.json()['number']}"
    for ending in ("html", "svg", "png"):
        assert service.get(f"{place}/report.{ending}").status_code == 200


def overflowing(kind: str = "logits") -> SmartMap:
    """Return finite weights whose sums overflow."""
    return SmartMap(
        k=5,
        kind=kind,
        base_temperature=1.0,
        indicator="margin",
        centre=np.zeros(1),
        spread=np.ones(1),
        w1=np.full((1, 2), 1e308),
        b1=np.full(2, 1e308),
        w2=np.array([1.0, -1.0]),
        b2=0.0,
    )


@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_a_map_that_returns_nan_is_refused(service: Local, kind: str) -> None:
    content = base64.b64encode(archive.dump(overflowing(kind))).decode()
    answer = service.post(URL, json={"map": content})
    assert (answer.status_code, answer.json()["code"]) == (422, "bad_map")
    assert "not finite" in answer.json()["detail"]


def test_a_map_of_too_many_classes_to_be_applied_is_refused(service: Local) -> None:
    content = archive.dump(TemperatureMap(k=2**31 - 1, temperature=1.5))
    assert refused(service, {"map": base64.b64encode(content).decode()}) == "bad_map"


def test_a_stored_map_that_returns_nan_is_an_error(
    service: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The map was stored before maps were checked on registration."""
    monkeypatch.setattr("service.registry.registration.prove", lambda fitted: None)
    content = base64.b64encode(archive.dump(overflowing())).decode()
    taken = service.post("/v1/calibrators/overflowing/versions", json={"map": content})
    assert taken.status_code == 201, taken.text
    rows = [[2.0, 1.0, 0.0, 0.0, 0.0]]
    answer = service.post("/v1/calibrators/overflowing@1/predict", json={"logits": rows})
    assert (answer.status_code, answer.json()["code"]) == (500, "map_not_finite")
    assert "this version cannot be used" in answer.json()["detail"]
    tensor = {"name": "logits", "shape": [1, 5], "datatype": "FP32", "data": rows[0]}
    body = {"inputs": [tensor]}
    other = service.post("/v2/models/overflowing/versions/1/infer", json=body)
    assert other.status_code == 500
    assert "this version cannot be used" in other.json()["error"]
    with_nan = service.post("/v1/calibrators/overflowing@1/predict", content=nan_row())
    assert (with_nan.status_code, with_nan.json()["code"]) == (422, "nan")


def nan_row() -> bytes:
    file = io.BytesIO()
    np.save(file, np.full((1, 5), np.nan, np.float32))
    return file.getvalue()
