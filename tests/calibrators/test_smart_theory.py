"""Appendix A.3 of the SMART paper: how sharpening a slice of rows changes NLL and calibration."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrators.data import CalibrationSet
from calibrators.metrics import TopLabel, nll, smce
from calibrators.numerics.confidence_curves import observe
from calibrators.numerics.objectives import make_objective
from calibrators.numerics.softmax import softmax


def sharpened(z: np.ndarray, rows: np.ndarray, s: float) -> np.ndarray:
    """Divide the temperature of some rows by s, and return the probabilities."""
    return softmax(np.where(rows[:, None], s * z, z))


def drawn(seed: int, n: int, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return logits, labels, a slice of rows and the probability of every label."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, k)) * 2
    truth = rng.dirichlet(np.ones(k), size=n)
    labels = np.array([rng.choice(k, p=p) for p in truth])
    return z, labels, rng.random(n) < 0.5, truth


@pytest.mark.parametrize("k", [2, 5])
def test_equation_25_is_the_slope_of_the_nll_and_equation_3_its_negative(k: int) -> None:
    z, labels, rows, _ = drawn(0, 60, k)
    q = softmax(z)
    slope = np.where(rows, (q * z).sum(axis=1) - z[np.arange(60), labels], 0.0).mean()
    ends = [nll(sharpened(z, rows, s), labels) for s in (1 - 1e-5, 1 + 1e-5)]
    assert slope == pytest.approx((ends[1] - ends[0]) / 2e-5, abs=1e-6)
    objective = make_objective("nll", observe(CalibrationSet(z, labels), exact=True))
    assert objective(np.ones(60))[1][rows].sum() == pytest.approx(slope)


@pytest.mark.parametrize("k", [2, 5])
def test_equation_26_is_the_slope_of_a_calibration_functional(k: int) -> None:
    z, _, rows, truth = drawn(1, 60, k)
    top = np.arange(60), z.argmax(axis=1)
    r, q = truth[top], softmax(z)
    p, lead = q[top], z[top] - (q * z).sum(axis=1)

    def functional(s: float) -> float:
        confidence = sharpened(z, rows, s)[top]
        return float(((r - confidence) * np.sin(confidence)).mean())

    slope = np.where(rows, p * lead * (np.cos(p) * (r - p) - np.sin(p)), 0.0).mean()
    found = (functional(1 + 1e-5) - functional(1 - 1e-5)) / 2e-5
    assert slope == pytest.approx(found, abs=1e-6)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.integers(0, 10_000), st.integers(2, 8))
def test_lemma_2_and_equation_28(seed: int, k: int) -> None:
    t, _, _, truth = drawn(seed, 30, k)
    top = np.arange(30), t.argmax(axis=1)
    q, ordered = softmax(t), np.sort(t, axis=1)
    mean = (q * t).sum(axis=1)
    gap, spread = ordered[:, -1] - ordered[:, -2], ordered[:, -2] - ordered[:, 0]
    p, r = q[top], truth[top]
    assert (t[top] - mean >= (1 - p) * gap - 1e-12).all()
    slope = mean - (truth * t).sum(axis=1)
    assert (slope <= (p - r) * gap + (1 - r) * spread + 1e-12).all()


def test_proposition_a_2_bounds_one_probe_and_not_the_smooth_calibration_error() -> None:
    """Eq. 31 holds and sharpening lowers the NLL, but smCE falls as well."""
    margin = np.repeat(
        np.concatenate([np.linspace(0.38, 0.40, 50), np.linspace(2.16, 2.18, 50)]), 20
    )
    right = np.tile(np.arange(20), 100) < np.repeat([18, 17], 1000)  # 90 % and 85 %
    p = 1 / (1 + np.exp(-margin))
    under, over = p < 0.7, p > 0.7
    gain, loss = 0.9 - p[under].max(), p[over].max() - 0.85
    assert gain * margin[under].min() * 0.5 > margin[over].max() * loss * 0.5

    def measured(s: float) -> tuple[float, float]:
        confidence = 1 / (1 + np.exp(-s * margin))
        losses = -np.log(np.where(right, confidence, 1 - confidence))
        return float(losses.mean()), smce(TopLabel(confidence, right))

    before, after = measured(1.0), measured(1.01)
    assert after[0] < before[0]
    assert after[1] < before[1] - 1e-4
