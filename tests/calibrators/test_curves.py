"""The confidence curve compared with the softmax itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.samples import draw
from scipy.special import logsumexp

from calibrators import CalibrationSet
from calibrators.numerics.confidence_curves import (
    ExactCurve,
    TabulatedCurve,
    observe,
    second_derivatives,
)


def direct(data: CalibrationSet, scale: float, beta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return L and dL/dlog(beta) by the definition, in float64."""
    z = data.logits.astype(np.float64) * scale
    gaps = z.max(axis=1, keepdims=True) - z
    value = logsumexp(-beta[:, None] * gaps, axis=1)
    weights = np.exp(-beta[:, None] * gaps - value[:, None])
    finite = np.where(np.isfinite(gaps), gaps, 0)
    return value, -(weights * beta[:, None] * finite).sum(axis=1)


def adversarial() -> CalibrationSet:
    """Return near ties, exact ties, margins of 60 and more, almost fully masked rows, K = 2,000."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(400, 2000)) * rng.choice([0.01, 1, 10], size=(400, 1))
    z[:50, 0] = z[:50].max(axis=1) + 1e-4
    z[50:100, 3] = z[50:100].max(axis=1)
    z[100:150, 5] = z[100:150].max(axis=1) + 60
    z[150:200, 10:] = -np.inf
    z[200:210, 1:] = -np.inf
    labels = np.where(np.arange(400) < 200, z.argmax(axis=1), 0)
    return CalibrationSet(z.astype(np.float32), labels)


@pytest.mark.parametrize("case", ["ordinary", "adversarial"])
def test_table_gives_the_confidence(case: str) -> None:
    data = draw(500, 300) if case == "ordinary" else adversarial()
    rng = np.random.default_rng(1)
    curve = TabulatedCurve.build(data, 0.7, None)
    for _ in range(5):
        beta = 2.0 ** rng.uniform(-4, 5, size=data.n)
        value, slope = curve.log_partition(beta)
        expected, expected_slope = direct(data, 0.7, beta)
        limit = 2e-6 if case == "ordinary" else 2e-5
        assert np.abs(np.exp(-value) - np.exp(-expected)).max() < limit
        error = np.abs(np.exp(-value) * slope - np.exp(-expected) * expected_slope)
        assert error.max() < 50 * limit
        unsure = -np.expm1(-expected)
        assert (np.abs(-np.expm1(-value) - unsure) <= 2e-4 * unsure + 1e-12).all()


def test_table_agrees_with_the_logits_path() -> None:
    data = draw(300, 140)
    beta = np.linspace(0.1, 9, data.n)
    exact = ExactCurve.build(data, 1.3, None).log_partition(beta)
    table = TabulatedCurve.build(data, 1.3, None).log_partition(beta)
    np.testing.assert_allclose(np.exp(-table[0]), np.exp(-exact[0]), atol=3e-6)
    np.testing.assert_allclose(table[1], exact[1], atol=1e-3)


@pytest.mark.parametrize("k", [4, 200])
def test_torch_and_numpy_agree(k: int, device: str) -> None:
    data = draw(300, k)
    beta = np.linspace(0.1, 9, data.n)
    ours = observe(data, 0.8, with_mean_gaps=True)
    theirs = observe(data, 0.8, device, with_mean_gaps=True)
    tensor = torch.from_numpy(beta).to(device)
    for mine, its in (
        (ours.curve.log_partition(beta), theirs.curve.log_partition(tensor)),
        (ours.curve.confidence(beta), theirs.curve.confidence(tensor)),
    ):
        for one, other in zip(mine, its, strict=True):
            np.testing.assert_allclose(one, other.cpu().numpy(), atol=1e-5)
    for name in ("label_gap", "mean_gap", "correct", "weight"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name).cpu().numpy())


@pytest.mark.parametrize("k", [5, 40])
def test_confidence_is_that_of_the_log_partition(k: int) -> None:
    data = draw(300, k, dtype=np.float64)
    beta = 2.0 ** np.random.default_rng(2).uniform(-3, 4, size=data.n)
    curve = observe(data, 0.8).curve
    value, slope = curve.log_partition(beta)
    confidence, rise = curve.confidence(beta)
    np.testing.assert_allclose(confidence, np.exp(-value), rtol=1e-9)
    np.testing.assert_allclose(rise, -np.exp(-value) * slope, atol=1e-12)


@pytest.mark.parametrize("k", [2, 3, 20, 60])
def test_a_table_of_few_classes_is_as_good(k: int) -> None:
    data = draw(400, k, dtype=np.float64)
    logits = data.logits.copy()
    logits[:5] = -np.inf  # rows with a single finite logit
    logits[np.arange(5), data.labels[:5]] = 1.0
    masked = CalibrationSet(logits, data.labels)
    beta = 2.0 ** np.random.default_rng(2).uniform(-4, 5, size=data.n)
    value, _ = TabulatedCurve.build(masked, 0.7, None).log_partition(beta)
    expected, _ = direct(masked, 0.7, beta)
    assert np.abs(np.exp(-value) - np.exp(-expected)).max() < 2e-6


def test_beta_is_held_beyond_the_ends() -> None:
    curve = TabulatedCurve.build(draw(20, 200), 1.0, None)
    for outside, end in ((1e-9, 2.0**-4), (1e9, 2.0**5)):
        np.testing.assert_array_equal(
            curve.log_partition(np.full(20, outside))[0], curve.log_partition(np.full(20, end))[0]
        )


def test_many_classes_use_the_table_and_few_do_not() -> None:
    assert isinstance(observe(draw(10, 17)).curve, TabulatedCurve)
    assert isinstance(observe(draw(10, 16)).curve, ExactCurve)


def test_second_derivatives_of_polynomials_are_exact() -> None:
    polynomial, step = np.polynomial.Polynomial([2, -1, 0.5, 0.3, -0.2, 0.1]), 0.25
    x = step * np.arange(9)
    slope, bend = polynomial.deriv()(x) * step, polynomial.deriv(2)(x) * step**2 / 2
    column = np.concatenate([polynomial(x), slope, bend[[0, -1]]])
    np.testing.assert_allclose(second_derivatives(len(x)) @ column, bend, atol=1e-12)
