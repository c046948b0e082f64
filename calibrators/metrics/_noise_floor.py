"""The calibration error of a perfectly calibrated model on the same number of rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from calibrators.metrics._inputs import Floats, Integers, at_least, checked_confidence
from calibrators.metrics.bins import bin_index

__all__ = ["NoiseFloor", "noise_floor"]

PARTS = 16


@dataclass(frozen=True)
class NoiseFloor:
    """Mean and 95 % quantile of the ECE of a calibrated model with the same confidences."""

    mean: float
    quantile95: float


def noise_floor(
    confidence: npt.ArrayLike, *, bins: int = 15, draws: int = 100, seed: int = 0
) -> NoiseFloor:
    """Return the ECE (equal-width bins) that a calibrated model shows by chance alone.

    Correctness is redrawn `draws` times as `a_i ~ Bernoulli(c_i)`; the confidences stay fixed. An
    ECE below `quantile95` is no evidence of miscalibration. Convention: each bin is divided into 16
    equal parts, and the number of correct rows in a part is drawn from a binomial distribution with
    the mean confidence of the part. For a part with a single row, this is exact; for many rows, the
    error in the variance per row is less than the square of 1/16 of the bin width. Bröcker & Smith
    2007; Vaicenavicius et al. 2019.

    >>> floor = noise_floor([0.9] * 900, draws=400)
    >>> 0.007 < floor.mean < 0.009  # sqrt(2/pi) * sqrt(0.9 * 0.1 / 900) = 0.00798
    True
    """
    at_least("bins", bins, 1)
    at_least("draws", draws, 1)
    scores = checked_confidence(confidence)
    index = bin_index(scores, PARTS * bins)
    expected: Floats = np.bincount(index, scores, PARTS * bins).astype(np.float64, copy=False)
    errors = _drawn_errors(np.bincount(index, minlength=PARTS * bins), expected, draws, seed)
    return NoiseFloor(float(errors.mean()), float(np.quantile(errors, 0.95)))


def _drawn_errors(count: Integers, expected: Floats, draws: int, seed: int) -> Floats:
    """Return the ECE of each draw, given the number of rows and sum of confidences per part."""
    filled = np.flatnonzero(count)
    rows, right = count[filled], expected[filled]
    chance = np.minimum(right / rows, 1.0)
    # draws are the last axis, as numpy sets up a binomial once for a run of equal parameters
    hits = np.random.default_rng(seed).binomial(
        rows[:, None], chance[:, None], (filled.size, draws)
    )
    bins = np.flatnonzero(np.diff(filled // PARTS, prepend=-1))
    gaps: Floats = np.add.reduceat(hits - right[:, None], bins, axis=0)
    return np.asarray(np.abs(gaps).sum(axis=0) / count.sum())
