"""Beta calibration: betacal and scipy on the same likelihood, known truth and edge cases."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
from betacal import BetaCalibration
from helpers.samples import draw, sample
from scipy.optimize import minimize
from scipy.special import expit, log_softmax, logit, softmax

from calibrators import CalibrationSet, ParameterError
from calibrators.errors import NotConverged
from calibrators.export import onnx
from calibrators.methods import _logistic3
from calibrators.methods.beta import Beta, BetaMap
from calibrators.methods.temperature import TemperatureScaling
from calibrators.metrics import nll


def bent(n: int, a: float, b: float, c: float, seed: int = 0) -> CalibrationSet:
    """Return binary logits whose true log odds are a ln p - b ln(1 - p) + c."""
    rng = np.random.default_rng(seed)
    p = rng.beta(0.7, 0.7, size=n).clip(1e-6, 1 - 1e-6)
    labels = rng.random(n) < expit(a * np.log(p) - b * np.log1p(-p) + c)
    return CalibrationSet(logit(p), labels.astype(int))


def objective(
    weights: np.ndarray, p: np.ndarray, is_label: np.ndarray, prior: float
) -> tuple[float, np.ndarray]:
    """Return a class's mean NLL with the prior, and its gradient."""
    inputs = np.stack([np.log(p), -np.log1p(-p), np.ones_like(p)])
    margin = weights @ inputs
    away = weights - [1.0, 1.0, 0.0]
    value = np.logaddexp(0, margin).sum() - margin[is_label].sum() + prior / 2 * away @ away
    slope = inputs @ (expit(margin) - is_label) + prior * away
    return value / len(p), slope / len(p)


def mean_nll(p: np.ndarray, labels: np.ndarray) -> float:
    return float(-np.log(np.where(labels == 1, p, 1 - p)).mean())


def scaled(data: CalibrationSet, fitted: BetaMap) -> np.ndarray:
    return np.exp(log_softmax(data.logits.astype(np.float64) / fitted.base_temperature, axis=1))


@pytest.mark.parametrize("k", [2, 3, 12])
@pytest.mark.parametrize("prior", [1e-3, 0.1, 30.0])
def test_reaches_the_optimum_that_scipy_finds(k: int, prior: float) -> None:
    data = draw(1500, k, dtype=np.float64, seed=k)
    fitted = Beta(prior=prior).fit(data)
    assert isinstance(fitted, BetaMap)
    p = scaled(data, fitted)
    values = []
    for j in range(k):
        args = (p[:, j], data.labels == j, prior)
        best = minimize(
            objective,
            [1.0, 1.0, 0.0],
            args,
            jac=True,
            method="L-BFGS-B",
            bounds=[(0, None), (0, None), (None, None)],
            options={"ftol": 1e-15, "gtol": 1e-10, "maxiter": 10_000},
        )
        ours = np.array([fitted.a[j], fitted.b[j], fitted.c[j]])
        values.append(objective(ours, *args)[0])
        assert values[-1] <= best.fun + 1e-12
        np.testing.assert_allclose(ours, best.x, atol=2e-3)
    assert fitted.fit_info["value"] == pytest.approx(np.mean(values), abs=1e-12)
    assert fitted.fit_info["gradient"] <= 1e-8


@pytest.mark.parametrize("truth", [(0.5, 1.5, 0.3), (2.0, 0.6, -0.5), (1.0, 1.0, 1.0)])
def test_agrees_with_betacal(truth: tuple[float, float, float]) -> None:
    data = bent(3000, *truth)
    fitted = Beta(prior=1e-6).fit(data)
    p = scaled(data, fitted)[:, 1]
    with warnings.catch_warnings():  # betacal turns all warnings off
        other = BetaCalibration(parameters="abm").fit(p, data.labels)
        expected = other.predict(p)
    given = fitted.apply(data.logits)[:, 1]
    np.testing.assert_allclose(given, expected, atol=1e-3)
    np.testing.assert_allclose([fitted.a[1], fitted.b[1]], other.calibrator_.map_[:2], rtol=0.02)
    assert mean_nll(given, data.labels) <= mean_nll(expected, data.labels)


@pytest.mark.parametrize("truth", [(0.5, 1.5, 0.3), (2.0, 0.6, -0.5)])
def test_finds_the_truth(truth: tuple[float, float, float]) -> None:
    data = bent(200_000, *truth)
    p = expit(data.logits[:, 1] - data.logits[:, 0])
    expected = expit(truth[0] * np.log(p) - truth[1] * np.log1p(-p) + truth[2])
    given = Beta().fit(data).apply(data.logits)[:, 1]
    assert np.abs(given - expected).mean() < 5e-3


def test_one_one_nothing_is_temperature_scaling() -> None:
    rows = draw(400, 5, dtype=np.float64).logits
    ones = np.ones(5)
    fitted = BetaMap(k=5, base_temperature=1.7, a=ones, b=ones, c=np.zeros(5))
    np.testing.assert_allclose(fitted.apply(rows), softmax(rows / 1.7, axis=1), atol=1e-12)


def test_a_strong_prior_is_temperature_scaling() -> None:
    data = draw(600, 4, dtype=np.float64)
    base = TemperatureScaling().fit(data)
    np.testing.assert_allclose(
        Beta(prior=1e9).fit(data).apply(data.logits), base.apply(data.logits), atol=1e-5
    )


def test_the_two_functions_of_two_classes_mirror_each_other() -> None:
    fitted = Beta().fit(bent(2000, 0.5, 1.5, 0.3))
    assert fitted.a == pytest.approx(fitted.b[::-1], abs=1e-6)
    assert fitted.c[0] == pytest.approx(-fitted.c[1], abs=1e-6)


@pytest.mark.parametrize("truth", [(-0.6, 1.0, 0.0), (1.0, -0.6, 0.0), (3.0, -2.0, 1.0)])
def test_a_negative_parameter_becomes_0_and_the_others_are_refitted(
    truth: tuple[float, float, float],
) -> None:
    data = bent(4000, *truth)
    fitted = Beta(prior=1e-6).fit(data)
    p = scaled(data, fitted)[:, 1]
    lost = 0 if truth[0] < 0 else 1
    bends = np.stack([fitted.a, fitted.b])[:, 1]
    assert bends[lost] == 0 < bends[1 - lost]
    with warnings.catch_warnings():
        other = BetaCalibration(parameters="abm").fit(p, data.labels).predict(p)
    given = fitted.apply(data.logits)[:, 1]
    assert mean_nll(given, data.labels) <= mean_nll(other, data.labels)
    face = minimize(
        lambda w: objective(np.insert(w, lost, 0.0), p, data.labels == 1, 1e-6)[0],
        [1.0, 0.0],
        method="Nelder-Mead",
        options={"xatol": 1e-9, "fatol": 1e-14, "maxiter": 4000},
    )
    np.testing.assert_allclose([bends[1 - lost], fitted.c[1]], face.x, rtol=1e-4)
    assert np.diff(fitted.apply(np.linspace(-9, 9, 50))[:, 1]).min() >= 0


def test_both_bends_may_vanish() -> None:
    rng = np.random.default_rng(0)
    first, second = -rng.exponential(size=(2, 1, 500))
    label = (rng.random((1, 500)) < expit(-first + second)).astype(np.float64)
    problem = _logistic3.LogisticProblem(first, -second, label, None, 1e-6)
    found = _logistic3.minimum(problem, 1e-9)
    assert found.weights[0, :2].tolist() == [0, 0]
    assert expit(found.weights[0, 2]) == pytest.approx(label.mean(), abs=1e-6)


def test_rows_that_do_not_count_have_no_effect() -> None:
    rng = np.random.default_rng(1)
    first, second = -rng.exponential(size=(2, 3, 400))
    label = (rng.random((3, 400)) < 0.4).astype(np.float64)
    counts = (rng.random((3, 400)) < 0.7).astype(np.float64)
    masked = _logistic3.LogisticProblem(
        first * counts, -second * counts, label * counts, counts, prior=0.5
    )
    found = _logistic3.minimum(masked, 1e-10)
    for j in range(3):
        kept = counts[j] == 1
        alone = _logistic3.LogisticProblem(
            first[j : j + 1, kept], -second[j : j + 1, kept], label[j : j + 1, kept], None, 0.5
        )
        expected = _logistic3.minimum(alone, 1e-10)
        np.testing.assert_allclose(found.weights[j], expected.weights[0], atol=1e-8)
        assert found.value[j] == pytest.approx(expected.value[0], abs=1e-12)


def test_classes_that_never_or_always_occur_have_a_finite_optimum() -> None:
    data = draw(2000, 4)
    rest = data.take(np.flatnonzero(data.labels != 2))
    fitted = Beta().fit(rest)
    p = fitted.apply(data.logits)
    assert np.isfinite([fitted.a, fitted.b, fitted.c]).all()
    assert (p[:, 2] > 0).all()
    assert np.median(p[:, 2]) < 0.01
    told_apart = CalibrationSet(
        np.where(np.eye(3)[np.arange(300) % 3] > 0, 4.0, 0.0) + draw(300, 3).logits / 20,
        np.where(np.arange(300) < 297, np.arange(300) % 3, 0),
    )
    assert np.isfinite(Beta().fit(told_apart).apply(told_apart.logits)).all()


def test_never_worse_than_temperature_scaling_on_its_own_rows_with_two_classes() -> None:
    for seed in range(5):
        data = draw(300, 2, seed=seed)
        base = TemperatureScaling().fit(data)
        scores = [nll(m.apply(data.logits), data.labels) for m in (Beta().fit(data), base)]
        assert scores[0] <= scores[1] + 1e-9


def test_better_on_the_real_sample() -> None:
    cal, test = sample("cal"), sample("test")
    base, fitted = TemperatureScaling().fit(cal), Beta().fit(cal)
    assert nll(fitted.apply(test.logits), test.labels) < nll(base.apply(test.logits), test.labels)
    session = onnxruntime.InferenceSession(onnx.export(fitted))
    (given,) = session.run(None, {"logits": test.logits})
    assert np.abs(given - fitted.apply(test.logits)).max() <= 1e-6


def test_warns_if_it_did_not_converge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_logistic3, "STEPS", 1)
    with pytest.warns(NotConverged, match="above the tolerance of 1e-08"):
        fitted = Beta().fit(bent(2000, 0.3, 2.5, 1.0))
    assert fitted.fit_info["gradient"] > 1e-8


def test_invalid_maps() -> None:
    ones = np.ones(3)
    good = BetaMap(k=3, base_temperature=1.0, a=ones, b=ones, c=ones)
    with pytest.raises(ParameterError, match=r"a must have .* each of 3 classes, got shape \(2,\)"):
        replace(good, a=np.ones(2))
    with pytest.raises(ParameterError, match=r"b must be at least 0, got -1 at \[0\]"):
        replace(good, b=-ones)
    with pytest.raises(ParameterError, match=r"c must be finite, got nan at \[1\]"):
        replace(good, c=np.array([0.0, np.nan, 0.0]))


def test_values_too_small_for_float32_cause_no_warning() -> None:
    huge = np.full(3, 1e40)
    fitted = BetaMap(k=3, base_temperature=1.0, a=huge, b=np.zeros(3), c=huge)
    rows = np.array([[9.0, 0.0, 0.0]], dtype=np.float32)
    with np.errstate(all="raise", under="ignore"):
        assert fitted.apply(rows).tolist() == [[1.0, 0.0, 0.0]]
