"""Reports and verdicts for a known truth."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binomtest

from calibrators.data import CalibrationSet
from calibrators.errors import DataError, ExportError, ParameterError
from calibrators.fitting.evaluation import fit_and_judge
from calibrators.methods.temperature import TemperatureScaling
from calibrators.metrics import Interval, class_table, classwise_ece, ece, equal_width
from calibrators.metrics.catalogue import all_metrics
from calibrators.numerics.softmax import softmax
from calibrators.report.measurement import margins_of, wilson
from calibrators.report.report import Report, evaluate
from calibrators.report.verdict import Gate, Verdict, decide, gate, rooted


def truth(n: int, k: int = 10, seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return logits, and labels drawn from their softmax: a perfectly calibrated model."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, k)) * 2
    return logits, (logits + rng.gumbel(size=(n, k))).argmax(axis=1)


@pytest.fixture(scope="module")
def fixed() -> Report:
    """Return an overconfident model (T = 1/3), before and after its true temperature."""
    logits, labels = truth(3000)
    return evaluate(softmax(logits), labels, before=softmax(3 * logits), draws=300)


def change(low: float, high: float) -> Interval:
    return Interval((low + high) / 2, low, high, 0.95)


BELOW, SAME, ABOVE = change(-0.2, -0.1), change(-0.1, 0.1), change(0.1, 0.2)


@pytest.mark.parametrize(
    ("calibration", "nll", "accuracy", "expected"),
    [
        (BELOW, BELOW, SAME, Verdict.IMPROVED),
        (BELOW, SAME, SAME, Verdict.IMPROVED),
        (BELOW, SAME, ABOVE, Verdict.IMPROVED),
        (BELOW, SAME, BELOW, Verdict.TRADE_OFF),
        (BELOW, ABOVE, SAME, Verdict.TRADE_OFF),
        (SAME, BELOW, SAME, Verdict.NO_MEASURABLE_CHANGE),
        (SAME, SAME, SAME, Verdict.NO_MEASURABLE_CHANGE),
        (SAME, SAME, ABOVE, Verdict.NO_MEASURABLE_CHANGE),
        (SAME, SAME, BELOW, Verdict.WORSE),
        (SAME, ABOVE, SAME, Verdict.WORSE),
        (ABOVE, BELOW, ABOVE, Verdict.WORSE),
        (ABOVE, SAME, SAME, Verdict.WORSE),
        (ABOVE, ABOVE, SAME, Verdict.WORSE),
        (change(-0.1, 0.0), SAME, SAME, Verdict.NO_MEASURABLE_CHANGE),
        (change(np.nan, np.nan), SAME, SAME, Verdict.NO_MEASURABLE_CHANGE),
        (BELOW, SAME, change(np.nan, np.nan), Verdict.IMPROVED),
    ],
)
def test_every_verdict_of_the_three_intervals(
    calibration: Interval, nll: Interval, accuracy: Interval, expected: Verdict
) -> None:
    found = {"debiased_squared_error": calibration, "nll": nll, "accuracy": accuracy}
    assert decide(100, found) is expected
    assert decide(99, found) is Verdict.INSUFFICIENT_DATA
    assert expected.meaning
    assert json.dumps(expected) == f'"{expected.value}"'


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (-0.0001, 0.0004, Gate.PASS),
        (-0.0002, -0.0001, Gate.PASS),
        (0.0003, 0.0005, Gate.INSUFFICIENT_DATA),
        (0.00041, 0.0005, Gate.FAIL),
        (np.nan, np.nan, Gate.INSUFFICIENT_DATA),
    ],
)
def test_a_gate_compares_roots_with_its_limit(low: float, high: float, expected: Gate) -> None:
    assert gate(rooted(change(low, high)), 0.02) is expected


@pytest.mark.parametrize("limit", [-0.01, np.nan, np.inf])
def test_a_gate_refuses_an_invalid_limit(limit: float) -> None:
    with pytest.raises(ParameterError, match="limit"):
        gate(SAME, limit)


@pytest.mark.parametrize(("confidence", "limit"), [(0.999, 0.03), (0.9999, 0.01), (0.999, 0.0005)])
def test_rows_that_are_all_right_do_not_decide(confidence: float, limit: float) -> None:
    """100 correct rows of 100 are not rare at an accuracy of 0.965 or 0.999."""
    rows = np.tile([confidence, 1 - confidence], (100, 1))
    assert evaluate(rows, np.zeros(100, int), draws=100).gate(limit) is Gate.INSUFFICIENT_DATA
    many = evaluate(np.tile(rows, (100, 1)), np.zeros(10_000, int), draws=100)
    assert many.gate(0.03) is Gate.PASS


def test_a_bin_of_equal_outcomes_can_break_a_limit() -> None:
    rows = np.tile([0.6, 0.4], (200, 1))
    assert evaluate(rows, np.zeros(200, int), draws=100).gate(0.1) is Gate.FAIL


def test_a_report_gates_only_with_enough_rows(fixed: Report) -> None:
    assert fixed.gate(0.2) is Gate.PASS
    assert evaluate(*few_rows(50), draws=100).gate(0.9) is Gate.INSUFFICIENT_DATA


def few_rows(n: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    logits, labels = truth(n, 3)
    return softmax(logits), labels


def test_the_true_temperature_improves_and_a_wrong_one_worsens(fixed: Report) -> None:
    assert fixed.verdict is Verdict.IMPROVED
    assert fixed.change["debiased_squared_error"].high < 0
    assert fixed.change["accuracy"].low == fixed.change["accuracy"].high == 0
    logits, labels = truth(3000)
    spoilt = evaluate(softmax(0.4 * logits), labels, before=softmax(logits), draws=300)
    assert spoilt.verdict is Verdict.WORSE


@pytest.mark.parametrize("seed", range(5))
def test_a_calibrated_model_shows_no_measurable_change(seed: int) -> None:
    logits, labels = truth(2000, seed=seed)
    report = evaluate(softmax(logits / 1.01), labels, before=softmax(logits), draws=200)
    assert report.verdict is Verdict.NO_MEASURABLE_CHANGE
    assert report.before is not None
    assert (report.before.metrics["ece"] or 0) < 1.3 * report.before.noise_floor.quantile95


def test_few_rows_are_insufficient_and_one_side_has_no_verdict() -> None:
    probabilities, labels = few_rows(99)
    report = evaluate(probabilities, labels, before=probabilities, draws=100)
    assert report.verdict is Verdict.INSUFFICIENT_DATA
    alone = evaluate(probabilities, labels, draws=100)
    assert (alone.verdict, alone.before, alone.change) == (None, None, {})
    assert "top_5_error" not in alone.metrics


def test_reliability_tables_add_up(fixed: Report) -> None:
    for side in fixed.sides.values():
        for bins, name in ((side.equal_width, "ece"), (side.equal_mass, "ada_ece")):
            assert sum(one.count for one in bins) == pytest.approx(fixed.n)
            errors = sum(one.count * abs(one.gap) for one in bins if one.gap is not None)
            assert errors / fixed.n == pytest.approx(side.metrics[name], abs=1e-12)
            for one in bins:
                if one.accuracy is None:
                    assert one.count == 0
                else:
                    low, high = one.accuracy_low, one.accuracy_high
                    assert low is not None
                    assert high is not None
                    assert 0 <= low <= one.accuracy + 1e-12
                    assert one.accuracy - 1e-12 <= high <= 1


def test_every_metric_is_titled_and_agrees_with_its_interval(fixed: Report) -> None:
    assert set(fixed.metrics) == set(all_metrics()) - {"ood_auroc"}
    assert all(metric.meaning.endswith(".") for metric in all_metrics().values())
    for side in fixed.sides.values():
        for name, interval in side.intervals.items():
            assert interval.value == pytest.approx(side.metrics[name], abs=1e-12)
            assert interval.low <= interval.value <= interval.high


def test_wilson_agrees_with_scipy() -> None:
    low, high = wilson(np.array([0.0, 0.3, 1.0]), np.array([7.0, 50.0, 3.0]), 0.9)
    for place, (hits, n) in enumerate(((0, 7), (15, 50), (3, 3))):
        expected = binomtest(hits, n).proportion_ci(0.9, method="wilson")
        assert (low[place], high[place]) == pytest.approx(tuple(expected), abs=1e-12)


def test_thirds_of_the_margin_partition_the_rows(fixed: Report) -> None:
    assert [third.name for third in fixed.by_margin] == ["low", "middle", "high"]
    assert [third.count for third in fixed.by_margin] == [1000, 1000, 1000]
    for lower, upper in zip(fixed.by_margin, fixed.by_margin[1:], strict=False):
        assert (lower.upper or 0) < (upper.lower or 0)
    for third in fixed.by_margin:
        for side in (third.before, third.after):
            assert side is not None
            assert sum(one.count for one in side.equal_width) == third.count
            assert sum(one.count for one in side.equal_mass) == pytest.approx(third.count)
    for name, whole in fixed.sides.items():
        parts = sum(third.count * getattr(third, name).ece for third in fixed.by_margin)
        assert parts / fixed.n >= (whole.metrics["ece"] or 0) - 1e-12


def test_classes_are_those_of_the_class_wise_error_worst_first(fixed: Report) -> None:
    _, labels = truth(3000)
    assert sorted(row.label for row in fixed.by_class) == list(range(10))
    for name, side in fixed.sides.items():
        kept = [getattr(row, name) for row in fixed.by_class]
        assert np.mean([one.ece for one in kept]) == pytest.approx(
            side.metrics["classwise_ece"], rel=1e-5
        )
        assert sum(one.predicted for one in kept) == fixed.n
        assert sum(one.probability for one in kept) == pytest.approx(1, abs=1e-5)
        for row, one in zip(fixed.by_class, kept, strict=True):
            assert abs(row.frequency - one.probability) <= one.ece + 1e-5
    after = [row.after.ece for row in fixed.by_class]
    assert after == sorted(after, reverse=True)
    assert [row.rows for row in fixed.by_class] == [
        np.count_nonzero(labels == row.label) for row in fixed.by_class
    ]


def test_a_class_error_is_the_binary_error_of_its_probability() -> None:
    probabilities, labels = few_rows(400)
    table = class_table(probabilities, labels, bins=7)
    assert table.mean_ece == classwise_ece(probabilities, labels, bins=7)
    for label in range(3):
        bins = equal_width(probabilities[:, label], labels == label, bins=7)
        assert table.ece[label] == pytest.approx(bins.ece(), abs=1e-12)


def test_the_fifty_worst_of_a_thousand_classes_are_kept() -> None:
    logits, labels = truth(1500, 1000)
    probabilities = softmax(logits)
    report = evaluate(probabilities, labels, before=softmax(3 * logits), draws=2)
    errors = class_table(probabilities, labels).ece
    assert errors.mean() == pytest.approx(report.metrics["classwise_ece"], abs=1e-15)
    kept = [row.label for row in report.by_class]
    assert len(set(kept)) == 50
    assert errors[kept].min() >= np.delete(errors, kept).max()
    assert errors[kept] == pytest.approx([row.after.ece for row in report.by_class], rel=1e-5)


def test_a_report_stays_small() -> None:
    logits, labels = truth(1500, 1000)
    _, report = fit_and_judge(TemperatureScaling(), CalibrationSet(3 * logits, labels))
    assert report.temperatures
    assert len(json.dumps(report.to_dict())) < 90_000


def test_a_report_older_than_classes_and_temperatures_can_be_read(fixed: Report) -> None:
    stored = fixed.to_dict()
    for name in ("by_class", "temperatures"):
        del stored[name]
    read = Report.from_dict(stored)
    assert (read.by_class, read.temperatures) == ((), ())
    assert read.metrics == fixed.metrics


def test_the_order_of_rows_does_not_matter_even_with_ties_and_certainty() -> None:
    logits, labels = truth(600, 4)
    probabilities = np.round(softmax(3 * logits), 1)
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    order = np.random.default_rng(1).permutation(600)
    one = evaluate(probabilities, labels, draws=2)
    two = evaluate(probabilities[order], labels[order], draws=2)
    assert np.isinf(margins_of(probabilities)).any()
    assert one.by_margin[-1].upper is None
    assert [third.count for third in one.by_margin] == [third.count for third in two.by_margin]
    assert [third.after.ece for third in one.by_margin] == pytest.approx(
        [third.after.ece for third in two.by_margin], abs=1e-12
    )
    for name, value in one.metrics.items():
        assert value == pytest.approx(two.metrics[name], abs=1e-9)


def test_margins_given_are_used_and_checked() -> None:
    probabilities, labels = few_rows(120)
    margin = np.arange(120.0)
    found = evaluate(probabilities, labels, margin=margin, draws=2)
    assert [(third.lower, third.upper) for third in found.by_margin] == [
        (0, 39),
        (40, 79),
        (80, 119),
    ]
    low = found.by_margin[0].after.ece
    assert low == pytest.approx(ece(probabilities[:40], labels[:40]))
    for wrong in (margin[1:], np.where(margin == 3, np.nan, margin)):
        with pytest.raises(DataError, match="margin"):
            evaluate(probabilities, labels, margin=wrong, draws=2)


def test_binary_probabilities_may_be_one_column() -> None:
    rng = np.random.default_rng(0)
    second = rng.random(300)
    labels = (rng.random(300) < second).astype(int)
    both = evaluate(np.column_stack((1 - second, second)), labels, draws=100)
    assert (
        evaluate(second, labels, draws=100) == evaluate(second[:, None], labels, draws=100) == both
    )


def test_before_must_be_of_the_same_shape() -> None:
    probabilities, labels = few_rows(120)
    with pytest.raises(DataError, match="before"):
        evaluate(probabilities, labels, before=np.full((120, 4), 0.25))


def test_a_report_survives_json(fixed: Report) -> None:
    certain = evaluate([[1.0, 0.0], [0.9, 0.1], [1.0, 0.0]], [0, 0, 0], draws=5)
    assert certain.metrics["refinement_auroc"] is None
    for report in (fixed.with_fit(value=np.float32(0.5), worst=float("inf")), certain):
        text = json.dumps(report.to_dict(), allow_nan=False)
        assert Report.from_dict(json.loads(text)) == report


@pytest.mark.parametrize(
    "junk", [{}, {"format": 1}, {"format": 2, "n": 3}, {"format": 2, "n": "3"}]
)
def test_anything_but_a_report_is_refused(junk: dict[str, object]) -> None:
    with pytest.raises(DataError, match="not a calibrd report"):
        Report.from_dict(junk)


def test_the_summary_shows_the_key_figures(fixed: Report) -> None:
    text = fixed.summary()
    for words in ("ECE, equal-width bins", "before", "95 % interval", "noise floor", "improved"):
        assert words in text
    assert max(map(len, text.splitlines())) <= 110
    assert repr(fixed).endswith("verdict='improved')")
    assert len(repr(fixed)) < 80


def test_notebooks_get_the_chart_and_the_table(fixed: Report) -> None:
    bundle = fixed._repr_mimebundle_(include=None, exclude=None)
    assert bundle["application/vnd.vegalite.v5+json"] == fixed.chart()
    assert bundle["text/plain"] == fixed.summary()


def test_saving_follows_the_suffix(fixed: Report, tmp_path: Path) -> None:
    assert fixed.save(tmp_path / "a.html").read_text().startswith("<!DOCTYPE html>")
    assert Report.from_dict(json.loads(fixed.save(tmp_path / "a.json").read_text())) == fixed
    assert fixed.save(tmp_path / "a.svg").read_text().startswith("<svg")
    assert fixed.save(str(tmp_path / "a.png")).read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ExportError, match=r"\.html"):
        fixed.save(tmp_path / "a.docx")


def test_reports_load_neither_torch_nor_the_chart_renderer() -> None:
    code = (
        "import sys, calibrators.report.report, calibrators.fitting.evaluation\n"
        "assert not {'torch', 'vl_convert', 'scipy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
