"""Isotonic regression compared with scikit-learn; theorems and edge cases."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from helpers.samples import draw, draw_apart, sample
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax
from sklearn.isotonic import IsotonicRegression

from calibrators import ArchiveError, CalibrationSet, ParameterError, archive
from calibrators.export import onnx
from calibrators.methods._isotonic_fit import pool_starts, rising_function
from calibrators.methods._step_tables import interpolated
from calibrators.methods.isotonic import (
    Isotonic,
    IsotonicMap,
    IsotonicOneVsRest,
    IsotonicOneVsRestMap,
)
from calibrators.methods.temperature import TemperatureScaling
from calibrators.metrics import brier, nll


def wide(data: CalibrationSet) -> CalibrationSet:
    return CalibrationSet(data.logits.astype(np.float64), data.labels)


def theirs(
    scores: np.ndarray, right: np.ndarray, below: float = 0.0, above: float = 0.0
) -> IsotonicRegression:
    """Return scikit-learn's fit, with a partial correct row at the bottom, a wrong one on top."""
    x = np.concatenate([scores, [scores.min(), scores.max()]])
    y = np.concatenate([right, [1.0, 0.0]])
    weight = np.concatenate([np.ones(scores.size), [below, above]])
    return IsotonicRegression(out_of_bounds="clip").fit(x, y, sample_weight=weight)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 12), st.booleans()), min_size=1, max_size=60),
    st.sampled_from([0.0, 0.25, 0.5]),
)
def test_agrees_with_scikit_learn_on_any_rows(rows: list[tuple[int, bool]], more: float) -> None:
    scores, right = np.array(rows, dtype=np.float64).T
    found = rising_function(scores, right, more, more)
    at = np.linspace(-1, 13, 57)
    expected = theirs(scores, right, more, more).predict(at)
    np.testing.assert_allclose(np.interp(at, found.nodes, found.heights), expected, atol=1e-12)
    fitted = np.interp(scores, found.nodes, found.heights)
    assert found.squared_error == pytest.approx(((fitted - right) ** 2).mean(), abs=1e-12)


def test_agrees_with_scikit_learn_on_many_rows() -> None:
    rng = np.random.default_rng(0)
    # closer values would count as equal, unlike in scikit-learn
    scores = rng.permutation(300_000) / 300_000 + 1e-6
    right = (rng.random(300_000) < scores**3).astype(np.float64)
    found = rising_function(scores, right)
    at = rng.random(10_000)
    other = IsotonicRegression(out_of_bounds="clip").fit(scores, right)
    np.testing.assert_allclose(
        np.interp(at, found.nodes, found.heights), other.predict(at), atol=1e-12
    )
    assert found.nodes.size <= other.X_thresholds_.size < 500


def test_a_fall_at_the_end_pulls_many_pools_down() -> None:
    sums = np.arange(1.0, 5001.0)
    weights = np.full(5000, 6000.0)
    sums[-1], weights[-1] = 0.0, 1e7
    starts = pool_starts(sums, weights)
    values = (
        IsotonicRegression().fit(np.arange(5000), sums / weights, weights).predict(np.arange(5000))
    )
    np.testing.assert_array_equal(starts, np.flatnonzero(np.diff(values, prepend=-1) > 1e-12))
    assert 1 < starts.size < 4000


@pytest.mark.parametrize("k", [2, 3, 40])
@pytest.mark.parametrize("smoothing", [0.0, 1.0])
def test_top_label_agrees_with_scikit_learn(k: int, smoothing: float) -> None:
    data, fresh = draw_apart(3000, k), draw(2000, k, seed=1, dtype=np.float64)
    fitted = Isotonic(smoothing=smoothing).fit(data)
    p = softmax(data.logits / fitted.base_temperature, axis=1)
    correct = (p.argmax(axis=1) == data.labels).astype(np.float64)
    other = theirs(p.max(axis=1), correct, smoothing / 2, smoothing / 2)
    p = softmax(fresh.logits / fitted.base_temperature, axis=1)
    expected, second = other.predict(p.max(axis=1)), np.sort(p, axis=1)[:, -2]
    others = (1 - expected) * second / (1 - p.max(axis=1))
    free = expected > others
    assert free.mean() > 0.8
    given = fitted.apply(fresh.logits)
    np.testing.assert_allclose(given.max(axis=1)[free], expected[free], atol=1e-9)
    kept = np.sort(given[~free], axis=1)
    assert (kept[:, -1] > kept[:, -2]).all()
    np.testing.assert_allclose(kept[:, -1], kept[:, -2], rtol=2e-4)


def test_theorems_on_the_real_sample() -> None:
    cal = wide(sample("cal"))
    base, fitted = TemperatureScaling().fit(cal), Isotonic(smoothing=0.0).fit(cal)
    before, after = base.apply(cal.logits), fitted.apply(cal.logits)
    assert (after.argmax(axis=1) == before.argmax(axis=1)).all()
    order = np.argsort(before.max(axis=1), kind="stable")
    values = np.interp(before.max(axis=1), fitted.confidence, fitted.accuracy)
    assert (np.diff(values[order]) >= 0).all()
    right = cal.logits.argmax(axis=1) == cal.labels
    assert values.mean() == pytest.approx(right.mean(), abs=1e-12)
    assert ((values - right) ** 2).mean() < ((before.max(axis=1) - right) ** 2).mean()
    assert fitted.fit_info["value"] == pytest.approx(((values - right) ** 2).mean(), abs=1e-12)


def test_finds_a_rising_truth() -> None:
    rng = np.random.default_rng(2)
    z = rng.normal(size=(40_000, 3)) * 2
    p = softmax(z, axis=1)
    chance = 0.5 + 0.4 * (p.max(axis=1) > 0.8)
    wrong = (z.argmax(axis=1) + rng.integers(1, 3, size=len(z))) % 3
    labels = np.where(rng.random(len(z)) < chance, z.argmax(axis=1), wrong)
    new = Isotonic().fit(CalibrationSet(z, labels)).apply(z).max(axis=1)
    clear = np.abs(p.max(axis=1) - 0.8) > 0.05
    assert np.abs(new - chance)[clear].mean() < 0.02


def test_a_new_kind_of_mistake_has_a_finite_cost() -> None:
    z = np.linspace(-3, 3, 400)
    rows = np.stack([np.zeros(400), z], axis=1)
    labels = (z > 0).astype(int)
    labels[150:250] = np.tile([0, 1], 50)
    data = CalibrationSet(rows, labels)
    sure = rows[-1:]
    plain, smooth = (Isotonic(smoothing=s).fit(data).apply(sure)[0] for s in (0.0, 1.0))
    assert plain.tolist() == [0.0, 1.0]
    pool = Isotonic().fit(data).accuracy[-1] / (1 - Isotonic().fit(data).accuracy[-1]) / 2
    assert smooth[0] == pytest.approx(0.5 / (pool + 0.5), rel=1e-9)
    assert 200 < pool <= 400


@pytest.mark.parametrize("smoothing", [0.0, 1.0])
@pytest.mark.parametrize("k", [2, 4])
def test_one_vs_rest_agrees_with_scikit_learn(k: int, smoothing: float) -> None:
    data, fresh = draw(2000, k, dtype=np.float64), draw(1500, k, seed=1, dtype=np.float64)
    fitted = IsotonicOneVsRest(smoothing=smoothing).fit(data)
    p = softmax(data.logits / fitted.base_temperature, axis=1)
    at = softmax(fresh.logits / fitted.base_temperature, axis=1)
    below, above = smoothing / k, smoothing * (1 - 1 / k)
    expected = np.stack(
        [
            theirs(p[:, j], (data.labels == j).astype(float), below, above).predict(at[:, j])
            for j in range(k)
        ],
        axis=1,
    )
    total = expected.sum(axis=1, keepdims=True)
    expected = np.where(total > 0, expected / np.where(total > 0, total, 1), at)
    np.testing.assert_allclose(fitted.apply(fresh.logits), expected, atol=1e-9)


def test_one_vs_rest_repairs_errors_that_depend_on_the_class() -> None:
    rng = np.random.default_rng(3)
    z = rng.normal(size=(20_000, 3)) * 2
    labels = (z + np.array([2.0, 0.0, 0.0]) + rng.gumbel(size=z.shape)).argmax(axis=1)
    data = CalibrationSet(z[:10_000], labels[:10_000])
    fresh = CalibrationSet(z[10_000:], labels[10_000:])
    scores = [
        nll(recipe.fit(data).apply(fresh.logits), fresh.labels)
        for recipe in (TemperatureScaling(), Isotonic(), IsotonicOneVsRest())
    ]
    assert scores[2] < min(scores[:2]) - 0.1


def test_a_row_whose_classes_all_get_0_keeps_its_probabilities() -> None:
    nodes = np.tile([0.0, 0.9, 1.0], (4, 1))
    values = np.tile([0.0, 0.0, 1.0], (4, 1))
    fitted = IsotonicOneVsRestMap(k=4, base_temperature=2.0, probability=nodes, frequency=values)
    rows = np.array([[2.0, 1.0, 0.0, -np.inf], [20.0, 1.0, 0.0, -np.inf]])
    expected = softmax(rows / 2, axis=1)
    np.testing.assert_allclose(fitted.apply(rows)[0], expected[0], atol=1e-12)
    assert fitted.apply(rows)[1].tolist() == [1.0, 0.0, 0.0, 0.0]


def test_rows_without_information_change_nothing() -> None:
    data = draw(1000, 3, dtype=np.float64)
    alone = np.full((50, 3), -np.inf)
    alone[:, 1] = 0.0
    more = CalibrationSet(
        np.concatenate([data.logits, alone]), np.concatenate([data.labels, np.full(50, 1)])
    )
    for recipe in (Isotonic(), IsotonicOneVsRest()):
        np.testing.assert_allclose(
            recipe.fit(more).apply(data.logits), recipe.fit(data).apply(data.logits), atol=1e-6
        )


def test_a_class_that_never_occurs_is_rare() -> None:
    data = draw(2000, 4)
    rest = data.take(np.flatnonzero(data.labels != 2))
    fitted = IsotonicOneVsRest().fit(rest)
    np.testing.assert_allclose(fitted.frequency[2], 0.25 / (rest.n + 1))
    p = fitted.apply(data.logits)[:, 2]
    assert (p > 0).all()
    assert np.median(p) < 1 / rest.n


def test_beats_temperature_scaling_on_its_own_sample_and_is_finite_on_another() -> None:
    cal, test = sample("cal"), sample("test")
    for recipe in (Isotonic(), IsotonicOneVsRest()):
        fitted = recipe.fit(cal)
        base = TemperatureScaling().fit(cal)
        assert brier(fitted.apply(cal.logits), cal.labels) < brier(
            base.apply(cal.logits), cal.labels
        )
        p = fitted.apply(test.logits)[np.arange(test.n), test.labels]
        assert (p > 1e-6).all()


def test_onnx_agrees_on_the_real_sample() -> None:
    cal, test = sample("cal"), sample("test")
    fitted = IsotonicOneVsRest().fit(cal)
    session = onnxruntime.InferenceSession(onnx.export(fitted))
    (given,) = session.run(None, {"logits": test.logits})
    assert np.abs(given - fitted.apply(test.logits)).max() <= 1e-6


@pytest.mark.parametrize(
    ("confidence", "accuracy", "rule"),
    [
        ([0.2, 0.1], [0.1, 0.2], "confidence must be finite and non-decreasing, got 0.1 at"),
        ([0.1, 0.2], [0.2, 0.1], "accuracy must be finite and non-decreasing"),
        ([0.1, 0.2], [0.2, 1.1], r"accuracy must lie in \[0, 1\]"),
        ([0.1, 0.2], [0.2], r"equal length, got shapes \(2,\) and \(1,\)"),
        ([], [], r"confidence must contain at least 1 number, got shape \(0,\)"),
    ],
)
def test_invalid_maps(confidence: list, accuracy: list, rule: str) -> None:
    with pytest.raises(ParameterError, match=rule):
        IsotonicMap(
            k=3,
            base_temperature=1.0,
            confidence=np.array(confidence),
            accuracy=np.array(accuracy),
        )


@pytest.mark.parametrize(
    ("probability", "frequency", "rule"),
    [
        (np.zeros((2, 3)), np.zeros((2, 3)), r"3 rows, got shapes \(2, 3\) and \(2, 3\)"),
        (np.zeros((3, 2)), np.zeros((3, 1)), r"3 rows, got shapes \(3, 2\) and \(3, 1\)"),
        (np.zeros((3, 0)), np.zeros((3, 0)), r"probability must contain at least 1 number"),
        (np.zeros((3, 2)), np.eye(3, 2), r"frequency must be finite and non-decreasing, got 0 at"),
    ],
)
def test_invalid_tables(probability: np.ndarray, frequency: np.ndarray, rule: str) -> None:
    with pytest.raises(ParameterError, match=rule):
        IsotonicOneVsRestMap(
            k=3, base_temperature=1.0, probability=probability, frequency=frequency
        )


def test_an_archive_without_nodes_is_refused() -> None:
    good = IsotonicMap(
        k=3, base_temperature=1.0, confidence=np.array([0.5]), accuracy=np.array([0.4])
    )
    for name in ("confidence", "accuracy"):
        object.__setattr__(good, name, np.zeros(0))
    with pytest.raises(ArchiveError, match="must contain at least 1 number"):
        archive.load(archive.dump(good))


def test_few_rows_of_many_classes_get_what_many_rows_get() -> None:
    """Few rows are looked up for all classes at once, not class by class."""
    data = draw(600, 100)
    fitted = IsotonicOneVsRest().fit(data)
    together = fitted.apply(data.logits)
    for few in (1, 5):
        np.testing.assert_array_equal(fitted.apply(data.logits[:few]), together[:few])


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(0, 2**32 - 1))
def test_interpolates_as_numpy_does(nodes: list[int], seed: int) -> None:
    """This covers repeated nodes, values on a node and values outside."""
    rng = np.random.default_rng(seed)
    places = np.tile(np.sort(np.array(nodes, dtype=np.float64)), (40, 1))
    heights = np.sort(rng.random(places.shape), axis=1)
    values = rng.integers(-2, 23, size=(2, 40)) / 2.0
    expected = [np.interp(values[:, k], places[k], heights[k]) for k in range(40)]
    np.testing.assert_allclose(interpolated(values, places, heights).T, expected, atol=1e-12)
