"""The row bootstrap that `evaluate` used before it drew counts of cells, frozen as a reference.

Every draw takes n rows and sums over all of them; the noise floor redraws every row. The only code
shared with `calibrators.metrics` is the assignment of rows to cells.
"""

from dataclasses import dataclass

import numpy as np

from calibrators.metrics import RowScores
from calibrators.metrics._resampling import Cells, split
from calibrators.metrics.bins import debiased_squared, width_edges

NAMES = ("ece", "debiased_squared_error", "nll", "brier", "accuracy")
Bounds = dict[str, tuple[float, float, float]]


@dataclass
class Sums:
    """Sums over the rows of each draw: by cell (draws, cells), and over all rows (draws,)."""

    count: np.ndarray
    correct: np.ndarray
    gap: np.ndarray
    nll: np.ndarray
    brier: np.ndarray


def intervals(
    sides: list[RowScores], bins: int = 15, draws: int = 1000, level: float = 0.95, seed: int = 0
) -> list[Bounds]:
    """Return value, low and high of each metric of each side, and of the change if there are two.

    The bounds are percentiles of draws, shifted so that their mean is the estimate.
    """
    drawn = resampled(sides, bins, draws, seed)
    if len(drawn) == 2:
        drawn.append({name: drawn[1][name] - drawn[0][name] for name in NAMES})
    return [{name: _bounds(one[name], level) for name in NAMES} for one in drawn]


def resampled(
    sides: list[RowScores], bins: int, draws: int, seed: int
) -> list[dict[str, np.ndarray]]:
    """Return, for each side, the metrics of all rows (element 0) and of each draw."""
    cells = [split(side.top, bins) for side in sides]
    size = sides[0].nll.size
    sums = [_empty(draws + 1, part.count) for part in cells]
    random = np.random.default_rng(seed)
    for draw in range(draws + 1):
        times = np.ones(size)
        if draw:
            times = np.bincount(random.integers(0, size, size), minlength=size).astype(np.float64)
        for side, part, total in zip(sides, cells, sums, strict=True):
            _add(side, part, times, total, draw)
    return [_metrics(part, total, size) for part, total in zip(cells, sums, strict=True)]


def noise_floor(
    confidence: np.ndarray, bins: int = 15, draws: int = 200, seed: int = 0
) -> tuple[float, float]:
    """Return mean and 95 % quantile of the ECE of a calibrated model, by redrawing every row."""
    scores = np.sort(confidence)
    begin = np.searchsorted(scores, width_edges(bins)[1:-1], side="right")
    spans = zip([0, *begin], [*begin, scores.size], strict=True)
    filled = [part for part in spans if part[0] < part[1]]
    expected = np.array([scores[low:high].sum() for low, high in filled])
    random = np.random.default_rng(seed)
    chance = scores.astype(np.float32)
    errors = np.empty(draws)
    for draw in range(draws):
        right = random.random(scores.size, dtype=np.float32) < chance
        hits = [np.count_nonzero(right[low:high]) for low, high in filled]
        errors[draw] = np.abs(hits - expected).sum() / scores.size
    return float(errors.mean()), float(np.quantile(errors, 0.95))


def _empty(draws: int, cells: int) -> Sums:
    count, correct, gap = (np.empty((draws, cells)) for _ in range(3))
    return Sums(count, correct, gap, np.empty(draws), np.empty(draws))


def _add(side: RowScores, cells: Cells, times: np.ndarray, sums: Sums, draw: int) -> None:
    tally = np.bincount(2 * cells.index + side.top.correct, times, 2 * cells.count).reshape(-1, 2)
    sums.count[draw] = tally.sum(axis=1)
    sums.correct[draw] = tally[:, 1]
    sums.gap[draw] = np.bincount(cells.index, times * side.top.residual, cells.count)
    sums.nll[draw] = np.einsum("i,i", times, side.nll)
    sums.brier[draw] = np.einsum("i,i", times, side.brier)


def _metrics(cells: Cells, sums: Sums, size: int) -> dict[str, np.ndarray]:
    mass = cells.mass
    count, squares = mass.sums(sums.count), mass.squared().sums(sums.count)
    effective = np.divide(count**2, squares, out=np.zeros_like(count), where=squares > 0)
    gap = mass.sums(sums.gap)
    return {
        "ece": np.abs(cells.width.sums(sums.gap)).sum(axis=1) / size,
        "debiased_squared_error": debiased_squared(count, mass.sums(sums.correct), gap, effective),
        "nll": sums.nll / size,
        "brier": sums.brier / size,
        "accuracy": sums.correct.sum(axis=1) / size,
    }


def _bounds(drawn: np.ndarray, level: float) -> tuple[float, float, float]:
    value, rest = drawn[0], drawn[1:]
    shifted = rest + (value - rest.mean())
    low, high = np.quantile(shifted, [(1 - level) / 2, (1 + level) / 2])
    return float(value), float(low), float(high)
