"""The calibration error that a perfectly calibrated model would measure on as many rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from calibrators.metrics._inputs import Floats, at_least, checked_confidence
from calibrators.metrics.bins import width_edges


@dataclass(frozen=True)
class NoiseFloor:
    """Mean and 95 % quantile of the ECE of a calibrated model with these confidences."""

    mean: float
    quantile95: float


def noise_floor(
    confidence: npt.ArrayLike, *, bins: int = 15, draws: int = 100, seed: int = 0
) -> NoiseFloor:
    """The ECE (equally wide bins) that remains when nothing is wrong but the sample is finite.

    Correctness is redrawn `draws` times as `a_i ~ Bernoulli(c_i)`, the confidences stay. An ECE
    below `quantile95` is no evidence of miscalibration. Bröcker & Smith 2007; Vaicenavicius
    et al. 2019.

    >>> floor = noise_floor([0.9] * 900, draws=400)
    >>> 0.007 < floor.mean < 0.009  # sqrt(2/pi) * sqrt(0.9 * 0.1 / 900) = 0.00798
    True
    """
    at_least("bins", bins, 1)
    at_least("draws", draws, 1)
    scores = np.sort(checked_confidence(confidence))
    begin = np.searchsorted(scores, width_edges(bins)[1:-1], side="right")
    filled = [
        part for part in zip([0, *begin], [*begin, scores.size], strict=True) if part[0] < part[1]
    ]
    expected = np.array([scores[low:high].sum() for low, high in filled])
    errors = _drawn_errors(scores, filled, expected, draws, seed)
    return NoiseFloor(float(errors.mean()), float(np.quantile(errors, 0.95)))


def _drawn_errors(
    scores: Floats, filled: list[tuple[int, int]], expected: Floats, draws: int, seed: int
) -> Floats:
    random = np.random.default_rng(seed)
    chance = scores.astype(np.float32)
    uniform = np.empty(scores.size, np.float32)
    right = np.empty(scores.size, np.bool_)
    errors = np.empty(draws)
    for draw in range(draws):
        random.random(out=uniform, dtype=np.float32)
        np.less(uniform, chance, out=right)
        hits = [np.count_nonzero(right[low:high]) for low, high in filled]
        errors[draw] = np.abs(hits - expected).sum() / scores.size
    return errors
