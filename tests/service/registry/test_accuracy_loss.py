"""A version that measurably loses accuracy is only promoted with force and a reason."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.dashboard_pages import HTML, Shell, check_page, row_of
from helpers.live_service import Local, in_process, sample, wait_until
from helpers.registration import registration

from calibrators import CalibrationSet, Report, fit_and_judge
from calibrators.comparison.judged_rows import JudgedRows
from calibrators.methods.temperature import TemperatureScaling
from calibrators.numerics.softmax import softmax

ALIAS = "/v1/calibrators/c/aliases/production"
PROMOTE = "/calibrators/c/promote"


def good() -> dict[str, Any]:
    """Return a temperature map judged on a held-out fifth."""
    made = fit_and_judge(TemperatureScaling(), CalibrationSet(*sample(2000, 5)))
    return registration(made.map, report=made.report.to_dict(), judged_rows=encoded(made.rows))


def worse_rows() -> dict[str, Any]:
    """Return the map with a valid report, whose judged rows lose a third of the correct labels."""
    data = CalibrationSet(*sample(2000, 5))
    made = fit_and_judge(TemperatureScaling(), data)
    noise = np.random.default_rng(0).normal(size=(made.rows.n, 5)) * 6
    wrong = softmax(data.logits[made.rows.index] + noise)
    rows = JudgedRows.of(data, made.rows.index, wrong, fitted_on=data)
    return registration(made.map, report=made.report.to_dict(), judged_rows=encoded(rows))


def lossy_report() -> dict[str, Any]:
    """Return a trade-off report that shows a loss of accuracy compared with the model."""
    made = fit_and_judge(TemperatureScaling(), CalibrationSet(*sample(2000, 5)))
    found = made.report.to_dict()
    found["change"]["accuracy"] = {"value": -0.297, "low": -0.32, "high": -0.27, "level": 0.95}
    found["metrics"]["accuracy"] = 0.471
    found["verdict"] = "trade_off"
    Report.from_dict(found)
    return registration(made.map, report=found)


def encoded(rows: JudgedRows) -> str:
    return base64.b64encode(rows.dump()).decode()


@pytest.fixture
def client(tmp_path: Path) -> Any:
    with in_process(tmp_path) as made:
        for body in (good(), worse_rows(), lossy_report()):
            answer = made.post("/v1/calibrators/c/versions", json=body)
            assert answer.status_code == 201, answer.text
        assert made.put(ALIAS, json={"version": 1}).status_code == 200
        yield made


def test_a_loss_against_the_version_in_production_needs_force(client: Local) -> None:
    refused = client.put(ALIAS, json={"version": 2})
    assert (refused.status_code, refused.json()["code"]) == (409, "needs_force")
    assert (
        "is less accurate than version 1 on rows that both were judged on"
        in refused.json()["detail"]
    )
    assert "95 % interval -" in refused.json()["detail"]
    assert client.put(ALIAS, json={"version": 2, "force": True}).status_code == 409
    forced = client.put(ALIAS, json={"version": 2, "force": True, "reason": "because"})
    assert forced.status_code == 200
    assert client.put(ALIAS, json={"version": 1}).status_code == 200  # a rollback needs no force
    fresh = "/v1/calibrators/c/aliases/fresh"
    # there is nothing to compare with
    assert client.put(fresh, json={"version": 2}).status_code == 200


def test_a_loss_against_the_model_itself_needs_force(client: Local) -> None:
    refused = client.put(ALIAS, json={"version": 3})
    assert (refused.status_code, refused.json()["code"]) == (409, "needs_force")
    assert "lowers the model's accuracy from 76.8 % to 47.1 %" in refused.json()["detail"]
    forced = client.put(ALIAS, json={"version": 3, "force": True, "reason": "because"})
    assert forced.status_code == 200
    assert "trade-off" in forced.json()["warning"]


def test_the_preview_shows_the_figures_with_intervals(client: Local) -> None:
    def look() -> str | None:
        page = client.get(PROMOTE, params={"version": 2}, headers=HTML)
        check_page(page)
        return None if "data-busy" in page.text else page.text

    page = wait_until(look)
    words = " ".join(Shell(page).words.split())
    assert "Compared with version 1 On 400 rows that both were judged on" in words
    assert "Compared with the uncalibrated model" in words
    assert "worse" in row_of(page, "accuracy")
    for title in ("accuracy", "Brier score", "NLL", "ECE, equal-width bins"):
        assert "[" in row_of(page, title)
    assert "AUROC of correct vs. wrong" in words
    assert 'name="force" value="yes" required' in page
    assert "is less accurate than version 1" in words


def test_missing_judged_rows_do_not_prevent_a_promotion(client: Local) -> None:
    blobs = client.app.state.parts.blobs
    for one in list(blobs.list()):
        if "/judged/" in one.key:
            blobs.delete(one.key)
    assert client.put(ALIAS, json={"version": 2}).status_code == 200
