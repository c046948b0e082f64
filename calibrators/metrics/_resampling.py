"""Resampled binned metrics from counts: a draw never looks at rows.

The equally wide and the equal-mass bins of the full sample are both unions of *cells*, intervals of
confidence between neighbouring edges of either kind; only a tie group on an equal-mass edge is a
cell that several bins share. Rows in the same cells, with the same correctness, on all sides form
a *stratum*. To resample n rows is to draw how many come from each stratum, a multinomial, and then
the sum of their confidences, which is normal with the moments of the stratum. Where a stratum is
a single row this is the bootstrap of rows exactly; where it holds many, confidences differ by less
than the width of a cell and their sum is as good as normal.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from calibrators.metrics._inputs import Bools, Floats, Integers, at_least
from calibrators.metrics.bins import bin_index, debiased_squared, width_edges
from calibrators.metrics.toplabel import TopLabel

DRAWN_AT_ONCE = 1 << 19


@dataclass(frozen=True, eq=False)
class Cells:
    """The cell of each row (n,), and the share of each cell in each bin (cells, bins)."""

    index: Integers
    width_share: Floats
    mass_share: Floats

    @property
    def count(self) -> int:
        return int(self.width_share.shape[0])


@dataclass(frozen=True, eq=False)
class Strata:
    """Strata of one or two sides; arrays are (strata,) or lists of such with one for each side.

    ``mean`` is that of the first side's confidence, and of what the second adds to it;
    ``root`` is the lower triangle (a, b, c) of the Cholesky factor of their covariance.
    """

    count: Integers
    cell: list[Integers]
    correct: list[Bools]
    mean: list[Floats]
    root: list[Floats]


Drawn = tuple[dict[str, float], dict[str, Floats]]


def resampled(sides: list[TopLabel], bins: int, draws: int, seed: int) -> list[Drawn]:
    """Return for each side the binned metrics of all rows, and of `draws` resamples of both."""
    at_least("bins", bins, 1)
    cells = [split(side, bins) for side in sides]
    strata = _strata(sides, cells)
    random = np.random.default_rng(seed)
    parts = [_measured(strata, cells, strata.count[None, :].astype(np.float64), None)]
    at_once = max(1, DRAWN_AT_ONCE // strata.count.size)
    size = sides[0].correct.size
    for start in range(0, draws, at_once):
        rows = min(at_once, draws - start)
        count = random.multinomial(size, strata.count / size, size=rows).astype(np.float64)
        parts.append(_measured(strata, cells, count, random))
    found: list[Drawn] = []
    for side in range(len(sides)):
        drawn = {name: np.concatenate([part[side][name] for part in parts]) for name in parts[0][0]}
        values = {name: float(one[0]) for name, one in drawn.items()}
        found.append((values, {name: one[1:] for name, one in drawn.items()}))
    return found


def split(top: TopLabel, bins: int) -> Cells:
    """Cut the confidences at the edges of both kinds of bin."""
    score = top.ranked.score
    edge = np.arange(bins + 1) * score.size // bins
    inner = edge[(edge > 0) & (edge < score.size)]
    tied = inner[score[inner] == score[inner - 1]]
    cuts = np.unique(
        np.concatenate((width_edges(bins)[1:-1], score[inner - 1], np.nextafter(score[tied], -1.0)))
    )
    end = np.append(np.searchsorted(score, cuts, side="right"), score.size)
    begin = np.concatenate(([0], end[:-1]))
    index = np.empty(score.size, np.intp)
    index[top.ranked.order] = np.repeat(np.arange(end.size), end - begin)
    filled = end > begin
    width = bin_index(score[np.minimum(begin, score.size - 1)], bins)
    width_share = ((width[:, None] == np.arange(bins)) & filled[:, None]).astype(np.float64)
    overlap = np.minimum(end[:, None], edge[1:]) - np.maximum(begin[:, None], edge[:-1])
    mass_share = np.maximum(overlap, 0) / np.maximum(end - begin, 1)[:, None]
    return Cells(index, width_share, mass_share)


def _strata(sides: list[TopLabel], cells: list[Cells]) -> Strata:
    code = np.zeros(sides[0].correct.size, np.intp)
    for side, part in zip(sides, cells, strict=True):
        code *= 2 * part.count
        code += 2 * part.index
        code += side.correct
    tally = np.bincount(code)
    filled = np.flatnonzero(tally)
    count = tally[filled]
    values = [sides[0].confidence]
    values += [side.confidence - sides[0].confidence for side in sides[1:]]

    def mean_of(rows: Floats) -> Floats:
        return np.asarray(np.bincount(code, rows)[filled] / count)

    mean = [mean_of(one) for one in values]
    cell: list[Integers] = []
    correct: list[Bools] = []
    rest = filled
    for part in reversed(cells):
        rest, here = np.divmod(rest, 2 * part.count)
        cell.insert(0, here // 2)
        correct.insert(0, here % 2 == 1)
    first = np.sqrt(np.maximum(mean_of(values[0] * values[0]) - mean[0] ** 2, 0))
    root = [first]
    if len(values) == 2:
        shared = mean_of(values[0] * values[1]) - mean[0] * mean[1]
        across = np.divide(shared, first, out=np.zeros_like(first), where=first > 0)
        own = mean_of(values[1] * values[1]) - mean[1] ** 2
        root += [across, np.sqrt(np.maximum(own - across**2, 0))]
    return Strata(count, cell, correct, mean, root)


def _measured(
    strata: Strata, cells: list[Cells], count: Floats, random: np.random.Generator | None
) -> list[dict[str, Floats]]:
    """Return the metrics of each side for draws of `count` (draws, strata) rows.

    Without `random` the sums of the confidences are what the strata expect.
    """
    sums = [count * mean for mean in strata.mean]
    if random is not None:
        spread = np.sqrt(count)
        first = spread * random.standard_normal(count.shape)
        sums[0] += first * strata.root[0]
        if len(sums) == 2:
            second = spread * random.standard_normal(count.shape)
            sums[1] += first * strata.root[1] + second * strata.root[2]
    if len(sums) == 2:
        sums[1] += sums[0]
    return [
        _metrics(part, count, sums[side], strata.cell[side], strata.correct[side])
        for side, part in enumerate(cells)
    ]


def _metrics(
    cells: Cells, count: Floats, confidence: Floats, cell: Integers, correct: Bools
) -> dict[str, Floats]:
    right = count * correct
    gap = right - confidence
    mass = cells.mass_share[cell]
    size = count @ mass
    squares = count @ mass**2
    effective = np.divide(size**2, squares, out=np.zeros_like(size), where=squares > 0)
    rows = count.sum(axis=1)
    return {
        "ece": np.abs(gap @ cells.width_share[cell]).sum(axis=1) / rows,
        "debiased_squared_error": debiased_squared(size, right @ mass, gap @ mass, effective),
    }
