"""Two versions side by side: their own reports, and measurements on the same rows."""

from __future__ import annotations

import base64
import hashlib
import html
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.dashboard_pages import HTML, Shell, check_page, row_of, signed_in
from helpers.live_service import NPZ, Local, in_process, npz, sample, wait_until
from helpers.registration import registration
from helpers.workspace_contents import fitted_elsewhere
from sqlalchemy import update

from calibrators import CalibrationSet, evaluate
from calibrators.comparison.compare import compare
from calibrators.fitting.evaluation import fit_and_judge
from calibrators.methods.identity import Identity
from calibrators.methods.temperature import TemperatureScaling
from service.access.permissions import Scope
from service.comparisons import service as comparing
from service.storage.blob_keys import dataset_key
from service.storage.tables import versions

PATH = "/calibrators/fashion/compare"
CLASSES = 5


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    """Run a service: version 1 is the identity, 2 a temperature, 3 has other classes."""
    with in_process(tmp_path_factory.mktemp("compare")) as made:
        unchanged, report = fit_and_judge(Identity(), CalibrationSet(*sample(1200, CLASSES)))
        other, _ = fit_and_judge(Identity(), CalibrationSet(*sample(1200, 3)))
        for body in (
            registration(unchanged, report=report.to_dict()),
            without_rows(),
            registration(other),
        ):
            assert made.post("/v1/calibrators/fashion/versions", json=body).status_code == 201
        yield made


@pytest.fixture(scope="module")
def dataset(service: Local) -> str:
    """Upload rows on which neither version was fitted."""
    body = npz(*sample(3000, CLASSES, seed=7))
    return service.post("/v1/datasets", content=body, headers=NPZ).json()["id"]


def without_rows() -> dict[str, Any]:
    """Register a version with a report but no judged rows."""
    return {name: one for name, one in fitted_elsewhere().items() if name != "judged_rows"}


def measured(client: Local, **asked: Any) -> str:
    """Return the page once both versions have been measured."""

    def look() -> str | None:
        page = client.get(PATH, params=asked, headers=HTML)
        check_page(page)
        return None if "data-busy" in page.text else page.text

    return wait_until(look)


def test_the_difference_is_that_of_a_paired_evaluation(service: Local, dataset: str) -> None:
    page = measured(service, a=1, b=2, dataset=dataset)
    data = CalibrationSet(*sample(3000, CLASSES, seed=7))
    fitted = TemperatureScaling().fit(CalibrationSet(*sample(1200, CLASSES)))
    expected = evaluate(
        fitted.apply_set(data), data.labels, before=Identity().fit(data).apply_set(data)
    )
    for row in expected.rows():
        words = " ".join(one for one in (row.before, row.after, row.change, row.interval) if one)
        assert words.replace("-", "\N{MINUS SIGN}") in row_of(page, row.metric.title), (
            row.metric.title
        )
    assert (
        "version 2 is measurably better calibrated than version 1".lower() in _words(page).lower()
    )
    other_way = measured(service, a=2, b=1, dataset=dataset)
    assert "version 1 is measurably worse than version 2" in _words(other_way).lower()


def test_segments_are_compared_too(service: Local, dataset: str) -> None:
    logits, labels = sample(3000, CLASSES, seed=9)
    segments = np.array(["app", "<web>"])[np.arange(3000) % 2]
    file = io.BytesIO()
    np.savez(file, logits=logits, labels=labels, segments=segments)
    made = service.post("/v1/datasets", content=file.getvalue(), headers=NPZ).json()["id"]
    page = measured(service, a=1, b=2, dataset=made)
    fitted = TemperatureScaling().fit(CalibrationSet(*sample(1200, CLASSES)))
    expected = evaluate(fitted.apply(logits), labels, segments=segments).by_segment
    for row in expected:
        assert f"{100 * row.after.ece:.2f} %" in row_of(page, row.name)
    assert "“Before” is version 1, and “after” is version 2." in _words(page)
    assert "By segment" not in measured(service, a=1, b=2, dataset=dataset)


def test_both_diagrams_stand_side_by_side(service: Local, dataset: str) -> None:
    page = measured(service, a=1, b=2, dataset=dataset)
    (found,) = re.findall(r'data-chart="([^"]*)"', page)
    left, right = json.loads(html.unescape(found))["hconcat"]
    assert left["title"]["text"] == "version 1, identity"
    assert right["title"]["text"] == "version 2, temperature"
    for panel in (left, right):
        assert sum(one["count"] for one in panel["data"]["values"]) == 3000


def test_rows_that_a_version_was_fitted_on_give_no_verdict(service: Local) -> None:
    body = npz(*sample(1200, CLASSES))
    id = service.post("/v1/datasets", content=body, headers=NPZ).json()["id"]
    with service.app.state.parts.database.write() as store:
        seen = update(versions).where(versions.c.number == 2)
        store.session.execute(seen.values(dataset_sha256=hashlib.sha256(body).hexdigest()))
    page = measured(service, a=1, b=2, dataset=id)
    words = _words(page)
    assert "No verdict: version 2 was fitted on these rows" in words
    assert "(used for fitting)" in words
    assert "measurably" not in words
    assert 'class="badge improved"' not in page.partition("How each version was judged")[0]


def test_rows_that_both_were_judged_on_are_compared(tmp_path: Path) -> None:
    data = CalibrationSet(*sample(2000, CLASSES))
    judged = [fit_and_judge(one, data) for one in (Identity(), TemperatureScaling())]
    with in_process(tmp_path) as client:
        for one in judged:
            rows = base64.b64encode(one.rows.dump()).decode()
            body = registration(one.map, report=one.report.to_dict(), judged_rows=rows)
            assert client.post("/v1/calibrators/fashion/versions", json=body).is_success
        page = measured(client, a=1, b=2)
        assert "Both versions were judged on these 400 rows" in _words(page)
        expected = compare(judged[0].rows, judged[1].rows)
        for row in expected.rows():
            assert row.after in row_of(page, row.metric.title)
        assert "Version 2 is measurably better calibrated than version 1." in _words(page)
        # the same rows in another format still count as fit rows of both
        logits, labels = sample(2000, CLASSES)
        csv = {"Content-Type": "text/csv"}
        made = client.post("/v1/datasets", content=_csv(logits, labels), headers=csv).json()["id"]
        words = _words(measured(client, a=1, b=2, dataset=made))
        assert "No verdict: both versions were fitted on these rows" in words


def _csv(logits: np.ndarray, labels: np.ndarray) -> str:
    head = [*(f"logit_{place}" for place in range(CLASSES)), "label"]
    rows = [
        [*map(repr, row.tolist()), str(label)] for row, label in zip(logits, labels, strict=True)
    ]
    return "\n".join(",".join(one) for one in [head, *rows])


def test_many_rows_are_measured_on_some_of_them(
    service: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparing, "MAX_ROWS", 1000)
    body = npz(*sample(3000, CLASSES, seed=8))
    dataset = service.post("/v1/datasets", content=body, headers=NPZ).json()["id"]
    words = _words(measured(service, a=1, b=2, dataset=dataset))
    assert "1,000 rows, sampled from the 3,000 rows of the dataset" in words


def test_without_the_scope_reports_alone_are_compared(local: Local) -> None:
    for _ in range(2):
        local.post("/v1/calibrators/fashion/versions", json=without_rows())
    body = npz(*sample(600, CLASSES))
    dataset = local.post("/v1/datasets", content=body, headers=NPZ).json()["id"]
    with signed_in(local, Scope.PREDICT, name="reader") as reader:
        page = reader.get(PATH)
        check_page(page)
        assert dataset not in page.text
        assert "with a key that has the fit scope, you can compare" in _words(page.text).lower()
        assert "improved" in row_of(page.text, "version 1, temperature")
        assert reader.get(PATH, params={"dataset": dataset}).status_code == 403


@pytest.mark.parametrize(
    ("asked", "status", "told"),
    [
        ({"a": 2, "b": 2}, 422, "choose two different versions"),
        ({"a": 1, "b": 99}, 404, "has no version 99"),
        ({"a": 0, "b": 1}, 422, "greater than or equal to 1"),
        ({"a": 1, "b": 2, "dataset": "ds_0"}, 404, "no such dataset"),
    ],
)
def test_impossible_comparisons_are_explained(
    local: Local, asked: dict[str, Any], status: int, told: str
) -> None:
    for _ in range(2):
        local.post("/v1/calibrators/fashion/versions", json=without_rows())
    answer = local.get(PATH, params=asked, headers=HTML)
    assert answer.status_code == status
    assert told in check_page(answer).words


def test_a_single_version_is_compared_with_a_default(local: Local) -> None:
    def shown(**asked: int) -> str:
        words = _words(local.get(PATH, params=asked, headers=HTML).text)
        return re.search(r"Version (\d) and version (\d)", words)[0]

    local.post("/v1/calibrators/fashion/versions", json=without_rows())
    alone = local.get(PATH, headers=HTML)
    assert alone.status_code == 409
    assert "does not have two versions to compare" in check_page(alone).words
    for _ in range(2):
        local.post("/v1/calibrators/fashion/versions", json=without_rows())
    assert shown() == "Version 2 and version 3"
    assert shown(b=1) == "Version 2 and version 1"
    local.put("/v1/calibrators/fashion/aliases/production", json={"version": 1})
    assert shown() == "Version 1 and version 3"
    assert shown(b=2) == "Version 1 and version 2"
    assert shown(b=1) == "Version 2 and version 1"


def test_nothing_is_measured_without_a_chosen_dataset(local: Local) -> None:
    for _ in range(2):
        local.post("/v1/calibrators/fashion/versions", json=without_rows())
    local.post("/v1/datasets", content=npz(*sample(600, CLASSES)), headers=NPZ)
    page = local.get(PATH, headers=HTML).text
    assert "Choose a dataset that neither was fitted on" in _words(page)
    assert "data-busy" not in page


def test_versions_of_other_input_explain_why_they_cannot_be_measured(
    service: Local, dataset: str
) -> None:
    words = _words(measured(service, a=3, b=2, dataset=dataset))
    assert "this map takes logits of 3 classes, got logits of 5" in words


def test_a_dataset_without_bytes_is_reported_and_retried(service: Local) -> None:
    body = npz(*sample(500, CLASSES, seed=9))
    id = service.post("/v1/datasets", content=body, headers=NPZ).json()["id"]
    parts = service.app.state.parts
    digest = hashlib.sha256(body).hexdigest()
    parts.blobs.delete(dataset_key(parts.keys.anyone.workspace, id, digest))
    assert "are missing" in _words(measured(service, a=1, b=2, dataset=id))
    service.post("/v1/datasets", content=body, headers=NPZ)
    assert "500 rows of the dataset" in _words(measured(service, a=1, b=2, dataset=id))


def _words(page: str) -> str:
    return " ".join(Shell(page).words.split())
