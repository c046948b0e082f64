"""Resampled binned metrics in one pass over the rows for each draw.

The equally wide and the equal-mass bins of the full sample are both unions of *cells*, intervals of
confidence between neighbouring edges of either kind; only a tie group on an equal-mass edge is a
cell that several bins share. A draw needs sums over cells, and the bins follow by a small matrix.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from calibrators.metrics._inputs import Floats, Integers, at_least
from calibrators.metrics.bins import bin_index, debiased_squared, width_edges
from calibrators.metrics.scores import RowScores
from calibrators.metrics.toplabel import TopLabel


@dataclass(frozen=True, eq=False)
class Cells:
    """The cell of each row, and the share of each cell in each bin (cells, bins).

    `code` is the cell and the correctness in one number, 2 * cell + correct.
    """

    index: Integers
    code: Integers
    width_share: Floats
    mass_share: Floats

    @property
    def count(self) -> int:
        return int(self.width_share.shape[0])


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums over the rows of each draw: by cell (draws, cells), and over all rows (draws,)."""

    count: Floats
    correct: Floats
    gap: Floats
    nll: Floats
    brier: Floats


Drawn = tuple[dict[str, float], dict[str, Floats]]


def resampled(sides: list[RowScores], bins: int, draws: int, seed: int) -> list[Drawn]:
    """For each side the metrics of all rows, and of `draws` resamples common to all sides."""
    at_least("bins", bins, 1)
    cells = [split(side.top, bins) for side in sides]
    size = sides[0].nll.size
    sums = [_empty(draws + 1, part.count) for part in cells]
    random = np.random.default_rng(seed)
    for draw in range(draws + 1):
        if draw == 0:
            times = np.ones(size)
        else:
            times = np.bincount(random.integers(0, size, size), minlength=size).astype(np.float64)
        for side, part, total in zip(sides, cells, sums, strict=True):
            _add(side, part, times, total, draw)
    metrics = [_metrics(part, total, size) for part, total in zip(cells, sums, strict=True)]
    return [
        (
            {name: float(values[0]) for name, values in side.items()},
            {name: values[1:] for name, values in side.items()},
        )
        for side in metrics
    ]


def split(top: TopLabel, bins: int) -> Cells:
    """Cut the confidences at the edges of both kinds of bin."""
    score = top.ranked.score
    edge = np.arange(bins + 1) * score.size // bins
    inner = edge[(edge > 0) & (edge < score.size)]
    tied = inner[score[inner] == score[inner - 1]]
    cuts = np.unique(
        np.concatenate((width_edges(bins)[1:-1], score[inner - 1], np.nextafter(score[tied], -1.0)))
    )
    index = np.searchsorted(cuts, top.confidence, side="left")
    end = np.append(np.searchsorted(score, cuts, side="right"), score.size)
    begin = np.concatenate(([0], end[:-1]))
    filled = end > begin
    width = bin_index(score[np.minimum(begin, score.size - 1)], bins)
    width_share = ((width[:, None] == np.arange(bins)) & filled[:, None]).astype(np.float64)
    overlap = np.minimum(end[:, None], edge[1:]) - np.maximum(begin[:, None], edge[:-1])
    mass_share = np.maximum(overlap, 0) / np.maximum(end - begin, 1)[:, None]
    return Cells(index, 2 * index + top.correct, width_share, mass_share)


def _empty(draws: int, cells: int) -> Sums:
    count, correct, gap = (np.empty((draws, cells)) for _ in range(3))
    return Sums(count, correct, gap, np.empty(draws), np.empty(draws))


def _add(side: RowScores, cells: Cells, times: Floats, sums: Sums, draw: int) -> None:
    """Fill one draw, in which row i was taken times[i] times.

    einsum rather than `@`: the threads of BLAS cost more than a product this short.
    """
    tally = np.bincount(cells.code, times, 2 * cells.count).reshape(-1, 2)
    sums.count[draw] = tally.sum(axis=1)
    sums.correct[draw] = tally[:, 1]
    sums.gap[draw] = np.bincount(cells.index, times * side.top.residual, cells.count)
    sums.nll[draw] = np.einsum("i,i", times, side.nll)
    sums.brier[draw] = np.einsum("i,i", times, side.brier)


def _metrics(cells: Cells, sums: Sums, size: int) -> dict[str, Floats]:
    share = cells.mass_share
    count = sums.count @ share
    squares = sums.count @ share**2
    effective = np.divide(count**2, squares, out=np.zeros_like(count), where=squares > 0)
    return {
        "ece": np.abs(sums.gap @ cells.width_share).sum(axis=1) / size,
        "debiased_squared_error": debiased_squared(
            count, sums.correct @ share, sums.gap @ share, effective
        ),
        "nll": sums.nll / size,
        "brier": sums.brier / size,
        "accuracy": sums.correct.sum(axis=1) / size,
    }
