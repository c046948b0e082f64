"""Synthetic classifiers with a known truth."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

Sample = tuple[np.ndarray, np.ndarray]


def draw_labels(probabilities: np.ndarray, random: np.random.Generator) -> np.ndarray:
    uniform = random.random((probabilities.shape[0], 1))
    drawn = (uniform > np.cumsum(probabilities, axis=1)).sum(axis=1)
    return np.minimum(drawn, probabilities.shape[1] - 1)


@pytest.fixture
def sample() -> Callable[..., Sample]:
    """Return sample(n, classes=10, sharpen=1.0, seed=0), which draws labels from softmax(z).

    It returns softmax(sharpen z): calibrated for sharpen = 1, overconfident above.
    """

    def make(n: int, classes: int = 10, sharpen: float = 1.0, seed: int = 0) -> Sample:
        random = np.random.default_rng(seed)
        logits = 2 * random.normal(size=(n, classes))
        truth, answer = (np.exp(scale * logits) for scale in (1.0, sharpen))
        truth /= truth.sum(axis=1, keepdims=True)
        answer /= answer.sum(axis=1, keepdims=True)
        return answer, draw_labels(truth, random)

    return make


@pytest.fixture
def constant_gap() -> Callable[..., Sample]:
    """Return constant_gap(n, gap, random): binary rows at five confidences.

    The accuracy is the confidence minus the gap, so every binning has the same true error.
    """

    def make(n: int, gap: float, random: np.random.Generator) -> Sample:
        confidence = random.choice([0.75, 0.8, 0.85, 0.9, 0.95], n)
        labels = (random.random(n) >= confidence - gap).astype(int)
        return np.column_stack((confidence, 1 - confidence)), labels

    return make
