"""Rounded probabilities are calibrated like exact ones by every method."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from helpers.samples import draw, in_segments
from numpy.typing import NDArray

from calibrators import CalibrationMap, CalibrationSet, DataError, all_methods, archive
from calibrators.errors import ClippedProbabilities
from calibrators.export.onnx import export
from calibrators.fitting.evaluation import fit_and_judge
from calibrators.methods.temperature import TemperatureMap, TemperatureScaling
from calibrators.metrics import ece
from calibrators.numerics.softmax import softmax
from calibrators.rounding import GridFinder, Zeros, step_of

# features are not rounded, so methods that need them know more than the probabilities
METHODS = sorted(name for name, recipe in all_methods().items() if not recipe.needs_features)
STEPS = (0.1, 0.05, 0.01, 0.001, 1e-4)
CLASSES = (2, 4, 10)
SEEDS = (0, 1, 2)
QUICK: dict[str, dict[str, Any]] = {
    "smart": {"steps": 100},
}
Array = NDArray[Any]


def rounded(p: Array, step: float) -> Array:
    """Return the output of a service that rounds to ``step``."""
    return np.round(np.rint(p / step) * step, 6)


@cache
def drawn(n: int, k: int, seed: int) -> tuple[Array, Array]:
    """Return probabilities of a model whose logits are 1.3 times too large, and labels."""
    data = draw(n, k, temperature=1.3, seed=seed, dtype=np.float64)
    return softmax(data.logits), data.labels


def fit(name: str, p: Array, labels: Array) -> CalibrationMap:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ClippedProbabilities)
        data = CalibrationSet.from_probabilities(p, labels)
    recipe = all_methods()[name](**QUICK.get(name, {}))
    return recipe.fit(in_segments(data) if recipe.needs_segments else data)


def held_out_ece(fitted: CalibrationMap, p: Array, labels: Array) -> float:
    """Return the ECE in points on rows in the form that the map's user has."""
    return 100 * ece(fitted.apply_logits(fitted.read(p)[0]), labels)


def most_lost(step: float, k: int) -> float:
    """Return the allowed loss in points of ECE; with 10 or 20 levels, half of the entries are 0."""
    return 0.75 if step >= 0.05 and k > 2 else 0.5


@pytest.mark.parametrize("name", ["temperature", "ets", "vector", "smart", "isotonic"])
def test_rounding_of_many_classes_costs_half_a_point_of_ece_at_most(name: str) -> None:
    """Nearly all entries are zeros here, and they hold most of the probability."""
    lost = {0.1: 0.0, 0.01: 0.0}
    for seed in SEEDS:
        (p, labels), (held, truth) = drawn(3000, 100, seed), drawn(10_000, 100, seed + 50)
        exact = held_out_ece(fit(name, p, labels), held, truth)
        for step in lost:
            fitted = fit(name, rounded(p, step), labels)
            lost[step] += (held_out_ece(fitted, rounded(held, step), truth) - exact) / len(SEEDS)
    assert max(lost.values()) <= 0.5, lost


@pytest.mark.parametrize("k", [4, 10, 100])
@pytest.mark.parametrize("step", [0.1, 0.05, 0.01])
def test_zeros_stand_for_their_mean(step: float, k: int) -> None:
    """With many classes most of the probability is in values below half a step."""
    p, labels = drawn(3000, k, 0)
    given = rounded(p, step)
    data = CalibrationSet.from_probabilities(given, labels, warn=False)
    assert data.zeros.floor == pytest.approx(p[given == 0].mean(), rel=0.3)
    assert data.zeros.ratio == data.zeros.kept == 0


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("k", CLASSES)
def test_rounding_costs_half_a_point_of_ece_at_most(name: str, k: int) -> None:
    """Losses are averaged over fit sets, because noise moves single fits by up to half a point."""
    lost = dict.fromkeys(STEPS, 0.0)
    for seed in SEEDS:
        (p, labels), (held, truth) = drawn(3000, k, seed), drawn(20_000, k, seed + 50)
        exact = held_out_ece(fit(name, p, labels), held, truth)
        for step in STEPS:
            dtype = np.float32 if step == 0.01 else np.float64
            fitted = fit(name, rounded(p, step).astype(dtype), labels)
            there = rounded(held, step).astype(dtype)
            lost[step] += (held_out_ece(fitted, there, truth) - exact) / len(SEEDS)
    assert all(points <= most_lost(step, k) for step, points in lost.items()), lost


def test_the_temperature_is_that_of_exact_rows() -> None:
    p, labels = drawn(2000, 4, 7)
    exact = fit("temperature", p, labels)
    coarse = fit("temperature", rounded(p, 0.01), labels)
    assert isinstance(exact, TemperatureMap)
    assert isinstance(coarse, TemperatureMap)
    assert coarse.temperature == pytest.approx(exact.temperature, abs=0.05)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("step", "digits"), [(0.1, 1), (0.05, 2), (0.02, 2), (0.01, 2), (1e-3, 3), (1e-5, 5)]
)
def test_the_step_is_found_in_either_type(dtype: type, step: float, digits: int) -> None:
    p, _ = drawn(500, 10, 0)
    given = np.round(np.rint(p / step) * step, digits).astype(dtype)
    assert step_of(given) == pytest.approx(step)
    assert step_of(given.astype(np.float64)) == pytest.approx(step)  # widened after rounding
    finder = GridFinder()
    for row in given:
        finder.add(row)
    assert finder.step == step_of(given)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_exact_probabilities_have_no_step(dtype: type) -> None:
    p, _ = drawn(500, 10, 0)
    assert step_of(p.astype(dtype).astype(np.float64)) == 0
    assert step_of(np.vstack([rounded(p, 0.01), [[1 / 3, 2 / 3, *[0] * 8]]])) == 0


def test_zeros_of_exact_probabilities_hurt_nothing() -> None:
    """The softmax underflows in float32; the zeros are as small as the remaining probability."""
    data = draw(2000, 4, temperature=20.0, dtype=np.float64)
    p = softmax(data.logits.astype(np.float32))
    assert (p == 0).sum() > 20
    with pytest.warns(ClippedProbabilities, match="zeros were raised to about 1.2e-38$"):
        made = CalibrationSet.from_probabilities(p, data.labels)
    fitted, exact = TemperatureScaling().fit(made), TemperatureScaling().fit(data)
    assert isinstance(exact, TemperatureMap)
    assert isinstance(fitted, TemperatureMap)
    assert fitted.temperature == pytest.approx(exact.temperature, rel=0.05)


def test_one_column_is_rounded_at_both_ends() -> None:
    p, labels = drawn(3000, 2, 3)
    column = rounded(p[:, 1], 0.01)
    assert (column == 0).any()
    assert (column == 1).any()
    one, two = fit("beta", column, labels), fit("beta", rounded(p, 0.01), labels)
    assert (one.rounding, one.floor) == pytest.approx((two.rounding, two.floor))
    with pytest.warns(ClippedProbabilities):
        both = one.apply(np.array([0.0, 1.0]))
    np.testing.assert_allclose(both[0, 0], 1 - both[0, 1])
    assert 0.9 < both[0, 0] < 0.9999
    assert 0.9 < both[1, 1] < 0.9999


def test_sums_may_be_off_by_rounding() -> None:
    p, labels = drawn(3000, 10, 1)
    given = rounded(p, 0.01)
    off = np.abs(given.sum(axis=1) - 1)
    assert off.max() > 0.015
    with pytest.warns(ClippedProbabilities, match="rows that do not sum to 1 were normalised") as w:
        data = CalibrationSet.from_probabilities(given, labels)
    assert data.clipped is not None
    assert data.clipped.normalised == np.count_nonzero(off > 1e-3)
    assert data.clipped.raised == np.count_nonzero(given == 0)
    assert f"{data.clipped.raised} zeros were raised" in str(w[0].message)
    assert "multiples of 0.01" in str(w[0].message)
    broken = given.copy()
    broken[5] = 0
    with pytest.raises(DataError, match=r"sum to 1;.* \(1 invalid row, first row 5\)"):
        CalibrationSet.from_probabilities(broken, labels)
    with pytest.raises(DataError, match="must sum to 1"):
        CalibrationSet.from_probabilities(given, labels, rounding=0.0)


def test_a_declared_rounding_is_taken() -> None:
    p, labels = drawn(1000, 4, 1)
    given = rounded(p, 0.01)
    normal = given / given.sum(axis=1, keepdims=True)  # this hides the step
    assert step_of(normal) == 0
    data = CalibrationSet.from_probabilities(normal, labels, rounding=0.01, warn=False)
    found = CalibrationSet.from_probabilities(given, labels, warn=False)
    assert data.zeros.rounding == 0.01
    assert data.zeros.floor == pytest.approx(found.zeros.floor, rel=0.2)
    for rounding in (-0.1, 0.6, float("nan")):
        with pytest.raises(DataError, match=r"rounding must lie in \[0, 0.5\]"):
            CalibrationSet.from_probabilities(given, labels, rounding=rounding)


@pytest.mark.parametrize("name", METHODS)
def test_a_single_row_gets_the_same_result_as_among_others(name: str) -> None:
    """The rounding is stored in the map, because a single row cannot show it."""
    p, labels = drawn(3000, 4, 2)
    given = rounded(p, 0.01).astype(np.float32)
    fitted = fit(name, given, labels)
    assert fitted.rounding == 0.01
    assert 0 < fitted.floor < 0.005
    back = archive.load(archive.dump(fitted))
    rows = given[:50]
    whole = fitted.apply_logits(fitted.read(rows)[0])
    singly = [back.apply_logits(back.read(row[np.newaxis])[0])[0] for row in rows]
    np.testing.assert_allclose(singly, whole, rtol=1e-5, atol=1e-7)
    data = CalibrationSet.from_probabilities(rows, labels[:50], rounding=0.05, warn=False)
    np.testing.assert_allclose(fitted.apply_set(data), whole, atol=2e-6)
    if name != "segmented":
        assert export(fitted)  # verified on rows with zeros


def test_older_archives_have_no_rounding() -> None:
    fitted = TemperatureMap(k=3, temperature=1.5)
    text = archive.dump(fitted)
    assert b'"floor":0.0' in text
    old = {"k": 3, "kind": "logits", "fit_info": {}, "temperature": 1.5}
    assert archive._build("temperature", old, {}).zeros == Zeros()


@pytest.mark.parametrize(
    ("floor", "rounding"), [(-1.0, 0.0), (0.01, 0.01), (0.0, 0.01), (0.1, 2.0)]
)
def test_maps_with_an_impossible_rounding_are_refused(floor: float, rounding: float) -> None:
    with pytest.raises(ValueError, match="rounding must lie in"):
        replace(TemperatureMap(k=3, temperature=1.5), floor=floor, rounding=rounding)


def test_the_report_describes_the_change() -> None:
    p, labels = drawn(3000, 4, 2)
    with pytest.warns(ClippedProbabilities):
        data = CalibrationSet.from_probabilities(rounded(p, 0.01), labels)
    _, report = fit_and_judge(TemperatureScaling(), data)
    assert data.clipped is not None
    assert report.fit["clipped"]["zeros"] == data.clipped.raised
    assert report.fit["clipped"]["rounding"] == 0.01
    assert [one["code"] for one in report.fit["warnings"]] == ["clipped_probabilities"]
    assert report.fit["warnings"][0]["message"] == str(data.clipped)


def test_exact_rows_are_served_as_they_are() -> None:
    p, labels = drawn(3000, 4, 2)
    fitted = fit("temperature", rounded(p, 0.01), labels)
    assert isinstance(fitted, TemperatureMap)
    np.testing.assert_allclose(fitted.apply(p), softmax(np.log(p) / fitted.temperature), rtol=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("digits", [2, 3])
def test_columns_computed_from_rounded_ones_are_recognised(dtype, digits):
    rounded = np.round(np.random.default_rng(0).random(500), digits)
    both = np.stack([1 - rounded, rounded], axis=1).astype(dtype)
    assert step_of(both) == 10.0**-digits


def test_exact_probabilities_of_confident_models_are_not_taken_as_rounded():
    rng = np.random.default_rng(0)
    sure = 1 / (1 + np.exp(-20 * rng.normal(size=1000)))
    for exact in (np.stack([1 - sure, sure], axis=1), rng.dirichlet([0.01] * 10, 1000)):
        assert step_of(exact.astype(np.float32)) == 0


def test_equal_numbers_get_equal_results_regardless_of_type():
    rng = np.random.default_rng(0)
    logits = 24 * rng.normal(size=(400, 50))
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares = (shares / shares.sum(axis=1, keepdims=True)).astype(np.float32)
    assert ((shares > 0) & (shares < np.finfo(np.float32).tiny)).any()
    labels = np.where(rng.random(400) < 0.6, shares.argmax(axis=1), rng.integers(0, 50, 400))
    labels = np.where(shares[np.arange(400), labels] > 0, labels, shares.argmax(axis=1))
    data = CalibrationSet.from_probabilities(shares, labels, warn=False)
    fitted = TemperatureScaling().fit(data)
    with pytest.warns(ClippedProbabilities):
        narrow, wide = fitted.apply(shares), fitted.apply(shares.astype(np.float64))
    np.testing.assert_allclose(narrow, wide, atol=1e-6)
