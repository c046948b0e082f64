"""Binned calibration errors, compared with other libraries and known truths; unbiasedness."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrators.metrics import (
    TopLabel,
    ada_ece,
    classwise_ece,
    debiased_squared_error,
    ece,
    ece_debiased,
    ece_sweep,
    equal_mass,
    kde_ece,
    mce,
    sce,
    smce,
    smece,
    top_label,
)

TOP_LABEL = [ece, ada_ece, mce, ece_debiased, ece_sweep, smece, smce, kde_ece]


@pytest.mark.parametrize(("metric", "norm"), [(ece, "l1"), (mce, "max")])
@pytest.mark.parametrize("bins", [5, 15])
@pytest.mark.parametrize("sharpen", [1.0, 1.7])
def test_agrees_with_torchmetrics(sample, metric, norm: str, bins: int, sharpen: float) -> None:
    # imports transformers, which only the process of this test should load
    from torchmetrics.functional.classification import multiclass_calibration_error

    probabilities, labels = sample(5000, sharpen=sharpen)
    theirs = multiclass_calibration_error(
        torch.from_numpy(probabilities),
        torch.from_numpy(labels),
        num_classes=10,
        n_bins=bins,
        norm=norm,
    )
    assert metric(probabilities, labels, bins=bins) == pytest.approx(float(theirs), abs=1e-6)
    assert float(theirs) > 0.005


def test_large_float32_sample_keeps_every_digit(sample) -> None:
    probabilities, labels = sample(200_000, classes=3)
    single = probabilities.astype(np.float32)
    confidence = single.max(axis=1).astype(float)
    correct = single.argmax(axis=1) == labels
    reference = 0.0
    for b in range(15):
        inside = (confidence > b / 15) & (confidence <= (b + 1) / 15)
        reference += abs((correct - confidence)[inside].sum()) / labels.size
    assert ece(single, labels) == pytest.approx(reference, abs=1e-12)


@pytest.mark.parametrize("metric", [ece, ada_ece, ece_sweep, smece, smce, kde_ece])
def test_constant_gap_is_measured(constant_gap, metric) -> None:
    data = constant_gap(20_000, 0.15, np.random.default_rng(1))
    assert metric(*data) == pytest.approx(0.15, abs=0.015)


@pytest.mark.parametrize("metric", [ece, ada_ece, ece_debiased, ece_sweep, smece, smce, kde_ece])
def test_vanishes_for_a_calibrated_model(sample, metric) -> None:
    assert metric(*sample(100_000)) < 0.012
    assert metric(*sample(100_000, sharpen=1.5)) > 0.05


@pytest.mark.parametrize("adaptive", [False, True])
def test_classwise_vanishes_for_a_calibrated_model(sample, adaptive: bool) -> None:
    assert classwise_ece(*sample(50_000), adaptive=adaptive) < 0.006
    assert classwise_ece(*sample(50_000, sharpen=2.0), adaptive=adaptive) > 0.015


@pytest.mark.parametrize("metric", [*TOP_LABEL, debiased_squared_error])
def test_takes_a_top_label_instead(sample, metric) -> None:
    probabilities, labels = sample(2000, sharpen=1.4)
    assert metric(top_label(probabilities, labels)) == metric(probabilities, labels) > 0


@pytest.mark.parametrize("metric", [*TOP_LABEL, classwise_ece, sce, debiased_squared_error])
def test_order_of_rows_and_classes_does_not_matter(sample, metric) -> None:
    probabilities, labels = sample(700, classes=4, sharpen=1.4)
    random = np.random.default_rng(5)
    rows, columns = random.permutation(700), random.permutation(4)
    expected = metric(probabilities, labels)
    assert metric(probabilities[rows], labels[rows]) == pytest.approx(expected, abs=1e-12)
    renamed = np.argsort(columns)[labels]
    assert metric(probabilities[:, columns], renamed) == pytest.approx(expected, abs=1e-12)
    assert expected > 0


def squared_errors(constant_gap, gap: float, bins: int, size: int) -> np.ndarray:
    random = np.random.default_rng(7)
    found = []
    for _ in range(600):
        top = top_label(*constant_gap(size, gap, random))
        table = equal_mass(top.confidence, top.correct, bins)
        plain = np.nansum(table.count * table.gap**2) / table.count.sum()
        found.append((table.debiased_squared(), plain))
    return np.array(found)


@pytest.mark.parametrize("gap", [0.0, 0.15])
@pytest.mark.parametrize("bins", [5, 15])
def test_debiased_estimate_is_unbiased_and_the_plain_one_is_not(constant_gap, gap, bins) -> None:
    """The five tied confidences are shared between the bins, so this also tests the effective
    count: with the plain count and 15 bins, the mean would be 20 to 80 standard errors too low.
    """
    found = squared_errors(constant_gap, gap, bins, size=300)
    error = found.std(axis=0) / np.sqrt(len(found))
    off = (found.mean(axis=0) - gap**2) / error
    assert abs(off[0]) < 4
    assert off[1] > 8


def test_debiased_root_is_that_of_the_square(sample) -> None:
    data = sample(3000, sharpen=1.5)
    assert ece_debiased(*data) ** 2 == pytest.approx(debiased_squared_error(*data))
    calibrated = TopLabel([0.8] * 5, [1, 1, 1, 1, 0])
    assert debiased_squared_error(calibrated, bins=1) == pytest.approx(-0.04)
    assert ece_debiased(calibrated, bins=1) == 0.0


def test_sweep_stops_before_the_accuracies_fall() -> None:
    confidence = np.arange(1, 13) / 20
    correct = np.array([0, 0, 0, 1, 0, 1, 1, 1, 0, 1, 1, 1], bool)
    top = TopLabel(confidence, correct)
    rising = [
        bool(np.all(np.diff(equal_mass(confidence, correct, bins).accuracy) >= 0))
        for bins in range(1, 13)
    ]
    bins = rising.index(False)
    assert 1 < bins < 12
    assert ece_sweep(top) == pytest.approx(ada_ece(top, bins=bins))
    assert ece_sweep(top) != pytest.approx(ada_ece(top, bins=bins + 1))


@pytest.mark.parametrize("seed", range(6))
def test_sweep_over_equal_width_is_the_loop_of_the_paper(seed: int) -> None:
    """The paper adds bins (i/M, (i + 1)/M] while the accuracies of non-empty bins do not fall."""
    rng = np.random.default_rng(seed)
    confidence = rng.beta(4, 1.5, size=400)
    if seed % 2:
        confidence = confidence.round(2)  # many on the edges
    correct = rng.random(400) < confidence**3
    bins, error = 0, np.nan
    while True:
        bins += 1
        edges = np.arange(bins + 1) / bins
        place = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, bins - 1)
        masks = [place == one for one in range(bins) if (place == one).any()]
        accuracy = [correct[mask].mean() for mask in masks]
        if any(high < low for low, high in pairwise(accuracy)):
            break
        error = sum(abs((correct - confidence)[mask].sum()) for mask in masks) / 400
    assert ece_sweep(TopLabel(confidence, correct), binning="width") == pytest.approx(error)
    assert bins > 3


def test_sweep_keeps_to_its_limit_when_nothing_falls() -> None:
    top = TopLabel(np.linspace(0.1, 1, 3000), np.ones(3000, bool))
    assert ece_sweep(top, max_bins=4) == pytest.approx(0.45)


def naive_classwise(probabilities, labels, bins: int) -> float:
    total = 0.0
    for c in range(probabilities.shape[1]):
        for b in range(bins):
            column = probabilities[:, c]
            inside = (column > b / bins) & (column <= (b + 1) / bins)
            inside |= (b == 0) & (column == 0)
            if inside.any():
                gap = (labels[inside] == c).mean() - column[inside].mean()
                total += inside.mean() * abs(gap)
    return total / probabilities.shape[1]


@pytest.mark.parametrize("classes", [2, 7])
def test_classwise_is_the_definition(sample, classes: int) -> None:
    probabilities, labels = sample(900, classes=classes, sharpen=1.5)
    probabilities[0] = np.eye(classes)[0]
    expected = naive_classwise(probabilities, labels, 15)
    assert classwise_ece(probabilities, labels) == pytest.approx(expected, abs=1e-12)
    assert expected > 0.01


def test_adaptive_classwise_is_the_mean_of_one_against_the_rest(sample) -> None:
    probabilities, labels = sample(900, classes=5, sharpen=1.5)
    expected = np.mean([equal_mass(probabilities[:, c], labels == c, 15).ece() for c in range(5)])
    assert classwise_ece(probabilities, labels, adaptive=True) == pytest.approx(expected)


def test_sce_is_equation_17_and_not_below_ece_on_balanced_data(sample) -> None:
    probabilities, labels = sample(4000, classes=4)
    balanced = np.concatenate([np.flatnonzero(labels == c)[:500] for c in range(4)])
    probabilities, labels = probabilities[balanced], labels[balanced]
    expected = np.mean(
        [ece(top_label(probabilities[labels == c], labels[labels == c])) for c in range(4)]
    )
    assert sce(probabilities, labels) == pytest.approx(expected, abs=1e-12)
    assert sce(probabilities, labels) >= ece(probabilities, labels) > 0


def test_sce_leaves_out_absent_classes() -> None:
    assert sce([[0.8, 0.1, 0.1], [0.8, 0.1, 0.1]], [0, 1]) == pytest.approx(0.5)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=50),
    st.integers(1, 20),
)
def test_inequalities_between_metrics(pairs, bins) -> None:
    top = TopLabel(*map(list, zip(*pairs, strict=True)))
    bias = abs(float(top.residual.mean()))
    for value in (ece(top, bins=bins), ada_ece(top, bins=bins), smece(top), smce(top)):
        assert bias - 1e-6 <= value <= np.abs(top.residual).mean() + 1e-6
    assert ece(top, bins=bins) <= mce(top, bins=bins) + 1e-12
    assert smce(top) <= ece(top, bins=bins) + 1 / bins + 1e-12
