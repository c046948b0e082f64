"""A method that fell back to temperature scaling is marked wherever its version is shown."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from helpers.dashboard_pages import HTML, Shell, check_page, row_of
from helpers.live_service import in_process
from helpers.registration import registration

from calibrators import CalibrationSet, CalibrationWarning, fit_and_judge
from calibrators.fitting.evaluation import Judged
from calibrators.methods.temperature import TemperatureScaling
from calibrators.methods.vector import VectorScaling
from calibrators.report import html_page
from calibrd.models import Version, read

EXPECTED_OUTPUT = (
    "vector fell back to temperature scaling: every prediction on the fit set is correct"
)


def hopeless() -> Judged:
    """Fit vector scaling on rows that are all correct, so that there is nothing to learn."""
    logits = np.random.default_rng(0).normal(size=(300, 4)) * 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        return fit_and_judge(VectorScaling(), CalibrationSet(logits, logits.argmax(axis=1)))


@pytest.fixture(scope="module")
def judged() -> Judged:
    return hopeless()


def test_the_map_and_the_report_show_it(judged: Judged) -> None:
    assert judged.map.fit_info["fallback"]["method"] == "vector"
    assert EXPECTED_OUTPUT in judged.report.summary()
    assert EXPECTED_OUTPUT in html_page.render(judged.report)
    assert EXPECTED_OUTPUT in judged.report._repr_html_()


def test_pages_and_the_sdk_show_it(judged: Judged, tmp_path: Path) -> None:
    with in_process(tmp_path) as client:
        body = registration(judged.map, report=judged.report.to_dict())
        made = client.post("/v1/calibrators/c/versions", json=body)
        assert made.status_code == 201, made.text
        assert made.json()["verdict_sentence"] == judged.report.verdict_sentence
        version = client.get("/calibrators/c/versions/1", headers=HTML)
        words = " ".join(check_page(version).words.split())
        assert f"V{EXPECTED_OUTPUT[1:]}" in words
        listed = client.get("/calibrators/c", headers=HTML).text
        assert "fell back to temperature" in row_of(listed, "1")
        assert EXPECTED_OUTPUT[1:] in listed
    found = read(Version, made.json())
    assert EXPECTED_OUTPUT in found.summary()
    assert EXPECTED_OUTPUT in found._repr_html_()


def test_the_verdict_is_explained_where_it_is_shown(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2000, 4)) * 2
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    made = fit_and_judge(TemperatureScaling(), CalibrationSet(3 * logits, labels))
    sentence = made.report.verdict_sentence
    with in_process(tmp_path) as client:
        body = registration(made.map, report=made.report.to_dict())
        version = client.post("/v1/calibrators/c/versions", json=body).json()
        assert version["verdict_sentence"] == sentence
        listed = client.get("/calibrators/c", headers=HTML).text
        assert f'title="{sentence[0].upper()}{sentence[1:]}"' in listed
        page_ = client.get("/calibrators/c/versions/1", headers=HTML).text
        assert f"improved {sentence[0].upper()}{sentence[1:]}." in " ".join(
            Shell(page_).words.split()
        )
    assert f"improved: {sentence}" in read(Version, version).summary()
