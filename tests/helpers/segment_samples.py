"""Rows of segments in which the model is overconfident by different factors."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from calibrators import CalibrationSet
from helpers.live_service import sample
from helpers.samples import draw

Floats = NDArray[np.float64]
Sizes = NDArray[np.int64]
NAMES = np.array(["app", "web"])


def rows_of_segments(rows: int = 2400, seed: int = 5) -> dict[str, np.ndarray]:
    """Return logits, labels and segments; logits of ``app`` are three times those of ``web``."""
    logits, labels = sample(rows, seed=seed, scale=1.0)
    segments = NAMES[np.arange(rows) % 2]
    logits[segments == "app"] *= 3
    return {"logits": logits, "labels": labels, "segments": segments}


def drawn(sizes: Sizes, tau: float, seed: int) -> tuple[CalibrationSet, Floats]:
    """Return rows of segments whose temperatures are 2 exp(tau N(0, 1)), and these temperatures."""
    data = draw(int(sizes.sum()), 5, temperature=1.0, seed=seed, dtype=np.float64)
    truth = 2 * np.exp(tau * np.random.default_rng(seed + 1000).normal(size=len(sizes)))
    code = np.repeat(np.arange(len(sizes)), sizes)
    names = [f"{place:04}" for place in code]
    return CalibrationSet(data.logits * truth[code, np.newaxis], data.labels, names), truth
