"""Predicted-class temperatures: no single class can lower the minimum found from tables."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.samples import draw, sample

from calibrators import CalibrationSet
from calibrators.methods.predicted_class_temperature import (
    OCTAVES,
    POINTS_PER_OCTAVE,
    PredictedClassTemperature,
)
from calibrators.methods.temperature import TemperatureScaling
from calibrators.metrics import ece
from calibrators.numerics.softmax import softmax


def grid() -> np.ndarray:
    end = OCTAVES * POINTS_PER_OCTAVE
    return 2.0 ** (np.arange(-end, end + 1) / POINTS_PER_OCTAVE)


def greedy_search(data: CalibrationSet) -> tuple[np.ndarray, float]:
    """Run the plain search, recomputing all probabilities at every grid point of every class."""
    logits = data.logits.astype(np.float64)
    centre = TemperatureScaling().fit(data).temperature
    alone = [ece(softmax(logits / (centre * factor)), data.labels) for factor in grid()]
    starts = (1.0, grid()[int(np.argmin(alone))])
    found = [search_from(start, centre, logits, data) for start in starts]
    return min(found, key=lambda one: one[1])


def search_from(
    start: float, centre: float, logits: np.ndarray, data: CalibrationSet
) -> tuple[np.ndarray, float]:
    predicted = logits.argmax(axis=1)
    temperatures = np.full(data.k, centre * start)
    nearest = np.argsort(np.abs(np.log(grid() / start)).round(9), kind="stable")
    by_count = np.argsort(-np.bincount(predicted, minlength=data.k), kind="stable")
    best = ece(softmax(logits / temperatures[predicted][:, None]), data.labels)
    while True:
        before = best
        for place in by_count:
            for factor in grid()[nearest]:
                tried = temperatures.copy()
                tried[place] = centre * factor
                value = ece(softmax(logits / tried[predicted][:, None]), data.labels)
                if value < best - 1e-12:
                    best, temperatures = value, tried
        if best == before:
            return temperatures, best


def test_agrees_with_the_plain_search() -> None:
    data = draw(500, 4, dtype=np.float64)
    expected, value = greedy_search(data)
    fitted = PredictedClassTemperature().fit(data)
    np.testing.assert_allclose(fitted.class_temperatures, expected, rtol=1e-9)
    assert fitted.fit_info["value"] == pytest.approx(value, abs=1e-12)
    assert fitted.fit_info["value"] == pytest.approx(ece(fitted.apply(data.logits), data.labels))


@pytest.mark.parametrize("k", [5, 200])
def test_no_single_class_can_lower_the_error(k: int) -> None:
    data = draw(1500, k, seed=3)
    fitted = PredictedClassTemperature().fit(data)
    reached = ece(fitted.apply(data.logits), data.labels)
    assert reached <= ece(TemperatureScaling().fit(data).apply(data.logits), data.labels)
    logits = data.logits.astype(np.float64)
    predicted = logits.argmax(axis=1)
    start = TemperatureScaling().fit(data).temperature
    for place in np.random.default_rng(0).permutation(k)[:3]:
        for factor in grid()[::4]:
            tried = fitted.class_temperatures.copy()
            tried[place] = start * factor
            moved = ece(softmax(logits / tried[predicted][:, None]), data.labels)
            assert moved > reached - 1e-4  # a row may lie on the edge of a bin by rounding


def test_classes_that_are_never_predicted_keep_a_temperature_of_all() -> None:
    data = draw(800, 4)
    logits = np.concatenate([data.logits, data.logits.min(axis=1, keepdims=True) - 1], axis=1)
    more = CalibrationSet(logits, data.labels)
    centre = TemperatureScaling().fit(more).temperature
    alone = [ece(softmax(logits / np.float32(centre * one)), data.labels) for one in grid()]
    kept = PredictedClassTemperature().fit(more).class_temperatures[4]
    assert kept in (centre, centre * grid()[int(np.argmin(alone))])


def test_lowers_the_error_of_real_logits() -> None:
    fit, test = sample("cal"), sample("test")
    fitted = PredictedClassTemperature().fit(fit)
    assert ece(fitted.apply_set(test), test.labels) < 0.012
    assert ece(softmax(test.logits), test.labels) > 0.06
