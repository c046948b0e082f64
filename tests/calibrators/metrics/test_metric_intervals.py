"""Bootstrap intervals have their nominal coverage, and the noise floor is correct."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from benchmarks import row_bootstrap
from calibrators.metrics import (
    TopLabel,
    accuracy,
    aurc,
    bootstrap_interval,
    brier,
    calibration_intervals,
    compared_intervals,
    ece,
    nll,
    noise_floor,
    paired_intervals,
    refinement_auroc,
    row_scores,
)
from calibrators.metrics._resampling import split
from calibrators.metrics.catalogue import all_metrics

NAMES: dict[str, Callable[..., float]] = {
    name: metric.function for name, metric in all_metrics().items() if metric.interval is not None
}


def truth(constant_gap, gap: float) -> dict[str, float]:
    data = constant_gap(400_000, gap, np.random.default_rng(99))
    means = {name: function(*data) for name, function in NAMES.items()}
    return means | {"ece": gap, "debiased_squared_error": gap**2}


def test_95_percent_intervals_cover_the_truth(constant_gap) -> None:
    expected = truth(constant_gap, 0.15)
    random = np.random.default_rng(0)
    covered = dict.fromkeys(NAMES, 0)
    for seed in range(200):
        rows = row_scores(*constant_gap(500, 0.15, random))
        for name, found in calibration_intervals(rows, draws=200, seed=seed).items():
            covered[name] += found.low <= expected[name] <= found.high
    assert all(180 <= count <= 199 for count in covered.values()), covered


def test_paired_95_percent_intervals_cover_the_change(constant_gap) -> None:
    """Probabilities move by 0.1 towards the accuracy, so the gap falls from 0.15 to 0.05."""
    random = np.random.default_rng(1)
    big, big_labels = constant_gap(400_000, 0.15, np.random.default_rng(98))
    shift = np.array([-0.1, 0.1])
    expected = {
        "debiased_squared_error": 0.05**2 - 0.15**2,
        "nll": nll(big + shift, big_labels) - nll(big, big_labels),
        "brier": brier(big + shift, big_labels) - brier(big, big_labels),
    }
    covered = dict.fromkeys(expected, 0)
    for seed in range(200):
        probabilities, labels = constant_gap(500, 0.15, random)
        before, after = row_scores(probabilities, labels), row_scores(probabilities + shift, labels)
        found = paired_intervals(before, after, draws=200, seed=seed)
        assert found["accuracy"].low == found["accuracy"].high == 0.0
        for name in covered:
            covered[name] += found[name].low <= expected[name] <= found[name].high
    assert all(180 <= count <= 199 for count in covered.values()), covered


@pytest.mark.parametrize("decimals", [2, 12])
def test_values_are_those_of_the_metrics(sample, decimals: int) -> None:
    probabilities, labels = sample(900, classes=2, sharpen=1.5)
    probabilities = probabilities[:, 1].round(decimals)
    after, _ = sample(900, classes=2, sharpen=1.0)
    rows = row_scores(probabilities, labels)
    found = calibration_intervals(rows, draws=20)
    change = paired_intervals(rows, row_scores(after, labels), draws=20)
    assert found.keys() == change.keys() == NAMES.keys()
    for name, metric in NAMES.items():
        value = metric(probabilities, labels)
        assert found[name].value == pytest.approx(value, abs=1e-12)
        assert change[name].value == pytest.approx(metric(after, labels) - value, abs=1e-12)
        assert found[name].low <= found[name].value <= found[name].high
        assert found[name].level == 0.95
    assert found["nll"].low < found["nll"].high


@pytest.mark.parametrize("metric", [ece, nll, brier, accuracy, refinement_auroc, aurc])
def test_fast_and_generic_bootstrap_agree(sample, metric) -> None:
    probabilities, labels = sample(600, classes=3, sharpen=1.6)
    slow = bootstrap_interval(metric, probabilities, labels, draws=600)
    fast = calibration_intervals(row_scores(probabilities, labels), draws=600)[metric.__name__]
    assert fast.value == pytest.approx(slow.value, abs=1e-12)
    width = slow.high - slow.low
    assert width > 0.001
    assert fast.low == pytest.approx(slow.low, abs=0.1 * width)
    assert fast.high == pytest.approx(slow.high, abs=0.1 * width)


@pytest.mark.parametrize("rows", [150, 3000])
def test_counts_of_strata_give_the_bounds_of_resampled_rows(sample, rows: int) -> None:
    """Binned errors with fixed bins, for both sides and the change, with few rows or many."""
    probabilities, labels = sample(rows, classes=4, sharpen=1.6)
    noise = np.exp(0.4 * np.random.default_rng(1).normal(size=probabilities.shape))
    other = probabilities * noise / (probabilities * noise).sum(axis=1, keepdims=True)
    sides = [row_scores(one, labels) for one in (probabilities, other)]
    slow = row_bootstrap.intervals(sides, draws=1500, seed=1)
    fast = compared_intervals(*sides, draws=1500, seed=2)
    for bounds, found in zip(slow, fast, strict=True):
        for name in ("ece", "debiased_squared_error"):
            value, low, high = bounds[name]
            assert found[name].value == pytest.approx(value, abs=1e-12)
            apart = (found[name].low - low, found[name].high - high)
            assert np.abs(apart).max() < 0.08 * (high - low)


def test_the_shift_removes_the_noise_added_twice(sample) -> None:
    """The plain draws of a calibrated model lie above its own estimate."""
    probabilities, labels = sample(300)
    found = bootstrap_interval(ece, probabilities, labels, draws=300)
    random = np.random.default_rng(0)
    taken = [random.integers(0, 300, 300) for _ in range(300)]
    drawn = np.array([ece(probabilities[rows], labels[rows]) for rows in taken])
    second_dose = drawn.mean() - found.value
    assert second_dose > 0.01
    plain = np.quantile(drawn, [0.025, 0.975])
    assert [found.low, found.high] == pytest.approx(plain - second_dose, abs=1e-12)


def test_seed_decides_and_level_widens(sample) -> None:
    rows = row_scores(*sample(300))
    first, again, other = (calibration_intervals(rows, draws=100, seed=s) for s in (1, 1, 2))
    assert first == again
    assert first["ece"] != other["ece"]
    wide = calibration_intervals(rows, draws=100, seed=1, level=0.99)
    for name in NAMES:
        assert wide[name].low < first[name].low
        assert wide[name].high > first[name].high


def test_pairing_is_tighter_than_two_separate_intervals(sample) -> None:
    probabilities, labels = sample(500, sharpen=1.2)
    after, _ = sample(500)
    before, after_rows = row_scores(probabilities, labels), row_scores(after, labels)
    change = paired_intervals(before, after_rows, draws=200)["nll"]
    alone = calibration_intervals(before, draws=200)["nll"]
    assert change.high - change.low < 0.5 * (alone.high - alone.low)
    same = paired_intervals(before, before, draws=50)
    assert all(found.low == found.high == found.value == 0 for found in same.values())


def test_undefined_draws_are_left_out() -> None:
    probabilities = np.array([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]])
    found = bootstrap_interval(refinement_auroc, probabilities, [0, 0, 1], draws=50)
    assert found.value == 1.0
    assert np.isfinite([found.low, found.high]).all()
    nothing = bootstrap_interval(refinement_auroc, probabilities, [0, 0, 0], draws=5)
    assert np.isnan([nothing.value, nothing.low, nothing.high]).all()


@pytest.mark.parametrize("levels", [3, 40, 10_000])
@pytest.mark.parametrize("rows", [5, 333])
def test_cells_add_up_to_both_kinds_of_bin(levels: int, rows: int) -> None:
    random = np.random.default_rng(rows)
    confidence = random.integers(0, levels + 1, rows) / levels
    top = TopLabel(confidence, random.random(rows) < confidence)
    cells = split(top, 15)
    count = np.bincount(cells.index, minlength=cells.count)[np.newaxis]
    right = np.bincount(cells.index, top.correct, cells.count)[np.newaxis]
    for shares, table in ((cells.width, top.equal_width(15)), (cells.mass, top.equal_mass(15))):
        filled = table.count > 0
        np.testing.assert_allclose(shares.sums(count)[0], table.count[filled], atol=1e-9)
        np.testing.assert_allclose(shares.sums(right)[0], table.correct_sum[filled], atol=1e-9)
    squares = cells.mass.squared().sums(count)[0]
    expected = (table.count**2)[filled]
    np.testing.assert_allclose(squares * table.effective_count[filled], expected, atol=1e-9)


@pytest.mark.parametrize("levels", [5, 10_000])
def test_many_bins_take_little_memory(levels: int) -> None:
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, 20_000)
    before, after = (
        row_scores(
            random.multinomial(levels, random.dirichlet(np.ones(3), 20_000)) / levels, labels
        )
        for _ in range(2)
    )
    tracemalloc.start()
    try:
        found = compared_intervals(before, after, bins=1000, draws=50)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.after["ece"].value == pytest.approx(after.top.equal_width(1000).ece())
    assert peak < 50e6


@pytest.mark.parametrize(("rows", "expected"), [(200, 0.081), (1000, 0.039), (5000, 0.016)])
def test_noise_floor_has_the_known_magnitude(sample, rows, expected) -> None:
    """METHODS 5 on another model with 10 classes gives the same to within a third."""
    probabilities, _ = sample(rows)
    floor = noise_floor(probabilities.max(axis=1))
    assert floor.mean == pytest.approx(expected, rel=0.34)
    assert floor.mean < floor.quantile95 < 2 * floor.mean


def test_noise_floor_is_the_ece_of_a_calibrated_model(sample) -> None:
    probabilities, _ = sample(800)
    confidence = probabilities.max(axis=1)
    random = np.random.default_rng(4)
    drawn = [ece(TopLabel(confidence, random.random(800) < confidence)) for _ in range(400)]
    floor = noise_floor(confidence, draws=400)
    assert floor.mean == pytest.approx(np.mean(drawn), rel=0.05)
    assert floor.quantile95 == pytest.approx(np.quantile(drawn, 0.95), rel=0.08)


def test_noise_floor_keeps_to_the_bins_of_ece() -> None:
    """Rows on the edge 10/15 share the bin of those just below it: sqrt(2/pi) sqrt(c (1 - c) / n),
    not the sum over two bins, which is larger by a factor of sqrt(2).
    """
    confidence = np.repeat([10 / 15, 10 / 15 - 1e-4], 2500)
    floor = noise_floor(confidence, draws=2000)
    assert floor.mean == pytest.approx(np.sqrt(2 / np.pi * (10 / 15) * (5 / 15) / 5000), rel=0.06)
    certain = noise_floor([1.0, 1.0, 0.0], draws=10)
    assert certain.mean == certain.quantile95 == 0.0


def test_noise_floor_depends_on_its_seed_only(sample) -> None:
    confidence = sample(300)[0].max(axis=1)
    one, two = noise_floor(confidence, seed=3), noise_floor(confidence[::-1], seed=3)
    assert (one.mean, one.quantile95) == pytest.approx((two.mean, two.quantile95), rel=1e-12)
    assert noise_floor(confidence, seed=3) != noise_floor(confidence, seed=4)
