"""The spline method compared with scipy; known truth and edge cases."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
from helpers.samples import confidence_and_hits, draw, draw_apart, sample
from scipy.interpolate import CubicSpline
from scipy.linalg import lstsq
from scipy.special import logit

from calibrators import CalibrationSet, ParameterError
from calibrators.export import onnx
from calibrators.methods.spline import NODES, Spline, SplineMap, nearest_spline
from calibrators.methods.temperature import TemperatureScaling
from calibrators.metrics import debiased_squared_error, nll


def theirs(confidence: np.ndarray, hits: np.ndarray, knots: int) -> CubicSpline:
    """Return the nearest natural spline, from scipy's spline of each knot and least squares."""
    order = np.argsort(confidence)
    ahead = np.append(0, np.cumsum((hits - confidence)[order])) / len(order)
    at, places = np.linspace(0, 1, len(order) + 1), np.linspace(0, 1, knots)
    basis = CubicSpline(places, np.eye(knots), bc_type="natural")(at)
    return CubicSpline(places, lstsq(basis, ahead)[0], bc_type="natural")


@pytest.mark.parametrize("knots", [2, 3, 6, 20])
def test_the_correction_agrees_with_scipy(knots: int) -> None:
    data = draw_apart(1500, 4)
    fitted = Spline(knots=knots).fit(data)
    confidence, hits = confidence_and_hits(data, fitted.base_temperature)
    spline = theirs(confidence, hits, knots)
    np.testing.assert_allclose(fitted.fit_info["knot_values"], [*spline.c[3], spline(1)])
    np.testing.assert_allclose(fitted.confidence, np.sort(confidence), atol=1e-14)
    steps = np.diff(spline(np.linspace(0, 1, 1501))) * 1500
    np.testing.assert_allclose(fitted.correction, steps, atol=1e-10)
    middles = spline.derivative()((np.arange(1500) + 0.5) / 1500)
    np.testing.assert_allclose(fitted.correction, middles, atol=2e-4)


def test_a_new_row_gets_its_confidence_and_the_correction_there() -> None:
    data, fresh = draw(1500, 4, dtype=np.float64), draw(800, 4, seed=1, dtype=np.float64)
    fitted = Spline().fit(data)
    confidence, _ = confidence_and_hits(fresh, fitted.base_temperature)
    expected = confidence + np.interp(confidence, fitted.confidence, fitted.correction)
    new = np.sort(fitted.apply(fresh.logits), axis=1)
    free = (new[:, -1] > 1.01 * new[:, -2]) & (expected < 1 - 2 * fitted.least)
    assert free.mean() > 0.7
    np.testing.assert_allclose(new[free, -1], expected[free], atol=1e-12)


@pytest.mark.parametrize("points", [1, 2, 3, 5, 400])
def test_a_straight_line_is_found_exactly(points: int) -> None:
    at = np.linspace(0, 1, points)
    _, curve = nearest_spline(at, 3 * at - 1, 6)
    np.testing.assert_allclose(curve, 3 * at - 1, atol=1e-9)


def test_few_nodes_give_the_result_of_all_rows() -> None:
    data = draw(20_000, 3, dtype=np.float64)
    fitted = Spline().fit(data)
    assert fitted.confidence.size == NODES
    confidence, hits = confidence_and_hits(data, fitted.base_temperature)
    slope = theirs(confidence, hits, 6).derivative()
    expected = slope((np.argsort(np.argsort(confidence)) + 0.5) / data.n)
    given = np.interp(confidence, fitted.confidence, fitted.correction)
    np.testing.assert_allclose(given, expected, atol=1e-4)


def test_finds_a_smooth_truth_that_no_temperature_can() -> None:
    rng = np.random.default_rng(1)
    column = rng.normal(size=60_000) * 2
    confidence = 1 / (1 + np.exp(-np.abs(column)))
    chance = 0.6 + 0.3 * (2 * confidence - 1) ** 2
    labels = (column > 0) == (rng.random(60_000) < chance)
    data = CalibrationSet(column, labels.astype(int))
    errors = [
        np.abs(recipe.fit(data).apply(column).max(axis=1) - chance).mean()
        for recipe in (Spline(), TemperatureScaling())
    ]
    assert errors[0] < 0.01 < errors[1] / 2


def test_leaves_a_calibrated_model_nearly_unchanged() -> None:
    fitted = Spline().fit(draw(50_000, 5))
    assert np.abs(fitted.correction).max() < 0.03


def test_the_real_sample_is_calibrated_on_average() -> None:
    cal, test = sample("cal"), sample("test")
    fitted = Spline().fit(cal)
    base = TemperatureScaling().fit(cal)
    before, after = base.apply(cal.logits), fitted.apply(cal.logits)
    right = (cal.logits.argmax(axis=1) == cal.labels).mean()
    assert abs(after.max(axis=1).mean() - right) < abs(before.max(axis=1).mean() - right)
    assert debiased_squared_error(after, cal.labels) <= debiased_squared_error(before, cal.labels)
    assert nll(fitted.apply(test.logits), test.labels) < 1.01 * nll(
        base.apply(test.logits), test.labels
    )


def test_equal_confidences_get_one_correction_whatever_their_order() -> None:
    rows = np.repeat([[0.0, 0.4], [0.0, 1.0], [0.0, 3.0]], [50, 30, 60], axis=0)
    labels = np.concatenate([np.arange(50) < 20, np.arange(30) < 25, np.arange(60) < 57])
    data = CalibrationSet(rows, labels.astype(int))
    fitted = Spline().fit(data)
    assert fitted.confidence.size == 3
    turned = Spline().fit(data.take(np.arange(140)[::-1]))
    np.testing.assert_array_equal(turned.correction, fitted.correction)


def test_half_of_the_rows_with_the_same_confidence() -> None:
    data = draw(6000, 2, dtype=np.float64)
    column = (data.logits[:, 1] - data.logits[:, 0]).clip(-3, 3)
    fitted = Spline().fit(CalibrationSet(column, data.labels))
    share = (np.abs(column) == 3).mean()
    assert 0.3 < share < 0.9
    assert fitted.confidence.size <= NODES
    assert fitted.confidence[-1] == pytest.approx(1 / (1 + np.exp(-3 / fitted.base_temperature)))


def test_a_correction_stops_short_of_certainty() -> None:
    fitted = SplineMap(
        k=2,
        base_temperature=1.0,
        confidence=np.array([0.5, 1.0]),
        correction=np.array([0.4, 0.4]),
        least=0.01,
    )
    rows = np.array([[0.0, logit(0.55)], [0.0, logit(0.7)], [0.0, logit(0.995)]])
    np.testing.assert_allclose(fitted.apply(rows)[:, 1], [0.95, 0.99, 0.995], atol=1e-12)
    lower = replace(fitted, k=9, correction=np.array([-0.9, -0.9]))
    row = np.zeros((1, 9))
    row[0, 0] = 3.0
    new = lower.apply(row)[0]
    assert new[0] == new.max() == pytest.approx(1 / 9, rel=2e-4)


def test_onnx_agrees_on_the_real_sample() -> None:
    fitted = Spline().fit(sample("cal"))
    rows = sample("test").logits
    session = onnxruntime.InferenceSession(onnx.export(fitted))
    (given,) = session.run(None, {"logits": rows})
    assert np.abs(given - fitted.apply(rows)).max() <= 1e-6


def test_invalid_maps() -> None:
    good = SplineMap(
        k=3, base_temperature=1.0, confidence=np.ones(2), correction=np.zeros(2), least=0.1
    )
    with pytest.raises(ParameterError, match=r"equal length, got shapes \(2,\) and \(3,\)"):
        replace(good, correction=np.zeros(3))
    with pytest.raises(ParameterError, match="correction must be finite, got nan"):
        replace(good, correction=np.array([0.0, np.nan]))
    with pytest.raises(ParameterError, match="confidence must contain at least 1 number"):
        replace(good, confidence=np.zeros(0), correction=np.zeros(0))
    with pytest.raises(ParameterError, match="confidence must be finite and non-decreasing"):
        replace(good, confidence=np.array([0.5, 0.4]))
    for least in (0.0, 0.5, 0.7, np.nan):
        with pytest.raises(ParameterError, match=rf"least must be in \(0, 0.5\), got {least}"):
            replace(good, least=least)
