"""Runs are started, continued, rewound, labelled and archived."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest
from helpers.http_calls import good, refusal
from helpers.live_service import every
from helpers.training_clients import (
    SETTINGS,
    document,
    history,
    line,
    open_run,
    post,
    seen,
    state_of,
    trained,
)

from calibrators.adafocal import AdaFocalState
from service.runs.history_repository import RunHistory

pytestmark = pytest.mark.both_backends


def test_a_run_from_its_first_step_to_its_history(tenant: httpx.Client) -> None:
    opened = tenant.post("/v1/runs", json={"name": "job", "settings": vars(SETTINGS)})
    assert opened.status_code == 201
    assert opened.headers["location"] == "/v1/runs/job"
    begin = AdaFocalState.begin(SETTINGS)
    assert opened.json()["state"] == begin.to_dict()
    assert opened.json()["step"] == 0

    first = begin.update(seen(1))
    session = opened.json()["session"]["id"]
    answer = good(post(tenant, "job", session, 1, seen(1), state=first))
    assert answer == {
        "step": 1,
        "session": session,
        "status": "decided",
        "ranks": [0],
        "late": False,
        "state": first.to_dict(),
    }
    (step,) = history(tenant, "job")
    summary = seen(1).summary()
    assert step["metrics"] == {**vars(summary)}
    assert step["gammas"] == first.gammas.tolist()
    assert step["bins"]["edges"] == first.edges.tolist()
    assert step["bins"]["accuracy"] == first.accuracy.tolist()
    assert sum(step["bins"]["count"]) == pytest.approx(200)
    assert len(step["reliability"]["count"]) == 15
    assert sum(step["reliability"]["count"]) == 200
    assert step["reliability"]["confidence"][0] is None  # no row is below 1/15
    assert (step["verified"], step["partial"], step["world_size"]) == (True, False, 1)
    assert step["switched"] == first.switches(begin)
    assert state_of(tenant, "job")["state"] == first.to_dict()
    assert good(tenant.get("/v1/runs/job"))["metrics"] == step["metrics"]


def test_a_run_continues_after_a_crash(tenant: httpx.Client) -> None:
    state = trained(tenant, "job", 3, session="a")
    opened = tenant.post("/v1/runs", json={"name": "job", "session": "b"})
    assert opened.status_code == 200
    assert opened.json()["session"]["base_step"] == opened.json()["step"] == 3
    assert opened.json()["session"]["number"] == 2
    assert opened.json()["state"] == state.to_dict()
    assert opened.json()["metrics"]["rows"] == 200
    trained(tenant, "job", 2, session="b")
    assert line(tenant, "job") == [(1, "a"), (2, "a"), (3, "a"), (4, "b"), (5, "b")]
    sessions = good(tenant.get("/v1/runs/job"))["sessions"]
    assert [(one["id"], one["base_step"]) for one in sessions] == [("b", 3), ("a", 0)]


def test_the_position_of_a_run_is_read_from_its_last_step_only(
    tenant: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    walks: list[str] = []
    line_of = RunHistory._line

    def noted(steps: RunHistory, run: str) -> Any:
        walks.append(run)
        return line_of(steps, run)

    trained(tenant, "job", 3, session="a")
    monkeypatch.setattr(RunHistory, "_line", noted)
    for answer in (tenant.get("/v1/runs/job"), tenant.patch("/v1/runs/job", json={})):
        assert good(answer)["metrics"]["rows"] == 200
    assert good(tenant.get("/v1/runs"))["items"][0]["step"] == 3
    assert walks == []
    # a new session has no steps, so its metrics are those of its starting position
    assert open_run(tenant, "job", from_step=2)["metrics"] == history(tenant, "job")[1]["metrics"]
    assert len(walks) == 3  # of which two for the page of the history


def test_a_run_goes_back_to_an_older_checkpoint(tenant: httpx.Client) -> None:
    checkpoint = trained(tenant, "job", 3, session="a")
    trained(tenant, "job", 2, session="a")
    trained(tenant, "job", 1, session="b", state=document(checkpoint))
    assert line(tenant, "job") == [(1, "a"), (2, "a"), (3, "a"), (4, "b")]
    assert [one["step"] for one in history(tenant, "job", session="a")] == [1, 2, 3, 4, 5]
    # rewind to a step before both without a state, which the service has stored
    opened = open_run(tenant, "job", session="c", from_step=2)
    assert opened["state"]["gammas"] == history(tenant, "job", session="a")[1]["gammas"]
    assert line(tenant, "job") == [(1, "a"), (2, "a")]
    # late steps of an older session do not reappear
    late = AdaFocalState.from_dict(state_of(tenant, "job", session="b")["state"])
    good(post(tenant, "job", "b", 5, seen(9), state=late.update(seen(9))))
    assert line(tenant, "job") == [(1, "a"), (2, "a")]
    open_run(tenant, "job", session="d", from_step=0)
    assert line(tenant, "job") == []


def test_a_late_session_does_not_rewind_the_run(tenant: httpx.Client) -> None:
    begun = time.time()
    begin = AdaFocalState.begin(SETTINGS)
    last = trained(tenant, "job", 3, session="new", begun=begun)
    late = trained(tenant, "job", 2, session="old", state=document(begin), begun=begun - 60)
    assert line(tenant, "job") == [(1, "new"), (2, "new"), (3, "new")]
    assert state_of(tenant, "job")["state"] == last.to_dict()
    assert state_of(tenant, "job", session="old")["state"] == late.to_dict()
    run = good(tenant.get("/v1/runs/job"))
    assert (run["step"], [one["id"] for one in run["sessions"]]) == (3, ["new", "old"])
    assert run["sessions"][1]["begun_at"] < run["sessions"][0]["begun_at"]
    # a new session continues from the newest one
    assert open_run(tenant, "job", session="next")["state"] == last.to_dict()
    second = open_run(tenant, "job", session="back", from_step=2)
    assert second["state"]["gammas"] == history(tenant, "job", session="new")[1]["gammas"]


def test_no_session_begins_in_the_future(tenant: httpx.Client) -> None:
    ahead = open_run(tenant, "job", session="ahead", begun=time.time() + 1e6)["session"]
    assert ahead["begun_at"] <= ahead["created_at"]
    # so that one that begins after it is newer
    trained(tenant, "job", 1, session="next")
    assert line(tenant, "job") == [(1, "next")]


def test_a_run_may_begin_at_any_step(tenant: httpx.Client) -> None:
    state = AdaFocalState.begin(SETTINGS)
    for number in range(7):
        state = state.update(seen(number))
    opened = open_run(tenant, "job", session="a", state=document(state))
    assert opened["step"] == 7
    assert state_of(tenant, "job") == {
        "run": "job",
        "session": "a",
        "step": 7,
        "state": state.to_dict(),
        "metrics": None,
        "partial": False,
        "verified": None,
    }
    trained(tenant, "job", 1, session="a")
    assert line(tenant, "job") == [(8, "a")]
    # the starting step is known, but no earlier ones
    assert open_run(tenant, "job", from_step=7)["state"] == state.to_dict()
    asked = {"name": "job", "from_step": 6}
    assert refusal(tenant.post("/v1/runs", json=asked)) == (422, "bad_step")


def test_the_same_session_is_the_same(tenant: httpx.Client) -> None:
    asked = {"session": "job-7", "world_size": 2, "decides": "service"}
    first = open_run(tenant, "job", **asked)
    again = tenant.post("/v1/runs", json={"name": "job", **asked})
    assert again.status_code == 200
    assert again.json()["session"] == first["session"]
    for change, word in (({"world_size": 3}, "world_size 2, not 3"), ({"decides": "trainer"}, "")):
        refused = tenant.post("/v1/runs", json={"name": "job", **asked, **change})
        assert refusal(refused) == (409, "session_differs")
        assert word in refused.json()["detail"]
    assert len(good(tenant.get("/v1/runs/job"))["sessions"]) == 1


def test_a_run_keeps_its_kind_and_settings(tenant: httpx.Client) -> None:
    open_run(tenant, "job")
    refused = tenant.post("/v1/runs", json={"name": "job", "kind": "monitor"})
    assert refusal(refused) == (409, "run_differs")
    assert "'adafocal', not 'monitor'" in refused.json()["detail"]
    others = {**vars(SETTINGS), "rate": 3.0, "bins": 6}
    refused = tenant.post("/v1/runs", json={"name": "job", "settings": others})
    assert refusal(refused) == (409, "run_differs")
    assert "bins 5, not 6, rate 2.0, not 3.0" in refused.json()["detail"]
    assert refused.json()["settings"] == ["bins", "rate"]
    assert good(tenant.get("/v1/runs/job"))["settings"] == vars(SETTINGS)


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("asked", "status", "code"),
    [
        ({"name": "No Name"}, 422, "bad_name"),
        ({"kind": "monitor", "settings": {}}, 422, "bad_settings"),
        ({"kind": "monitor", "state": AdaFocalState.begin(SETTINGS).to_dict()}, 422, "bad_state"),
        ({"state": AdaFocalState.initial(bins=4).to_dict()}, 422, "bad_state"),
        ({"state": {**AdaFocalState.begin(SETTINGS).to_dict(), "edges": []}}, 422, "bad_state"),
        ({"state": AdaFocalState.initial().to_dict(), "from_step": 0}, 422, "bad_step"),
        ({"from_step": 3}, 422, "bad_step"),
        ({"settings": {"switch_at": 0.5, "gamma_min": -0.1}}, 422, "bad_parameter"),
        ({"settings": {"rate": 0}}, 422, "invalid_request"),
        ({"settings": {"gamma_max": 0}}, 422, "invalid_request"),
        ({"settings": {"gamma_max": "Infinity"}}, 422, "invalid_request"),
        ({"session": "a b"}, 422, "invalid_request"),
        ({"merge_timeout": 0}, 422, "invalid_request"),
        ({"world_size": 0}, 422, "invalid_request"),
        ({"world_size": 10_001}, 422, "invalid_request"),
        ({"begun": -1}, 422, "invalid_request"),
        ({"tags": {"A": "b"}}, 422, "bad_name"),
    ],
)
def test_a_run_that_cannot_begin(tenant: httpx.Client, asked: dict, status: int, code: str) -> None:
    assert refusal(tenant.post("/v1/runs", json={"name": "job", **asked})) == (status, code)
    assert tenant.get("/v1/runs").json()["items"] == []


def test_runs_are_listed_labelled_and_archived(tenant: httpx.Client) -> None:
    for name in ("one", "two", "three"):
        open_run(tenant, name, tags={"team": name}, description=name)
    trained(tenant, "one", 1)
    assert [run["name"] for run in every(tenant, "/v1/runs", limit=1)] == ["one", "three", "two"]
    # a continued run keeps its labels
    opened = open_run(tenant, "one", tags={"seed": "2"})
    assert (opened["tags"], opened["description"]) == ({"team": "one", "seed": "2"}, "one")
    changed = good(tenant.patch("/v1/runs/one", json={"tags": {"a": "b"}, "archived": True}))
    assert (changed["tags"], changed["archived"], changed["description"]) == (
        {"a": "b"},
        True,
        "one",
    )
    assert {run["name"] for run in every(tenant, "/v1/runs")} == {"two", "three"}
    assert [run["name"] for run in every(tenant, "/v1/runs", archived=True)] == ["one"]
    refused = tenant.post("/v1/runs", json={"name": "one"})
    assert refusal(refused) == (409, "run_archived")
    assert good(tenant.patch("/v1/runs/one", json={"archived": False}))["archived"] is False
    assert open_run(tenant, "one")["step"] == 1


def test_open_sessions_of_an_archived_run_may_finish(tenant: httpx.Client) -> None:
    state = trained(tenant, "job", 1, session="a")
    tenant.patch("/v1/runs/job", json={"archived": True})
    # a job that lost its responses or was restarted opens its session again
    assert open_run(tenant, "job", session="a")["state"] == state.to_dict()
    assert refusal(tenant.post("/v1/runs", json={"name": "job"})) == (409, "run_archived")
    answer = good(post(tenant, "job", "a", 2, seen(2), state=state.update(seen(2))))
    assert answer["status"] == "decided"


def test_a_monitor_has_metrics_and_no_state(tenant: httpx.Client) -> None:
    opened = open_run(tenant, "watch", kind="monitor", session="a")
    assert (opened["state"], opened["settings"], opened["step"]) == (None, None, 0)
    answer = good(post(tenant, "watch", "a", 1, seen(1)))
    assert (answer["status"], answer["state"]) == ("decided", None)
    (step,) = history(tenant, "watch")
    assert (step["gammas"], step["verified"], step["switched"]) == (None, None, [])
    assert len(step["bins"]["count"]) == 15
    assert step["metrics"]["ece"] == seen(1).summary().ece
    # it continues from any step
    open_run(tenant, "watch", kind="monitor", session="b", from_step=40)
    good(post(tenant, "watch", "b", 41, seen(2)))
    assert line(tenant, "watch") == [(1, "a"), (41, "b")]


@pytest.mark.parametrize("path", ["", "/state", "/history", "/state?session=a"])
def test_a_missing_run(tenant: httpx.Client, path: str) -> None:
    answer = tenant.get(f"/v1/runs/nothing{path}")
    assert refusal(answer) == (404, "no_such_run")
    open_run(tenant, "something")
    answer = tenant.get("/v1/runs/something/history?session=b")
    assert refusal(answer) == (404, "no_such_session")
    assert "'something' has no session 'b'" in answer.json()["detail"]


def test_a_history_is_read_in_pages(tenant: httpx.Client) -> None:
    trained(tenant, "job", 7)
    steps = every(tenant, "/v1/runs/job/history", limit=3)
    assert [one["step"] for one in steps] == [1, 2, 3, 4, 5, 6, 7]
    steps = every(tenant, "/v1/runs/job/history", limit=2, after=4)
    assert [one["step"] for one in steps] == [5, 6, 7]
