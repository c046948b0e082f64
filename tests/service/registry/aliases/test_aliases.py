"""Aliases: compare-and-set, verdicts that need force, history, rollback, and predict."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
from helpers.live_service import in_process, sample, wait_until, within
from helpers.registration import registration, temperature_registration

from calibrators import CalibrationSet, fit_and_judge
from calibrators.methods.segmented import SegmentedMap
from calibrators.methods.temperature import TemperatureMap, TemperatureScaling

pytestmark = pytest.mark.both_backends

ALIAS = "/v1/calibrators/c/aliases/production"


def register(client, temperature: float, verdict: str | None = "improved") -> int:
    """Register a version of the calibrator ``c`` with this temperature and verdict."""
    facts = {} if verdict is None else {"report": report_with(verdict)}
    body = temperature_registration(temperature, k=5, **facts)
    answer = client.post("/v1/calibrators/c/versions", json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()["number"]


def report_with(verdict: str) -> dict:
    """Return a report whose intervals give this verdict."""
    _, report = fit_and_judge(TemperatureScaling(), CalibrationSet(*sample(1000)))
    found = report.to_dict() | {"verdict": verdict}
    worse = {"value": 0.2, "low": 0.1, "high": 0.3, "level": 0.95}
    if verdict == "worse":
        found["change"] |= {"debiased_squared_error": worse, "nll": worse}
    elif verdict == "trade_off":
        found["change"] |= {"nll": worse}
    elif verdict == "insufficient_data":
        found["n"] = 99
    elif verdict == "at_chance":
        found["chance"]["auroc"] = 0.5
    return found


def top(client, ref: str) -> float:
    answer = client.get(f"/v1/calibrators/c@{ref}/predict?logits=4,0,0,0,0").json()
    return answer["probabilities"][0][0]


def move(client, version: int, headers=None, **body):
    return client.put(ALIAS, json={"version": version, **body}, headers=headers or {})


def test_compare_and_set(tenant):
    register(tenant, 1.0)
    register(tenant, 2.0)
    only_new = {"If-None-Match": "*"}
    first = move(tenant, 1, only_new, reason="start")
    assert (first.status_code, first.headers["etag"]) == (200, '"1"')
    assert move(tenant, 2, only_new).status_code == 412
    second = move(tenant, 2, {"If-Match": '"1"'})
    assert second.headers["etag"] == '"2"'
    late = move(tenant, 1, {"If-Match": '"1"'})
    assert (late.status_code, late.json()["code"]) == (412, "alias_has_moved")
    assert tenant.get(ALIAS).json()["version"] == 2
    assert move(tenant, 1, {"If-Match": "*"}).status_code == 200
    assert move(tenant, 1, {"If-Match": "rubbish"}).status_code == 412


@pytest.mark.one_backend
@pytest.mark.parametrize("verdict", ["worse", "insufficient_data", "at_chance", None])
def test_a_version_not_judged_better_needs_force_and_a_reason(local, verdict):
    register(local, 1.5, verdict)
    refused = move(local, 1)
    assert (refused.status_code, refused.json()["code"]) == (409, "needs_force")
    assert move(local, 1, force=True).status_code == 409
    assert move(local, 1, reason="because").status_code == 409
    assert move(local, 1, force=True, reason="because").status_code == 200
    (entry,) = local.get(f"{ALIAS}/history").json()["items"]
    assert (entry["forced"], entry["reason"], entry["moved_by"]) == (True, "because", "anonymous")


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("k", "kind", "taken"),
    [(5, "probabilities", "probabilities of 5 classes"), (4, "logits", "logits of 4 classes")],
)
def test_a_version_with_different_input_needs_force_and_a_reason(tenant, k, kind, taken):
    register(tenant, 1.0)
    body = registration(TemperatureMap(k=k, kind=kind, temperature=1.5))
    assert tenant.post("/v1/calibrators/c/versions", json=body).status_code == 201
    assert move(tenant, 1).status_code == 200
    refused = move(tenant, 2)
    assert (refused.status_code, refused.json()["code"]) == (409, "needs_force")
    said = f"takes {taken}, but callers of 'production' send logits of 5 classes"
    assert said in refused.json()["detail"]
    assert "was not judged" in refused.json()["detail"]
    assert move(tenant, 2, force=True, reason="all callers know").status_code == 200
    back = move(tenant, 1)
    assert (back.status_code, back.json()["code"]) == (409, "needs_force")
    assert f"send {taken}" in back.json()["detail"]
    assert tenant.post(f"{ALIAS}/rollback").json()["version"] == 1


@pytest.mark.one_backend
def test_a_version_without_segments_needs_force_after_one_with_segments(tenant):
    register(tenant, 1.0)
    base = TemperatureMap(k=5, temperature=1.5)
    segmented = SegmentedMap(k=5, base=base, segments=("web",), temperatures=np.array([2.0]))
    assert (
        tenant.post("/v1/calibrators/c/versions", json=registration(segmented)).status_code == 201
    )
    assert move(tenant, 2, force=True, reason="the first one").status_code == 200
    refused = move(tenant, 1)
    assert (refused.status_code, refused.json()["code"]) == (409, "needs_force")
    assert (
        "takes no segments, but callers of 'production' may be sending them"
        in refused.json()["detail"]
    )
    assert move(tenant, 1, force=True, reason="nobody sends any").status_code == 200


@pytest.mark.one_backend
def test_trade_off_is_moved_to_with_a_warning(tenant):
    register(tenant, 1.5, "trade_off")
    moved = move(tenant, 1)
    assert moved.status_code == 200
    assert "trade-off" in moved.json()["warning"]


def test_rollback_undoes_one_move_after_another(tenant):
    for temperature in (1.0, 2.0, 3.0):
        register(tenant, temperature)
    for version in (1, 2, 3):
        move(tenant, version)
    assert top(tenant, "production") == top(tenant, "3")
    assert tenant.post(f"{ALIAS}/rollback", json={"reason": "bad"}).json()["version"] == 2
    assert top(tenant, "production") == top(tenant, "2")
    assert tenant.post(f"{ALIAS}/rollback").json()["version"] == 1
    refused = tenant.post(f"{ALIAS}/rollback")
    assert (refused.status_code, refused.json()["code"]) == (409, "nothing_to_roll_back")
    history = tenant.get(f"{ALIAS}/history").json()["items"]
    assert [(one["from_version"], one["to_version"], one["rollback"]) for one in history] == [
        (2, 1, True),
        (3, 2, True),
        (2, 3, False),
        (1, 2, False),
        (None, 1, False),
    ]


def test_other_processes_see_a_move_within_two_seconds(backend, tmp_path):
    settings = backend.settings(tmp_path)
    with in_process(**settings) as one, in_process(**settings) as other:
        register(one, 1.0)
        register(one, 3.0)
        numbers = itertools.cycle([1, 2])

        def seen_after() -> float:
            number = next(numbers)
            move(one, number)
            moved_at = time.monotonic()
            assert top(one, "production") == top(one, str(number))
            wait_until(lambda: top(other, "production") == top(one, str(number)))
            return time.monotonic() - moved_at

        seen_after()
        within(2, seen_after)


@pytest.mark.one_backend
@pytest.mark.parametrize("name", ["7", "Production", "a b", "-x", "x" * 65])
def test_bad_names_of_aliases(tenant, name):
    register(tenant, 1.0)
    answer = tenant.put(f"/v1/calibrators/c/aliases/{name}", json={"version": 1})
    assert (answer.status_code, answer.json()["code"]) == (422, "bad_name")


def test_alias_of_a_missing_version(tenant):
    register(tenant, 1.0)
    assert move(tenant, 9).json()["code"] == "no_such_version"
    assert tenant.get(ALIAS).status_code == 404
    assert tenant.get("/v1/calibrators/c@production/predict?logits=1,2,3,4,5").status_code == 404


@pytest.mark.one_backend
def test_verdict_that_does_not_follow_is_refused(tenant):
    forged = report_with("worse") | {"verdict": "improved"}
    body = temperature_registration(2.0, k=5, report=forged)
    told = tenant.post("/v1/calibrators/c/versions", json=body)
    assert (told.status_code, told.json()["code"]) == (422, "bad_report")


def test_repeated_move_is_none_and_rollback_still_goes_back(tenant):
    for temperature in (1.0, 2.0):
        register(tenant, temperature)
    for version in (1, 2, 2):
        answer = move(tenant, version)
    assert answer.headers["etag"] == '"2"'
    assert tenant.post(f"{ALIAS}/rollback").json()["version"] == 1


def test_conditions_on_missing_objects(tenant):
    register(tenant, 1.0)
    assert move(tenant, 1, {"If-Match": "*"}).status_code == 412
    move(tenant, 1)
    assert move(tenant, 1, {"If-Match": 'W/"1"'}).status_code == 412
