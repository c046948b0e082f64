"""CTS compared with a plain greedy search that recomputes all probabilities."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnxruntime
import pytest
from helpers.samples import draw, sample
from scipy.special import softmax

from calibrators import CalibrationSet, ParameterError, archive
from calibrators.errors import BoundarySolution
from calibrators.export import onnx
from calibrators.methods import cts
from calibrators.methods.cts import ClassTemperature, ClassTemperatureMap
from calibrators.methods.temperature import TemperatureScaling
from calibrators.metrics import ece

OURS = 2.0 ** (np.arange(-32, 33) / 16)
PUBLISHED = np.arange(1, 101) / 10


class Found(NamedTuple):
    """Temperatures relative to the features, and the ECE."""

    temperatures: np.ndarray
    ece: float


def plain_search(
    x: np.ndarray, labels: np.ndarray, grid: np.ndarray, order: np.ndarray, sweeps: int = 5
) -> Found:
    def error(temperatures: np.ndarray) -> float:
        return ece(softmax(x / temperatures, axis=1), labels)

    k = x.shape[1]
    by_distance = np.argsort(np.abs(np.log(grid)).round(9), kind="stable")
    alone = [error(np.full(k, one)) for one in grid[by_distance]]
    start = by_distance[int(np.argmin(alone))]
    nearest = np.argsort(np.abs(np.arange(grid.size) - start), kind="stable")
    found = Found(np.full(k, grid[start]), min(alone))
    for _ in range(sweeps):
        before = found.ece
        for column in order:
            for factor in grid[nearest]:
                tried = found.temperatures.copy()
                tried[column] = factor
                value = error(tried)
                if value < found.ece - 1e-12:
                    found = Found(tried, value)
        if found.ece == before:
            break
    return found


def centred(data: CalibrationSet) -> np.ndarray:
    x = data.logits / TemperatureScaling().fit(data).temperature
    return x - x.mean(axis=1, keepdims=True)


@pytest.mark.parametrize(("n", "k"), [(400, 4), (300, 2), (150, 20)])
def test_is_the_plain_search(n: int, k: int) -> None:
    data = draw(n, k, dtype=np.float64)
    x = centred(data)
    counts = np.bincount(data.logits.argmax(axis=1), minlength=k)
    expected = plain_search(x, data.labels, OURS, np.lexsort((x.sum(axis=0), -counts)))
    fitted = ClassTemperature().fit(data)
    np.testing.assert_allclose(1 / fitted.weights, expected.temperatures, rtol=1e-9)
    assert fitted.fit_info["value"] == pytest.approx(expected.ece, abs=1e-9)
    np.testing.assert_allclose(
        fitted.apply(data.logits), softmax(x / expected.temperatures, axis=1), atol=1e-9
    )


def test_as_published_is_the_search_on_raw_logits() -> None:
    """The published form uses raw logits and temperatures from 0.1 to 10 in steps of 0.1."""
    data = draw(300, 4, dtype=np.float64)
    shifted = CalibrationSet(data.logits + np.array([0, 1, -2, 0]), data.labels)
    expected = plain_search(shifted.logits, data.labels, PUBLISHED, np.arange(4))
    fitted = ClassTemperature(as_published=True).fit(shifted)
    np.testing.assert_allclose(fitted.class_temperatures, expected.temperatures, rtol=1e-9)
    assert fitted.fit_info["value"] == pytest.approx(expected.ece, abs=1e-9)
    expected_p = softmax(shifted.logits / expected.temperatures, axis=1)
    np.testing.assert_allclose(fitted.apply(shifted.logits), expected_p, atol=1e-12)


def test_the_level_of_a_row_matters_as_published_only() -> None:
    data = draw(600, 3, dtype=np.float64)
    rows = np.random.default_rng(0).normal(size=(600, 1)) * 20
    moved = CalibrationSet(data.logits + rows, data.labels)
    ours = ClassTemperature().fit(data)
    np.testing.assert_allclose(ours.apply(moved.logits), ours.apply(data.logits), atol=1e-9)
    published = ClassTemperature(as_published=True).fit(data)
    assert np.abs(published.apply(moved.logits) - published.apply(data.logits)).max() > 0.1


def test_a_scale_beyond_the_published_grid_is_flagged() -> None:
    data = draw(400, 3)
    small = CalibrationSet(data.logits / 1000, data.labels)
    with pytest.warns(BoundarySolution, match="at the end of the grid, 0.1: the search starts"):
        ClassTemperature(as_published=True).fit(small)
    assert not ClassTemperature().fit(small).fit_info["warnings"]


@pytest.mark.parametrize("as_published", [False, True])
def test_onnx_and_archive_give_the_same(as_published: bool) -> None:
    data = draw(800, 5)
    fitted = ClassTemperature(as_published=as_published).fit(data)
    logits = data.logits.copy()
    logits[:50, 1] = -np.inf
    session = onnxruntime.InferenceSession(onnx.export(fitted))
    (outcome,) = session.run(None, {session.get_inputs()[0].name: logits})
    np.testing.assert_allclose(outcome, fitted.apply(logits), atol=1e-6)
    back = archive.load(archive.dump(fitted))
    np.testing.assert_array_equal(back.apply(logits), fitted.apply(logits))


def test_no_column_can_lower_the_error_at_the_end() -> None:
    data = draw(1500, 6, seed=3, dtype=np.float64)
    x = centred(data)
    fitted = ClassTemperature(sweeps=100).fit(data)
    assert fitted.fit_info["sweeps"] < 100
    reached = ece(fitted.apply(data.logits), data.labels)
    assert reached < ece(TemperatureScaling().fit(data).apply(data.logits), data.labels)
    for column in range(6):
        for factor in OURS:
            tried = fitted.weights.copy()
            tried[column] = 1 / factor
            assert ece(softmax(x * tried, axis=1), data.labels) > reached - 1e-9


def test_kept_leaders_are_those_from_scratch() -> None:
    """They are compared after many changes of single columns, with masked logits and ties."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 7)).round(1)
    x[rng.random(x.shape) < 0.2] = -np.inf
    x[np.arange(300), rng.integers(7, size=300)] = 1.0
    search = cts.GreedySearch(x, rng.integers(7, size=300), OURS, 15)
    for column in rng.integers(7, size=60):
        others = search._without(column)
        search.chosen[column] = rng.integers(OURS.size)
        search._leading = others.joined(column, x[:, column] / OURS[search.chosen[column]])
    expected = search._leaders_of_all()
    np.testing.assert_array_equal(search._leading.top, expected.top)
    np.testing.assert_allclose(search._leading.largest, expected.largest)
    np.testing.assert_allclose(search._leading.second, expected.second)
    np.testing.assert_allclose(search._leading.total, expected.total, rtol=1e-9)


def test_no_confidence_rises_above_one_by_rounding() -> None:
    """1 + e rounds to 1 if e is near 1e-16, so subtracting e again would leave less than 1."""
    gap = np.linspace(36, 38, 200)
    x = np.stack([gap, np.zeros(200), np.zeros(200)], axis=1)
    labels = np.resize([0, 0, 0, 1], 200)
    search = cts.GreedySearch(x, labels, np.ones(1), 15)
    assert search._without(2).total.min() == 1
    assert search._improve(2) / 200 == pytest.approx(0.25)


def test_the_class_may_change_and_accuracy_falls_on_real_logits() -> None:
    """Table 7 of the SMART paper shows the same: CTS alone loses accuracy."""
    fit, test = sample("cal"), sample("test")
    fitted = ClassTemperature().fit(fit)
    p = fitted.apply_set(test)
    before = (test.logits.argmax(axis=1) == test.labels).mean()
    assert not fitted.keeps_class
    assert before - 0.02 < (p.argmax(axis=1) == test.labels).mean() < before
    assert fitted.fit_info["value"] < ece(TemperatureScaling().fit(fit).apply_set(fit), fit.labels)


def test_maps_with_a_bias_or_a_matrix_are_refused() -> None:
    parts = {"k": 2, "kind": "logits", "base_temperature": 1.0, "centred": True}
    with pytest.raises(ParameterError, match="bias of 0"):
        ClassTemperatureMap(weights=np.ones(2), bias=np.array([0.0, 1.0]), **parts)
    with pytest.raises(ParameterError, match="one weight for each class"):
        ClassTemperatureMap(weights=np.eye(2), bias=np.zeros(2), **parts)
    with pytest.raises(ParameterError, match="between 1e-37 and 1e37, got -1"):
        ClassTemperatureMap(weights=np.array([1.0, -1.0]), bias=np.zeros(2), **parts)
