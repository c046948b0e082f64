"""Lists truncated to their top classes are calibrated like whole lists by every method."""

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

# identity leaves the model unchanged, and labels do not reveal the truncated probability
# features are not truncated, so methods that need them know more than these lists
METHODS = sorted(
    name
    for name, recipe in all_methods().items()
    if name != "identity" and not recipe.needs_features
)
SEEDS = (0, 1, 2)
QUICK: dict[str, dict[str, Any]] = {"smart": {"steps": 100}}
Array = NDArray[Any]


def cut(p: Array, kept: int, *, digits: int | None = None, normal: bool = True) -> Array:
    """Return the output of a service that returns the ``kept`` most probable classes."""
    least = -np.partition(-p, kept - 1, axis=1)[:, kept - 1 : kept]
    found = np.where(p >= least, p, 0)
    if normal:
        found = found / found.sum(axis=1, keepdims=True)
    return found if digits is None else np.round(found, digits)


@cache
def drawn(n: int, k: int, seed: int) -> tuple[Array, Array]:
    """Return probabilities of a model whose logits are 1.3 times too large, and labels."""
    data = draw(n, k, temperature=1.3, seed=seed, dtype=np.float64)
    return softmax(data.logits), data.labels


def fit(name: str, p: Array, labels: Array) -> CalibrationMap:
    data = CalibrationSet.from_probabilities(p, labels, warn=False)
    recipe = all_methods()[name](**QUICK.get(name, {}))
    return recipe.fit(in_segments(data) if recipe.needs_segments else data)


def held_out_ece(fitted: CalibrationMap, p: Array, labels: Array) -> float:
    """Return the ECE in points on rows in the form that the map's user has."""
    return 100 * ece(fitted.apply_logits(fitted.read(p)[0]), labels)


def points_lost(name: str, k: int, kept: int, **how: Any) -> float:
    """Return the loss in points of ECE compared with whole lists, averaged over fit sets."""
    lost = 0.0
    for seed in SEEDS:
        (p, labels), (held, truth) = drawn(3000, k, seed), drawn(10_000, k, seed + 50)
        exact = held_out_ece(fit(name, p, labels), held, truth)
        fitted = fit(name, cut(p, kept, **how), labels)
        lost += held_out_ece(fitted, cut(held, kept, **how), truth) - exact
    return lost / len(SEEDS)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(("k", "kept"), [(4, 2), (10, 3)])
def test_a_cut_costs_half_a_point_of_ece_at_most(name: str, k: int, kept: int) -> None:
    # CTS searches the lowest ECE on the fit rows in steps of its own
    assert points_lost(name, k, kept) <= (0.75 if name == "cts" else 0.5)


@pytest.mark.parametrize("name", ["temperature", "smart", "ets", "vector", "beta", "additive"])
@pytest.mark.parametrize("digits", [None, 4, 2])
def test_the_top_five_of_a_hundred_cost_half_a_point_at_most(name: str, digits: int | None) -> None:
    assert points_lost(name, 100, 5, digits=digits) <= 0.5


@pytest.mark.parametrize("temperature", [0.7, 1.3, 2.5])
@pytest.mark.parametrize(("k", "kept"), [(4, 3), (10, 3), (100, 5), (100, 20)])
def test_the_temperature_is_that_of_whole_lists(k: int, kept: int, temperature: float) -> None:
    data = draw(3000, k, temperature=temperature, seed=5, dtype=np.float64)
    fitted = fit("temperature", cut(softmax(data.logits), kept), data.labels)
    assert isinstance(fitted, TemperatureMap)
    assert fitted.temperature == pytest.approx(temperature, rel=0.1)
    assert fitted.kept == kept


def test_missing_probability_may_be_divided_among_the_zeros() -> None:
    """Lists whose sums reveal the truncation are refused, and the message says what to do."""

    def whole(p: Array) -> Array:
        given = cut(p, 5, normal=False)
        zeros = given == 0
        return given + zeros * (1 - given.sum(axis=1, keepdims=True)) / zeros.sum(axis=1)[:, None]

    (p, labels), (held, truth) = drawn(3000, 100, 0), drawn(10_000, 100, 50)
    with pytest.raises(DataError, match="spread the missing probability over the zeros"):
        CalibrationSet.from_probabilities(cut(p, 5, normal=False), labels)
    for name in ("temperature", "vector", "beta", "identity"):
        exact = held_out_ece(fit(name, p, labels), held, truth)
        assert held_out_ece(fit(name, whole(p), labels), whole(held), truth) <= exact + 0.5


@pytest.mark.parametrize("digits", [None, 2])
@pytest.mark.parametrize("name", METHODS)
def test_a_single_row_gets_the_same_result_as_among_others(name: str, digits: int | None) -> None:
    """The ratio is stored in the map, because new rows have no labels."""
    p, labels = drawn(3000, 10, 3)
    given = cut(p, 3, digits=digits).astype(np.float32)
    fitted = fit(name, given, labels)
    assert fitted.kept == 3
    assert 0.05 < fitted.ratio < 0.5
    back = archive.load(archive.dump(fitted))
    rows = given[:50]
    whole = fitted.apply_logits(fitted.read(rows)[0])
    singly = [back.apply_logits(back.read(row[np.newaxis])[0])[0] for row in rows]
    np.testing.assert_allclose(singly, whole, rtol=1e-5, atol=1e-7)
    data = CalibrationSet.from_probabilities(rows, labels[:50], rounding=0.05, warn=False)
    np.testing.assert_allclose(fitted.apply_set(data), whole, atol=2e-6)
    if name != "segmented":
        assert export(fitted)  # verified on truncated rows


def test_the_warning_and_the_report_describe_the_change() -> None:
    p, labels = drawn(3000, 10, 2)
    with pytest.warns(ClippedProbabilities, match=r"21000 zeros .* 0\.\d+ times the") as said:
        data = CalibrationSet.from_probabilities(cut(p, 3), labels)
    assert "assumed to be lists truncated to at most 3 classes" in str(said[0].message)
    _, report = fit_and_judge(TemperatureScaling(), data)
    assert report.fit["clipped"]["zeros"] == 21000
    assert report.fit["clipped"]["kept"] == 3
    assert report.fit["clipped"]["ratio"] == data.zeros.ratio
    assert report.fit["warnings"][0]["message"] == str(data.clipped)


@pytest.mark.parametrize("k", [3, 10, 100])
@pytest.mark.parametrize("step", [0.1, 0.01, 1e-4])
@pytest.mark.parametrize("n", [100, 3000])
def test_rounded_lists_are_not_taken_as_truncated(n: int, step: float, k: int) -> None:
    p, labels = drawn(n, k, 3)
    given = np.round(np.rint(p / step) * step, 6)
    assert CalibrationSet.from_probabilities(given, labels, warn=False).zeros.ratio == 0


def test_lists_without_labels_on_zeros_are_read_unchanged() -> None:
    p, _ = drawn(1000, 10, 3)
    given = cut(p, 3)
    data = CalibrationSet.from_probabilities(given, given.argmax(axis=1), warn=False)
    assert data.zeros == (given[given > 0].min() / 2, 0, 0, 0)
    smallest = np.where(given == 0, 1, given).min(axis=1, keepdims=True)
    filled = np.where(given == 0, np.minimum(data.zeros.floor, smallest / 2), given)
    np.testing.assert_array_equal(data.logits, np.log(filled))


@pytest.mark.parametrize("kept", [1, 2])
def test_labels_that_a_list_never_has_are_no_reason_to_fail(kept: int) -> None:
    """The predicted class is kept, even if it is wrong."""
    p, _ = drawn(500, 10, 3)
    given = cut(p, kept)
    data = CalibrationSet.from_probabilities(given, given.argmin(axis=1), warn=False)
    assert np.isfinite(data.logits).all()
    np.testing.assert_array_equal(data.logits.argmax(axis=1), given.argmax(axis=1))


def test_whole_lists_are_served_as_they_are() -> None:
    p, labels = drawn(3000, 10, 2)
    fitted = fit("temperature", cut(p, 3), labels)
    assert isinstance(fitted, TemperatureMap)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = fitted.apply(p)
    np.testing.assert_allclose(found, softmax(np.log(p) / fitted.temperature), rtol=1e-9)


@pytest.mark.parametrize(("ratio", "kept"), [(-0.1, 1), (1.5, 1), (0.5, 0), (0.0, 1), (0.5, 3)])
def test_maps_with_an_impossible_cut_are_refused(ratio: float, kept: int) -> None:
    with pytest.raises(ValueError, match="ratio must lie in"):
        replace(TemperatureMap(k=3, temperature=1.5), ratio=ratio, kept=kept)
