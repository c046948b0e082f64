"""Feature clipping compared with a short implementation of its formula."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

from calibrators import CalibrationSet, ExportError, FitError, ParameterError, archive
from calibrators.export import onnx
from calibrators.methods.feature_clipping import FeatureClipping, FeatureClippingMap
from calibrators.methods.temperature import TemperatureScaling
from calibrators.metrics import ece

Array = NDArray[Any]


def extreme(n: int, *, seed: int = 0, dtype: type = np.float64) -> tuple[CalibrationSet, Array]:
    """Return rows whose labels follow the features clipped at 1.5, and their true probabilities."""
    rng = np.random.default_rng(seed)
    h = rng.exponential(size=(n, 12)).astype(dtype)
    weight, bias = np.random.default_rng(99).normal(size=(5, 12)) * 1.5, np.arange(5.0)
    truth = np.minimum(h, 1.5) @ weight.T + bias
    labels = (truth + rng.gumbel(size=truth.shape)).argmax(axis=1)
    logits = (h.astype(np.float64) @ weight.T + bias).astype(np.float32)
    return CalibrationSet(logits, labels, features=h, head=(weight, bias)), softmax(truth, axis=1)


DATA, TRUTH = extreme(3000)
assert DATA.features is not None
assert DATA.features.head is not None
H, WEIGHT, BIAS = DATA.features.values, DATA.features.head.weight, DATA.features.head.bias


def head_of_clipped(h: Array, c: float) -> Array:
    return np.clip(h, -c, c) @ WEIGHT.T + BIAS


@pytest.mark.parametrize("threshold", [0.1, 1.0, 5.0])
def test_the_map_is_the_head_of_clipped_features(threshold: float) -> None:
    h = H - 0.5  # of both signs
    given = h @ WEIGHT.T + BIAS
    fitted = FeatureClippingMap(k=5, weight=WEIGHT, threshold=threshold, temperature=1.7)
    expected = softmax(head_of_clipped(h, threshold) / 1.7, axis=1)
    np.testing.assert_allclose(fitted.apply(given, features=h), expected, atol=1e-12)
    moved = given + np.arange(3000)[:, np.newaxis]  # a constant added to a row changes nothing
    np.testing.assert_allclose(fitted.apply(moved, features=h), expected, atol=1e-10)


@pytest.mark.parametrize("objective", ["nll", "ece"])
@pytest.mark.parametrize("scaled", [True, False])
def test_the_threshold_is_the_best_of_the_grid(objective: Any, scaled: bool) -> None:
    fitted = FeatureClipping(objective=objective, scaled=scaled, thresholds=15).fit(DATA)
    grid = np.abs(H).max() * 200.0 ** -np.linspace(0, 1, 15)
    rows, accuracy = np.arange(DATA.n), (DATA.logits.argmax(axis=1) == DATA.labels).mean()

    def nll(z: Array, beta: float) -> float:
        return float(-log_softmax(beta * z, axis=1)[rows, DATA.labels].mean())

    found = []
    for c in grid:
        z = head_of_clipped(H, c)
        if (z.argmax(axis=1) == DATA.labels).mean() < 0.99 * accuracy:
            continue
        beta = 1.0
        if scaled:
            beta = minimize_scalar(lambda b, z=z: nll(z, b), bounds=(1e-3, 10), method="bounded").x
        value = nll(z, beta) if objective == "nll" else ece(softmax(beta * z, axis=1), DATA.labels)
        found.append((value, c, 1 / beta))
    value, c, temperature = min(found)
    assert fitted.threshold == pytest.approx(c)
    assert fitted.temperature == pytest.approx(temperature, rel=1e-3)
    assert fitted.fit_info["value"] == pytest.approx(value, rel=1e-3)


def test_it_finds_the_truth_that_temperature_scaling_cannot() -> None:
    other, truth = extreme(5000, seed=7)
    clipped = FeatureClipping(thresholds=200).fit(DATA)
    assert clipped.threshold == pytest.approx(1.5, abs=0.1)
    assert clipped.temperature == pytest.approx(1, abs=0.05)
    off = np.abs(clipped.apply_set(other) - truth).mean()
    scaled = np.abs(TemperatureScaling().fit(DATA).apply_set(other) - truth).mean()
    assert off < 0.1 * scaled


def test_without_clipping_it_is_temperature_scaling() -> None:
    rng = np.random.default_rng(3)
    h = rng.normal(size=(2000, 6))
    z = h @ rng.normal(size=(4, 6)).T
    labels = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    head = np.linalg.lstsq(h, 2 * z, rcond=None)[0].T
    data = CalibrationSet(2 * z, labels, features=h, head=(head, None))
    fitted = FeatureClipping().fit(data)
    assert fitted.threshold >= np.quantile(np.abs(h), 0.99)
    whole = replace(fitted, threshold=float(np.abs(h).max()))
    scaled = replace(TemperatureScaling().fit(data), temperature=whole.temperature)
    np.testing.assert_allclose(
        whole.apply(data.logits, features=h), scaled.apply(data.logits), atol=1e-12
    )


def test_float16_features_give_nearly_the_same_map() -> None:
    half, _ = extreme(3000, dtype=np.float16)
    single = FeatureClipping().fit(DATA)
    assert half.features is not None
    assert half.features.values.dtype == np.float16
    fitted = FeatureClipping().fit(half)
    assert fitted.threshold == pytest.approx(single.threshold, rel=0.01)
    p = fitted.apply(half.logits, features=half.features.values)
    np.testing.assert_allclose(p, single.apply(DATA.logits, features=H), atol=0.01)


def test_accuracy_is_kept() -> None:
    """Only the extremes of a feature identify the class; clipping it would lower the ECE."""
    fitted = FeatureClipping(objective="ece", scaled=False, accuracy_kept=1.0).fit(DATA)
    right = DATA.logits.argmax(axis=1) == DATA.labels
    kept = fitted.apply_set(DATA).argmax(axis=1) == DATA.labels
    assert kept.mean() >= right.mean()


@pytest.mark.parametrize(
    "head",
    [(WEIGHT[::-1], BIAS), (2 * WEIGHT, BIAS), (WEIGHT, 5 * BIAS), (WEIGHT[:, ::-1], BIAS)],
)
def test_another_head_is_refused(head: tuple[Array, Array]) -> None:
    with pytest.raises(FitError, match="must reproduce the logits from the features") as caught:
        FeatureClipping().fit(DATA.with_features(H, head))
    assert caught.value.code == "head_differs"


def test_a_graph_takes_no_features() -> None:
    with pytest.raises(ExportError, match="needs the features of each row"):
        onnx.export(FeatureClipping(thresholds=5).fit(DATA))


@pytest.mark.parametrize(
    "wrong",
    [{"threshold": 0.0}, {"threshold": np.inf}, {"weight": np.ones((4, 12))}, {"temperature": 0.0}],
)
def test_no_map_of_impossible_parameters(wrong: dict[str, Any]) -> None:
    right = {"k": 5, "weight": WEIGHT, "threshold": 1.0, "temperature": 1.0}
    assert archive.load(archive.dump(FeatureClippingMap(**right))).threshold == 1
    with pytest.raises(ParameterError):
        FeatureClippingMap(**{**right, **wrong})


@pytest.mark.parametrize("largest", [1e100, 1.7e308])
@pytest.mark.parametrize("rows", [7, 300])
def test_an_extreme_feature_does_not_break_the_fit(rows: int, largest: float) -> None:
    """It used to raise "math domain error": the temperature of logits of 1e308 overflowed."""
    rng = np.random.default_rng(0)
    h, w = rng.normal(size=(rows, 5)), rng.normal(size=(2, 5))
    z = h @ w.T
    y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    y[:2] = [1 - z[0].argmax(), z[1].argmax()]
    h[0, 0] = largest
    fitted = FeatureClipping().fit(CalibrationSet(z, y, features=h, head=(w, None)))
    assert np.isfinite(fitted.apply(z, features=h)).all()
