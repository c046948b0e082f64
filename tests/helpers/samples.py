"""Synthetic sets with a known truth, and the bundled real sample."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax

from calibrators import CalibrationMap, CalibrationSet, Calibrator
from calibrators.methods._ties import share_reach
from calibrators.methods.temperature import TemperatureScaling

EXAMPLES = Path(__file__).parents[2] / "examples" / "data"


def draw(
    n: int, k: int, *, temperature: float = 2.0, seed: int = 0, dtype: type = np.float32
) -> CalibrationSet:
    """Return logits whose labels are drawn from softmax(logits / temperature)."""
    rng = np.random.default_rng(seed)
    true_logits = rng.normal(size=(n, k)) * 1.5
    true_logits[np.arange(n), rng.integers(k, size=n)] += rng.gamma(2.0, 1.5, size=n)
    labels = (true_logits + rng.gumbel(size=(n, k))).argmax(axis=1)
    return CalibrationSet((true_logits * temperature).astype(dtype), labels)


def draw_apart(n: int, k: int, *, seed: int = 0) -> CalibrationSet:
    """Return ``n`` rows in float64 with confidences that are all distinct for a fit.

    Other implementations only pool values that are exactly equal.
    """
    data = draw(2 * n, k, seed=seed, dtype=np.float64)
    pool = np.arange(2 * n)
    while True:
        chosen = data.take(pool[:n])
        confidence, _ = confidence_and_hits(chosen, TemperatureScaling().fit(chosen).temperature)
        order = np.argsort(confidence)
        gaps, ties = np.diff(confidence[order]), share_reach(confidence) - confidence
        close = order[1:][gaps <= 2 * ties[order[:-1]]]
        if not close.size:
            return chosen
        pool = np.delete(pool, close)


def in_segments(data: CalibrationSet, count: int = 3) -> CalibrationSet:
    """Return the same rows, assigned to a few segments."""
    return data.with_segments([f"segment {place % count}" for place in range(data.n)])


def distorted(n: int, k: int, *, seed: int = 0, spread: float = 0.3) -> CalibrationSet:
    """Return logits distorted by a weight and a bias for each class and a little mixing."""
    data = draw(n, k, seed=seed, dtype=np.float64)
    rng = np.random.default_rng(seed + 1)
    mixing = np.diag(np.exp(spread * rng.normal(size=k))) + spread / 5 * rng.normal(size=(k, k))
    return CalibrationSet(data.logits @ mixing + 2 * spread * rng.normal(size=k), data.labels)


def confidence_and_hits(
    data: CalibrationSet, temperature: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the largest softmax(logits / temperature) of each row, and 1.0 where it is right."""
    p = softmax(data.logits.astype(np.float64) / temperature, axis=1)
    return p.max(axis=1), (p.argmax(axis=1) == data.labels).astype(np.float64)


def sample(name: str) -> CalibrationSet:
    """Return a bundled Fashion-MNIST set: cal or test."""
    with np.load(EXAMPLES / f"fashion_ce__{name}.npz", allow_pickle=False) as file:
        return CalibrationSet(file["logits"], file["labels"])


def two_regimes(n: int, seed: int) -> tuple[CalibrationSet, np.ndarray]:
    """Return rows that are overconfident only at large margins, beyond a single temperature."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, 4)) * 3
    top = np.sort(z, axis=1)
    temperature = np.where(top[:, -1] - top[:, -2] > 2, 3.0, 0.8)
    truth = z / temperature[:, None]
    labels = (truth + rng.gumbel(size=z.shape)).argmax(axis=1)
    return CalibrationSet(z, labels), softmax(truth, axis=1).max(axis=1)


def features_of(logits: NDArray[Any]) -> NDArray[Any]:
    """Return features (n, 2 k) that the head of ``head_of`` maps to logits (n, k).

    They are the positive and negative parts of the logits minus their row's mean, so permuted
    classes or scaled logits give equally permuted or scaled features. Non-finite values count as
    the mean.
    """
    seen = np.where(np.isfinite(logits), logits, np.nan).astype(np.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # rows without a finite value
        centred = np.nan_to_num(seen - np.nanmean(seen, axis=1, keepdims=True))
    return np.concatenate([np.maximum(centred, 0), np.maximum(-centred, 0)], axis=1)


def head_of(k: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the weight and the bias of a head for ``features_of``."""
    return np.concatenate([np.eye(k), -np.eye(k)], axis=1), np.zeros(k)


def with_features(data: CalibrationSet) -> CalibrationSet:
    """Return the same rows with features and a head that produce their logits."""
    return data.with_features(features_of(data.logits), head_of(data.k))


def suited(data: CalibrationSet, recipe: type[Calibrator] | Calibrator) -> CalibrationSet:
    """Return the same rows with the segments or features that a method needs."""
    if recipe.needs_segments:
        data = in_segments(data)
    return with_features(data) if recipe.needs_features else data


def applied(fitted: CalibrationMap, values: ArrayLike) -> NDArray[Any]:
    """Return calibrated probabilities, with ``features_of`` the rows if the map needs features."""
    return fitted.apply(values, features=_features(fitted, values))


def transformed(fitted: CalibrationMap, values: ArrayLike) -> NDArray[Any]:
    """Return calibrated logits, with features as for ``applied``."""
    return fitted.transform(values, features=_features(fitted, values))


def _features(fitted: CalibrationMap, values: ArrayLike) -> NDArray[Any] | None:
    return features_of(fitted.read(values)[0]) if fitted.has_features else None
