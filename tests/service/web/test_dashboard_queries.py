"""The dashboard's stored data and queries, on both storage backends."""

from __future__ import annotations

import pytest
from helpers.live_service import NPZ, Local, npz, sample
from helpers.workspace_contents import ALIAS, fitted_elsewhere

from service.access import keys
from service.access.permissions import Scope

pytestmark = pytest.mark.both_backends


def test_sessions_stand_for_their_key_until_they_end(local: Local) -> None:
    parts = local.app.state.parts
    with parts.database.write() as store:
        workspace = keys.workspace_named(store, keys.DEFAULT_WORKSPACE).id
        key = keys.create(store, workspace, name="ann", scopes=[Scope.ADMIN]).key.id
        store.web_sessions.add("0" * 64, key, seconds=-1.0)
    first, second = parts.sessions.begin(key), parts.sessions.begin(key)
    assert parts.sessions.key_of(first) == parts.sessions.key_of(second) == key
    parts.sessions.end(first)
    parts.sessions.end(first)
    assert parts.sessions.key_of(first) is None
    with parts.database.write() as store:
        assert store.web_sessions.key_of("0" * 64) is None
        assert store.web_sessions.forget_expired() == 1
    assert parts.sessions.key_of(second) == key


def test_an_overview_has_the_version_in_production_or_else_the_newest(local: Local) -> None:
    body = fitted_elsewhere()
    without_report = {name: value for name, value in body.items() if name != "report"}
    for name, sent in (("fashion", body), ("fashion", without_report), ("digits", without_report)):
        assert local.post(f"/v1/calibrators/{name}/versions", json=sent).status_code == 201
    local.put(f"/v1/calibrators/fashion/aliases/{ALIAS}", json={"version": 1})
    parts = local.app.state.parts
    workspace = parts.keys.anyone.workspace
    with parts.database.write() as store:
        store.calibrators.add(workspace, "empty_one")
    with parts.database.read() as store:
        digits, empty, fashion = store.overview.calibrators(workspace, 10, None)
        assert [one.name for one in store.overview.calibrators(workspace, 1, "digits")] == [
            "empty_one"
        ]
        for prefix, count in (("f", 1), ("fashion", 1), ("_", 0), ("%", 0), ("ashion", 0)):
            assert len(store.overview.calibrators(workspace, 9, None, prefix=prefix)) == count
        assert store.overview.calibrators("ws_of_others", 9, None) == []
    report = body["report"]
    assert (fashion.number, fashion.production, fashion.last_version) == (1, 1, 2)
    assert fashion.after == report["intervals"]["ece"]
    assert fashion.before == report["before"]["intervals"]["ece"]
    assert fashion.floor == report["noise_floor"]
    assert fashion.verdict == report["verdict"]
    assert (digits.number, digits.production, digits.after, digits.before) == (1, None, None, None)
    assert (empty.number, empty.method, empty.fitted_at) == (None, None, None)


def test_versions_are_listed_with_the_metrics_of_their_reports(local: Local) -> None:
    body = fitted_elsewhere()
    without_report = {name: value for name, value in body.items() if name != "report"}
    for sent in (body, without_report, body):
        assert local.post("/v1/calibrators/fashion/versions", json=sent).status_code == 201
    parts = local.app.state.parts
    with parts.database.read() as store:
        calibrator = store.calibrators.named(parts.keys.anyone.workspace, "fashion")
        listed = store.overview.versions(calibrator.id, 10, None)
        assert [one.number for one in listed] == [3, 2, 1]
        assert [one.number for one in store.overview.versions(calibrator.id, 1, 3)] == [2]
        assert store.overview.versions("cb_of_others", 10, None) == []
    report = body["report"]
    for one in (listed[0], listed[2]):
        assert one.metrics == report["metrics"]
        assert one.old_metrics == report["before"]["metrics"]
        assert one.after == report["intervals"]["ece"]
        assert one.floor == report["noise_floor"]
    assert (listed[1].metrics, listed[1].after, listed[1].floor) == (None, None, None)


def test_the_last_moves_of_each_alias_are_found(local: Local) -> None:
    for _ in range(2):
        local.post("/v1/calibrators/fashion/versions", json=fitted_elsewhere())
    for alias, version in (("b", 1), ("a", 1), ("b", 2), ("a", 2), ("a", 1)):
        move = {"version": version, "reason": f"{alias} to {version}"}
        local.put(f"/v1/calibrators/fashion/aliases/{alias}", json=move)
    parts = local.app.state.parts
    with parts.database.read() as store:
        calibrator = store.calibrators.named(parts.keys.anyone.workspace, "fashion")
        found = store.aliases.moves(calibrator.id, 4)
        assert store.aliases.moves("cb_of_others", 4) == {}
    assert {alias: [one.reason for one in moves] for alias, moves in found.items()} == {
        "a": ["a to 1", "a to 2", "a to 1"],
        "b": ["b to 2"],
    }


def test_datasets_that_a_version_can_be_measured_on_are_found(local: Local) -> None:
    def add(rows: int, classes: int) -> str:
        body = npz(*sample(rows, classes))
        return local.post("/v1/datasets", content=body, headers=NPZ).json()["id"]

    first, second = add(50, 4), add(60, 4)
    add(50, 3)
    local.post("/v1/datasets?upload=parts")
    parts = local.app.state.parts
    workspace = parts.keys.anyone.workspace
    with parts.database.read() as store:
        found = store.datasets.like(workspace, "logits", 4, 10)
        assert [one.id for one in found] == [second, first]
        assert [one.id for one in store.datasets.like(workspace, "logits", 4, 1)] == [second]
        assert store.datasets.like(workspace, "probabilities", 4, 10) == []
        assert store.datasets.like("ws_of_others", "logits", 4, 10) == []
