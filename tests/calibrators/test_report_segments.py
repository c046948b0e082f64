"""The segments of a report: their figures, their order, and their number."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from helpers.samples import draw

from calibrators import CalibrationSet, DataError, Report, evaluate, fit_and_judge
from calibrators.methods.segmented import Segmented
from calibrators.methods.temperature import TemperatureScaling
from calibrators.numerics.softmax import softmax
from calibrators.report.by_segment import MAX_REPORTED
from calibrators.segments import Segments

NAMES = np.array(["web", "app", "<i>kiosk</i>"])
MARKUP = "<i>kiosk</i>"


def two_scales(n: int, seed: int = 0) -> CalibrationSet:
    """Return rows: calibrated for web, overconfident for app and for kiosk, which has few rows."""
    data = draw(n, 5, temperature=1.0, seed=seed, dtype=np.float64)
    names = np.random.default_rng(seed).choice(NAMES, size=n, p=[0.6, 0.35, 0.05])
    factor = np.where(names == "web", 1.0, 2.0)[:, np.newaxis]
    return CalibrationSet(data.logits * factor, data.labels, names)


@pytest.fixture(scope="module")
def report() -> Report:
    data = two_scales(4000)
    p = softmax(data.logits)
    return evaluate(
        softmax(data.logits / 1.3), data.labels, before=p, segments=data.segments, draws=2
    )


def test_each_segment_has_the_figures_of_its_own_rows(report: Report) -> None:
    data = two_scales(4000)
    assert data.segments is not None
    assert report.segments == 3
    assert {row.name for row in report.by_segment} == set(NAMES)
    assert sum(row.rows for row in report.by_segment) == report.n
    for row in report.by_segment:
        chosen = data.segments.rows(data.segments.names.index(row.name))
        part = data.take(chosen)
        alone = evaluate(
            softmax(part.logits / 1.3), part.labels, before=softmax(part.logits), draws=2
        )
        assert row.rows == alone.n
        for name, side in alone.sides.items():
            told = getattr(row, name)
            p = softmax(part.logits / (1.3 if name == "after" else 1))
            assert told.ece == pytest.approx(side.metrics["ece"], rel=1e-5)
            assert told.accuracy == pytest.approx(side.metrics["accuracy"], rel=1e-5)
            assert told.confidence == pytest.approx(p.max(axis=1).mean(), rel=1e-5)
            assert told.noise_floor.mean == pytest.approx(side.noise_floor.mean, rel=1e-5)
            assert told.noise_floor.quantile95 == pytest.approx(
                side.noise_floor.quantile95, rel=1e-5
            )


def test_the_one_farthest_above_its_floor_is_first(report: Report) -> None:
    excess = [row.after.ece - row.after.noise_floor.quantile95 for row in report.by_segment]
    assert excess == sorted(excess, reverse=True)
    assert report.by_segment[0].name == "app"


def test_segments_of_a_single_row_do_not_come_first_by_chance() -> None:
    """Half of 80 calibrated single rows are wrong; the app is 20 points off in 500 rows."""
    p = np.concatenate([np.full(80, 0.9), np.full(500, 0.9)])
    right = np.concatenate([np.arange(80) < 40, np.arange(500) < 350])
    names = [f"single {place}" for place in range(80)] + ["app"] * 500
    found = evaluate(np.stack([p, 1 - p], axis=1), (~right).astype(int), segments=names, draws=2)
    assert max(row.after.ece for row in found.by_segment[1:]) == pytest.approx(0.9)
    assert found.by_segment[0].name == "app"


def test_the_segments_with_the_most_rows_are_kept() -> None:
    sizes = np.random.default_rng(0).permutation(np.arange(1, 151))
    data = draw(sizes.sum(), 3)
    names = np.repeat(np.arange(150), sizes)
    found = evaluate(softmax(data.logits), data.labels, segments=names, draws=2)
    assert (found.segments, len(found.by_segment)) == (150, MAX_REPORTED)
    assert {row.rows for row in found.by_segment} == set(range(51, 151))
    assert all(row.before is None for row in found.by_segment)


def test_names_are_text_or_integers_one_for_each_row() -> None:
    p, labels = [[0.9, 0.1], [0.6, 0.4]], [0, 1]
    found = evaluate(p, labels, segments=[7, 9], draws=2)
    assert {row.name for row in found.by_segment} == {"7", "9"}
    with pytest.raises(DataError, match="2 rows but 3 segments"):
        evaluate(p, labels, segments=["a", "b", "c"], draws=2)
    with pytest.raises(DataError, match="2 rows but 3 segments") as caught:
        evaluate(p, labels, segments=Segments.of(["a", "b", "c"]), draws=2)
    assert caught.value.code == "segments_length"


def test_it_survives_json(report: Report) -> None:
    text = json.dumps(report.to_dict(), allow_nan=False)
    assert Report.from_dict(json.loads(text)).by_segment == report.by_segment


def test_a_report_without_segments_has_none_and_an_older_one_can_be_read(report: Report) -> None:
    stored = report.to_dict()
    for name in ("segments", "by_segment"):
        del stored[name]
    read = Report.from_dict(stored)
    assert (read.segments, read.by_segment) == (0, ())
    assert read.metrics == report.metrics
    assert "segment" not in read.summary()
    data = draw(200, 3)
    assert evaluate(softmax(data.logits), data.labels, draws=2).by_segment == ()


def test_a_hundred_segments_stay_small() -> None:
    data = draw(3000, 10)
    p = softmax(data.logits)
    names = [f"segment number {place % 500}" for place in range(3000)]
    with_them = evaluate(p, data.labels, before=p, segments=names, draws=2)
    without = evaluate(p, data.labels, before=p, draws=2)
    assert with_them.segments == 500
    added = len(json.dumps(with_them.to_dict())) - len(json.dumps(without.to_dict()))
    assert added < 40_000


def test_the_page_and_the_summary_show_segments(report: Report, tmp_path: Any) -> None:
    page = report.save(tmp_path / "report.html").read_text()
    assert "<h2>By segment</h2>" in page
    assert "all 3 segments, sorted by the ECE minus the 95 % quantile of its noise floor" in page
    assert "&lt;i&gt;kiosk&lt;/i&gt;" in page
    assert MARKUP not in page
    for row in report.by_segment:
        assert f"{100 * row.after.ece:.2f} %<small>floor" in page
    assert "worst of 3 segments: app (ECE" in report.summary()


def test_the_page_counts_omitted_segments(tmp_path: Any) -> None:
    data = draw(600, 3)
    found = evaluate(softmax(data.logits), data.labels, segments=np.arange(600) % 150, draws=2)
    page = found.save(tmp_path / "report.html").read_text()
    assert "10 of 150 segments" in page
    assert "the next 90" in page
    assert "50 smaller segments are not shown" in page
    assert "worst of the 100 largest of 150 segments: " in found.summary()
    assert "segment" not in evaluate(softmax(data.logits), data.labels, draws=2).summary()


@pytest.mark.parametrize("rows", [600, 4000])
def test_every_judged_fit_reports_segments(rows: int) -> None:
    _, found = fit_and_judge(TemperatureScaling(), two_scales(rows))
    assert found.segments == 3
    assert sum(row.rows for row in found.by_segment) == found.n
    assert all(row.before is not None for row in found.by_segment)


@pytest.mark.parametrize("rows", [600, 4000])
def test_segmented_is_judged_by_the_segment_of_each_row(rows: int) -> None:
    data = two_scales(rows)
    plain = fit_and_judge(TemperatureScaling(), data).report
    segmented = fit_and_judge(Segmented(), data).report
    assert (segmented.metrics["nll"] or 9) < (plain.metrics["nll"] or 0)
    told = {row.name: row.after for row in segmented.by_segment}
    assert told["app"].excess < {row.name: row.after for row in plain.by_segment}["app"].excess
    assert segmented.fit["segments"][0]["name"] == MARKUP


def test_an_evaluation_set_needs_segments_where_the_method_does() -> None:
    data, other = two_scales(600), two_scales(500, seed=1)
    judged = fit_and_judge(Segmented(), data, evaluation=other)
    assert judged.report.segments == 3
    bare = CalibrationSet(other.logits, other.labels)
    with pytest.raises(DataError, match="must name the segment of each row"):
        fit_and_judge(Segmented(), data, evaluation=bare)
    assert fit_and_judge(TemperatureScaling(), data, evaluation=bare).report.by_segment == ()
