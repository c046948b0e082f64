"""Every refusal states the parameter, the rule, how many rows break it and the first row."""

from __future__ import annotations

import inspect
import re

import numpy as np
import pytest

from calibrators import metrics
from calibrators.metrics import TopLabel, ece, noise_floor, row_scores
from calibrators.metrics.catalogue import Metric, all_metrics
from calibrators.report.report import evaluate
from calibrators.scan import instances_of, modules_of

GOOD = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]])
LABELS = np.array([0, 1, 2])


def takes_probabilities(function: object) -> bool:
    if not inspect.isfunction(function):
        return False
    return list(inspect.signature(function).parameters)[:2] == ["probabilities", "labels"]


BY_PROBABILITIES = [
    function
    for function in (getattr(metrics, name) for name in metrics.__all__)
    if takes_probabilities(function)
]


def altered(row: int, column: int, value: float) -> np.ndarray:
    probabilities = GOOD.copy()
    probabilities[row, column] = value
    return probabilities


REFUSED = {
    "nan": (
        altered(1, 2, np.nan),
        LABELS,
        "probabilities must be finite (no NaN, no infinity) (1 invalid row, first row 1)",
    ),
    "infinite": (altered(2, 0, np.inf), LABELS, "probabilities must be finite"),
    "negative": (
        altered(2, 0, -0.1),
        LABELS,
        "probabilities must lie in [0, 1] (1 invalid row, first row 2)",
    ),
    "above one": (altered(0, 1, 1.1), LABELS, "probabilities must lie in [0, 1] (1 invalid row"),
    "sum": (
        altered(1, 0, 0.2),
        LABELS,
        "probabilities must sum to 1 in each row (1 invalid row, first row 1)",
    ),
    "logits": (
        [[4.0, -2.0], [3.0, 1.0]],
        [0, 1],
        "these look like logits: apply softmax or a calibration map first",
    ),
    "binary logits": ([4.0, -2.0], [0, 1], "these look like logits"),
    "three axes": (GOOD[None], LABELS, "probabilities must have shape (n, k), (n,) or (n, 1)"),
    "no rows": (np.empty((0, 3)), [], "probabilities must have at least one row"),
    "no classes": (np.empty((3, 0)), LABELS, "probabilities must have at least 2 classes"),
    "text": (np.array([["a", "b"]]), [0], "probabilities must be an array of numbers, got"),
    "label below": (
        GOOD,
        [0, -1, 2],
        "labels must lie in 0..2 (1 invalid row, first row 1)",
    ),
    "label above": (
        GOOD,
        [0, 3, 3],
        "labels must lie in 0..2 (2 invalid rows, first row 1)",
    ),
    "binary label": ([0.2, 0.9], [0, 2], "labels must lie in 0..1 (1 invalid row"),
    "float labels": (GOOD, [0.0, 1.0, 2.0], "labels must be integers, got float64"),
    "label matrix": (GOOD, LABELS[:, None], "labels must have shape (n,), got (3, 1)"),
    "too few labels": (GOOD, [0, 1], "there must be one label per row, got 2 for 3 rows"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_refused_with_its_reason(case: str) -> None:
    probabilities, labels, message = REFUSED[case]
    with pytest.raises(ValueError, match=re.escape(message)):
        ece(probabilities, labels)


@pytest.mark.parametrize("metric", BY_PROBABILITIES, ids=lambda metric: metric.__name__)
def test_every_metric_checks_its_input(metric) -> None:
    metric(GOOD, LABELS)
    with pytest.raises(ValueError, match="probabilities must be finite"):
        metric(altered(1, 2, np.nan), LABELS)
    with pytest.raises(ValueError, match=r"labels must lie in 0\.\.2"):
        metric(GOOD, [0, 1, 3])


def test_few_rows_outside_are_not_called_logits() -> None:
    with pytest.raises(ValueError, match="must lie in") as refusal:
        ece(altered(0, 0, 1.5), LABELS)
    assert "logits" not in str(refusal.value)


def test_a_bad_row_beyond_the_first_block_is_found_by_its_own_index() -> None:
    probabilities = np.tile(GOOD, (20_000, 1)).astype(np.float32)
    probabilities[41_234, 0] = np.nan
    with pytest.raises(ValueError, match="1 invalid row, first row 41234"):
        ece(probabilities, np.zeros(60_000, int))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ece(GOOD, LABELS, bins=0), "bins must be an integer of at least 1, got 0"),
        (lambda: ece(GOOD, LABELS, bins=2.5), "bins must be an integer of at least 1, got 2.5"),
        (lambda: metrics.mce(GOOD, LABELS, bins=-1), "bins must be"),
        (lambda: metrics.ada_ece(GOOD, LABELS, bins=0), "bins must be"),
        (lambda: metrics.sce(GOOD, LABELS, bins=0), "bins must be"),
        (lambda: metrics.classwise_ece(GOOD, LABELS, bins=0), "bins must be"),
        (lambda: metrics.ece_debiased(GOOD, LABELS, bins=0), "bins must be"),
        (lambda: metrics.ece_sweep(GOOD, LABELS, max_bins=0), "max_bins must be"),
        (
            lambda: metrics.ece_sweep(GOOD, LABELS, binning="size"),
            "binning must be 'mass' or 'width', got 'size'",
        ),
        (lambda: metrics.smce(GOOD, LABELS, cells=0), "cells must be"),
        (lambda: metrics.equal_mass([0.5], [True], bins=0), "bins must be"),
        (lambda: metrics.top_k_error(GOOD, LABELS, k=0), "k must be an integer of at least 1"),
        (lambda: metrics.kde_ece(GOOD, LABELS, bandwidth=0.0), "bandwidth must be positive"),
        (lambda: metrics.soft_ece(GOOD, LABELS, lam=0.0), "lam must be positive and finite"),
        (lambda: metrics.soft_ece(GOOD, LABELS, delta=-1.0), "delta must be at least 0"),
        (lambda: noise_floor([0.5], draws=0), "draws must be an integer of at least 1"),
        (lambda: noise_floor([]), "confidence must have shape (n,) with n >= 1"),
        (lambda: noise_floor([0.5, np.nan]), "confidence must lie in [0, 1] (1 invalid row"),
        (
            lambda: TopLabel([0.5, 1.5], [True, True]),
            "confidence must lie in [0, 1] (1 invalid row",
        ),
        (lambda: TopLabel([0.5], [True, True]), "correct must have shape (1,) like confidence"),
        (
            lambda: TopLabel([0.5, 0.5], [1, 2]),
            "correct must be True or False (or 1 and 0) (1 invalid row",
        ),
        (lambda: ece(GOOD), "labels are required with probabilities"),
        (lambda: ece(TopLabel([0.5], [True]), [0]), "labels must be omitted if a TopLabel"),
        (
            lambda: metrics.ood_auroc(GOOD, [[0.5, 0.5]]),
            "the same number of classes as probabilities_in",
        ),
        (lambda: metrics.ood_auroc(GOOD, altered(0, 0, 3.0)), "probabilities_out must lie in"),
        (
            lambda: metrics.calibration_intervals(row_scores(GOOD, LABELS), level=1.0),
            "level must be above 0 and at most 1 - 1e-9, got 1.0",
        ),
        (
            lambda: metrics.calibration_intervals(row_scores(GOOD, LABELS), draws=1),
            "draws must be an integer of at least 2",
        ),
        (
            lambda: metrics.calibration_intervals(row_scores(GOOD, LABELS), bins=0),
            "bins must be an integer of at least 1",
        ),
        (
            lambda: metrics.paired_intervals(
                row_scores(GOOD, LABELS), row_scores(GOOD[:2], LABELS[:2])
            ),
            "before and after must have the same rows, got 3 and 2 rows",
        ),
    ],
)
def test_bad_options_are_refused(call, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


def test_rounding_noise_is_accepted() -> None:
    probabilities = np.array([[1 + 1e-9, -1e-9], [0.5004, 0.5]])
    assert ece(probabilities, [0, 0]) == pytest.approx(0.4996 / 2, abs=1e-8)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("order", ["C", "F"])
def test_layout_and_precision_do_not_matter(sample, dtype, order) -> None:
    probabilities, labels = sample(500)
    given = np.asarray(probabilities, dtype=dtype, order=order)
    assert ece(given, labels.astype(np.uint8)) == pytest.approx(
        ece(probabilities, labels), abs=1e-6
    )


def test_binary_shapes_agree(sample) -> None:
    probabilities, labels = sample(400, classes=2)
    second = probabilities[:, 1]
    for metric in (metrics.ece, metrics.brier, metrics.nll, metrics.classwise_ece):
        expected = metric(probabilities, labels)
        assert metric(second, labels) == pytest.approx(expected, abs=1e-12)
        assert metric(second[:, None], labels) == pytest.approx(expected, abs=1e-12)
        assert metric(second, labels == 1) == pytest.approx(expected, abs=1e-12)
    assert ece(second, labels) > 0.001


def test_everything_public_is_in_the_package() -> None:
    listed = {name for module in modules_of(metrics) for name in getattr(module, "__all__", ())}
    assert listed == set(metrics.__all__)
    assert {"BinTable", "ece", "noise_floor"} <= listed
    assert len(BY_PROBABILITIES) >= 24


def test_every_metric_of_a_report_is_a_public_function() -> None:
    records = list(all_metrics().values())
    assert all(one.function in [*BY_PROBABILITIES, metrics.ood_auroc] for one in records)
    assert len({one.title for one in records}) == len({one.position for one in records})
    assert len(instances_of(metrics, Metric)) == len(records)


def test_a_report_measures_what_the_functions_do(sample) -> None:
    probabilities, labels = sample(500, classes=6)
    report = evaluate(probabilities, labels, draws=20)
    assert set(report.metrics) == set(all_metrics()) - {"ood_auroc"}
    for name, value in report.metrics.items():
        assert value == pytest.approx(all_metrics()[name].function(probabilities, labels))


def test_a_report_has_the_auroc_of_rows_from_elsewhere_if_they_are_given(sample) -> None:
    probabilities, labels = sample(500, classes=6)
    elsewhere = np.full((200, 6), 1 / 6) * 0.5 + 0.5 * sample(200, classes=6)[0]
    sharp = probabilities**2 / (probabilities**2).sum(axis=1, keepdims=True)
    outside = elsewhere**2 / (elsewhere**2).sum(axis=1, keepdims=True)
    report = evaluate(
        probabilities, labels, before=sharp, ood=elsewhere, ood_before=outside, draws=20
    )
    after = metrics.ood_auroc(probabilities, elsewhere)
    assert after > 0.7
    assert report.metrics["ood_auroc"] == pytest.approx(after)
    assert report.before.metrics["ood_auroc"] == pytest.approx(metrics.ood_auroc(sharp, outside))
    assert "AUROC of out-of-distribution rows" in report.summary()
    assert "ood_auroc" in report.to_frame().index


@pytest.mark.parametrize("given", [{"ood": GOOD, "before": GOOD}, {"ood_before": GOOD}])
def test_rows_from_elsewhere_are_needed_on_both_sides(given: dict[str, np.ndarray]) -> None:
    with pytest.raises(ValueError, match="pass ood_before if and only if both before and ood"):
        evaluate(GOOD, LABELS, draws=20, **given)
