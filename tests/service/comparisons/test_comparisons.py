"""Two versions compared over HTTP: on the rows both were judged on, or on a dataset."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.dashboard_pages import make_key
from helpers.live_service import NPZ, Local, in_process, npz, sample
from helpers.registration import registration

from calibrators import CalibrationSet, Calibrator, Report
from calibrators.fitting.evaluation import Judged, fit_and_judge
from calibrators.methods.identity import Identity
from calibrators.methods.temperature import TemperatureScaling
from service.access.permissions import Scope
from service.comparisons.service import MAX_KEPT, Comparisons

PATH = "/v1/calibrators/fashion/compare"
CLASSES = 5


def judged(recipe: Calibrator, rows: int = 2000, **options: Any) -> Judged:
    return fit_and_judge(recipe, CalibrationSet(*sample(rows, CLASSES)), **options)


def register(client: Local, made: Judged, *, rows: bool = True) -> int:
    facts: dict[str, Any] = {"report": made.report.to_dict()}
    if rows:
        facts["judged_rows"] = base64.b64encode(made.rows.dump()).decode()
    answer = client.post("/v1/calibrators/fashion/versions", json=registration(made.map, **facts))
    assert answer.status_code == 201, answer.text
    assert answer.json()["has_judged_rows"] is rows
    return int(answer.json()["number"])


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    """Run a service with versions: identity, temperature, no rows, few rows, other rows."""
    with in_process(tmp_path_factory.mktemp("comparisons")) as made:
        register(made, judged(Identity()))
        register(made, judged(TemperatureScaling()))
        register(made, judged(TemperatureScaling()), rows=False)
        register(made, judged(TemperatureScaling(), held_out=0.05, seed=1))
        register(made, judged(TemperatureScaling(), rows=1500))
        yield made


def test_on_rows_that_both_were_judged_on(service: Local) -> None:
    found = service.get(PATH, params={"first": 1, "second": 2}).json()
    assert (found["first"], found["second"], found["rows"]) == (1, 2, 400)
    assert found["dataset"] is None
    assert found["verdict"] == "improved"
    assert found["no_verdict"] is None
    report = Report.from_dict(found["report"])
    assert report.before.metrics["ece"] > report.metrics["ece"]
    other_way = service.get(PATH, params={"first": 2, "second": 1}).json()
    assert other_way["verdict"] == "worse"


def test_requests_for_one_comparison_share_its_text(
    service: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"first": 1, "second": 2}
    first = service.get(PATH, params=asked)

    def written(*_: Any) -> Any:
        raise AssertionError("the report is written once")

    monkeypatch.setattr(Report, "to_dict", written)
    again = service.get(PATH, params=asked)
    assert (again.status_code, again.content) == (200, first.content)
    assert again.headers["content-type"] == "application/json"


def test_training_rows_give_figures_and_no_verdict(service: Local) -> None:
    content = npz(*sample(2000, CLASSES))
    id = service.post("/v1/datasets", content=content, headers=NPZ).json()["id"]
    found = service.get(PATH, params={"first": 1, "second": 2, "dataset": id}).json()
    assert found["verdict"] is None
    assert found["report"]["verdict"] is None
    assert found["no_verdict"].startswith("both versions were fitted on these rows")
    fresh = npz(*sample(2000, CLASSES, seed=3))
    id = service.post("/v1/datasets", content=fresh, headers=NPZ).json()["id"]
    found = service.get(PATH, params={"first": 1, "second": 2, "dataset": id}).json()
    assert (found["verdict"], found["no_verdict"], found["dataset"]) == ("improved", None, id)


@pytest.mark.parametrize(
    ("second", "status", "code"),
    [
        (3, 409, "no_common_rows"),
        (4, 409, "too_few_common_rows"),
        (5, 409, "no_common_rows"),
        (9, 404, "no_such_version"),
        (1, 422, "same_version"),
    ],
)
def test_incomparable_versions_are_refused(
    service: Local, second: int, status: int, code: str
) -> None:
    answer = service.get(PATH, params={"first": 1, "second": second})
    assert (answer.status_code, answer.json()["code"]) == (status, code)


def test_judged_rows_are_for_every_key_and_datasets_for_those_that_fit(service: Local) -> None:
    key = {"Authorization": f"Bearer {make_key(service, Scope.PREDICT)}"}
    asked = {"first": 1, "second": 2}
    assert service.get(PATH, params=asked, headers=key).status_code == 200
    refused = service.get(PATH, params={**asked, "dataset": "ds_0"}, headers=key)
    assert refused.json()["code"] == "missing_scope"


@pytest.mark.parametrize(
    ("rows", "code"),
    [("AAAA", "bad_judged_rows"), ("?", "bad_base64")],
)
def test_judged_rows_that_cannot_be_read_are_refused(local: Local, rows: str, code: str) -> None:
    body = registration(judged(Identity(), rows=200).map, judged_rows=rows)
    answer = local.post("/v1/calibrators/fashion/versions", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, code)


def test_judged_rows_of_other_classes_are_refused(local: Local) -> None:
    other = fit_and_judge(Identity(), CalibrationSet(*sample(200, 3)))
    rows = base64.b64encode(other.rows.dump()).decode()
    body = registration(judged(Identity(), rows=200).map, judged_rows=rows)
    answer = local.post("/v1/calibrators/fashion/versions", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "wrong_classes")


def test_comparisons_of_one_workspace_evict_none_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[str] = []

    def compare(self: Any, principal: Any, pair: Any, process: Any) -> None:
        begun.append(principal.workspace)

    monkeypatch.setattr(Comparisons, "_compare_judged", compare)
    comparisons = Comparisons(None)  # type: ignore[arg-type]

    def ask(workspace: str, number: int) -> Any:
        pair = SimpleNamespace(key=("a", number, 2))
        found = comparisons.start(SimpleNamespace(workspace=workspace), pair, None)  # type: ignore[arg-type]
        found.result(20)

    try:
        ask("quiet", 1)
        for number in range(2 * MAX_KEPT):
            ask("busy", number)
        ask("quiet", 1)
        assert begun.count("quiet") == 1
        ask("busy", 2 * MAX_KEPT - 1)
        assert begun.count("busy") == 2 * MAX_KEPT
        ask("busy", 0)
        assert begun.count("busy") == 2 * MAX_KEPT + 1
    finally:
        comparisons.close()


def test_one_workspace_does_not_wait_for_the_comparisons_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Comparisons of one workspace run one at a time; another workspace's process stays free."""
    released, running, order = threading.Event(), threading.Event(), []

    def compare(self: Any, principal: Any, pair: Any, process: Any) -> str:
        order.append((principal.workspace, pair.key))
        if principal.workspace == "busy":
            running.set()
            assert released.wait(20)
        return principal.workspace

    monkeypatch.setattr(Comparisons, "_compare_judged", compare)
    comparisons = Comparisons(None)  # type: ignore[arg-type]

    def ask(workspace: str, number: int) -> Any:
        pair = SimpleNamespace(key=("a", number, 2))
        return comparisons.start(SimpleNamespace(workspace=workspace), pair, None)  # type: ignore[arg-type]

    try:
        busy = [ask("busy", number) for number in range(3)]
        assert running.wait(20)
        assert ask("other", 1).result(20) == "other"
        assert [name for name, _ in order] == ["busy", "other"]
        released.set()
        assert [one.result(20) for one in busy] == ["busy"] * 3
        assert [number for name, (_, number, _) in order if name == "busy"] == [0, 1, 2]
    finally:
        released.set()
        comparisons.close()
