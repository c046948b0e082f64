"""Resample binned metrics from counts, without reading the rows again.

A *cell* is an interval of confidence between neighbouring edges of the equal-width or equal-mass
bins of the full sample. Each bin is a union of cells, except that a group of ties on an equal-mass
edge is a cell shared by several bins. One or two *sides* (for example, before and after
calibration) hold the same rows. Rows that lie in the same cell and have the same correctness on
every side form a *stratum*.

To resample n rows, the number of rows from each stratum is drawn from a multinomial distribution,
then the sum of their confidences from a normal distribution with the moments of the stratum. For a
stratum with a single row, this is exactly the row bootstrap. In a stratum with many rows,
confidences differ by less than the width of a cell, and their sum is practically normal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from calibrators.metrics._inputs import Bools, Floats, Integers, at_least
from calibrators.metrics.bins import bin_index, width_edges
from calibrators.metrics.toplabel import TopLabel

DRAWN_AT_ONCE = 1 << 19


class BinShares(NamedTuple):
    """Overlaps of cells with bins, in bin order: the cell, and its share inside the bin.

    ``first`` holds the positions at which the bins begin; bins without rows are left out.
    """

    cell: Integers
    share: Floats
    first: Integers

    def sums(self, values: Floats) -> Floats:
        """Return the per-bin sums (draws, bins) of cell values (draws, cells)."""
        return np.asarray(np.add.reduceat(values[:, self.cell] * self.share, self.first, axis=1))

    def squared(self) -> BinShares:
        """Return the same overlaps with squared shares."""
        return self._replace(share=self.share**2)


@dataclass(frozen=True, eq=False)
class Cells:
    """The cell of each row (n,), and the overlaps of cells with equal-width and equal-mass bins."""

    index: Integers
    count: int
    width: BinShares
    mass: BinShares


@dataclass(frozen=True, eq=False)
class Strata:
    """Strata for one or two sides; arrays are (strata,), and lists hold one array per side.

    ``mean`` holds the mean confidence of the first side and the mean difference, second side minus
    first. ``root`` is the lower triangle (a, b, c) of the Cholesky factor of their covariance.
    """

    count: Integers
    cell: list[Integers]
    correct: list[Bools]
    mean: list[Floats]
    root: list[Floats]


class DrawnBins(NamedTuple):
    """Bins of resampled rows: ``rows`` is (draws,), all other arrays are (draws, bins).

    A gap is a sum of correctness minus confidence. ``mass_effective`` is the effective count of
    ``BinTable``.
    """

    rows: Floats
    width_gap: Floats
    mass_count: Floats
    mass_correct: Floats
    mass_gap: Floats
    mass_effective: Floats


Figures = Mapping[str, Callable[[DrawnBins], Floats]]


class Drawn(NamedTuple):
    """Statistics by name: ``values`` on all rows, and ``draws`` (draws,) on each resample."""

    values: dict[str, float]
    draws: dict[str, Floats]


def resampled(
    sides: list[TopLabel], figures: Figures, bins: int, draws: int, seed: int
) -> list[Drawn]:
    """Return, for each side, the statistics on all rows and on `draws` resamples."""
    at_least("bins", bins, 1)
    cells = [split(side, bins) for side in sides]
    strata = _strata(sides, cells)
    random = np.random.default_rng(seed)

    def measured(count: Floats, random: np.random.Generator | None) -> list[dict[str, Floats]]:
        drawn = _drawn_bins(strata, cells, count, random)
        return [{name: figure(one) for name, figure in figures.items()} for one in drawn]

    parts = [measured(strata.count[None, :].astype(np.float64), None)]
    at_once = max(1, DRAWN_AT_ONCE // strata.count.size)
    size = sides[0].correct.size
    for start in range(0, draws, at_once):
        rows = min(at_once, draws - start)
        count = random.multinomial(size, strata.count / size, size=rows).astype(np.float64)
        parts.append(measured(count, random))
    found: list[Drawn] = []
    for side in range(len(sides)):
        drawn = {name: np.concatenate([part[side][name] for part in parts]) for name in figures}
        values = {name: float(one[0]) for name, one in drawn.items()}
        found.append(Drawn(values, {name: one[1:] for name, one in drawn.items()}))
    return found


def split(top: TopLabel, bins: int) -> Cells:
    """Return the cells of a sample, cut at the edges of its equal-width and equal-mass bins."""
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
    cell = np.flatnonzero(end > begin)
    width = bin_index(score[begin[cell]], bins)
    alone = BinShares(cell, np.ones(cell.size), np.flatnonzero(np.diff(width, prepend=-1)))
    return Cells(index, end.size, alone, _overlaps(begin, end, edge))


def _overlaps(begin: Integers, end: Integers, edge: Integers) -> BinShares:
    """Return the shares of cells in bins; cells span the ranks from `begin` to `end`."""
    lowest = np.searchsorted(edge, begin, side="right") - 1
    many = np.where(end > begin, np.searchsorted(edge, end, side="left") - lowest, 0)
    cell = np.repeat(np.arange(begin.size), many)
    bins = np.arange(cell.size) - np.repeat(np.cumsum(many) - many - lowest, many)
    overlap = np.minimum(end[cell], edge[bins + 1]) - np.maximum(begin[cell], edge[bins])
    held = overlap > 0
    cell, bins, overlap = cell[held], bins[held], overlap[held]
    share = overlap / (end - begin)[cell]
    return BinShares(cell, share, np.flatnonzero(np.diff(bins, prepend=-1)))


def _strata(sides: list[TopLabel], cells: list[Cells]) -> Strata:
    code = np.zeros(sides[0].correct.size, np.intp)
    for side, part in zip(sides, cells, strict=True):
        code *= 2 * part.count
        code += 2 * part.index
        code += side.correct
    filled, code = _occurring(code)
    count = np.bincount(code)
    values = [sides[0].confidence]
    values += [side.confidence - sides[0].confidence for side in sides[1:]]

    def mean_of(rows: Floats) -> Floats:
        return np.asarray(np.bincount(code, rows) / count)

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


def _occurring(code: Integers) -> tuple[Integers, Integers]:
    """Return the distinct codes in ascending order, and the index of each row's code among them."""
    if code.max() >= DRAWN_AT_ONCE:  # counts of all codes would take more memory than the rows
        found, place = np.unique(code, return_inverse=True)
        return found, place
    occurs = np.bincount(code) > 0
    return np.flatnonzero(occurs), (np.cumsum(occurs) - 1)[code]


def _drawn_bins(
    strata: Strata, cells: list[Cells], count: Floats, random: np.random.Generator | None
) -> list[DrawnBins]:
    """Return the bins of each side if `count` (draws, strata) rows are drawn from the strata.

    Without `random`, each sum of confidences is replaced by its expectation.
    """
    sums = _confidence_sums(strata, count, random)
    return [
        _side(part, count, sums[side], strata.cell[side], strata.correct[side])
        for side, part in enumerate(cells)
    ]


def _confidence_sums(
    strata: Strata, count: Floats, random: np.random.Generator | None
) -> list[Floats]:
    """Return the sums of confidences (draws, strata) for each side."""
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
    return sums


def _side(
    cells: Cells, count: Floats, confidence: Floats, cell: Integers, correct: Bools
) -> DrawnBins:
    order = np.argsort(cell, kind="stable")
    first = np.flatnonzero(np.diff(cell[order], prepend=-1))
    held = cell[order][first]

    def by_cell(values: Floats) -> Floats:
        found = np.zeros((len(values), cells.count))
        found[:, held] = np.add.reduceat(values[:, order], first, axis=1)
        return found

    rows = count.sum(axis=1)
    right = count * correct
    gap = by_cell(right - confidence)
    count, right = by_cell(count), by_cell(right)
    size, squares = cells.mass.sums(count), cells.mass.squared().sums(count)
    effective = np.divide(size**2, squares, out=np.zeros_like(size), where=squares > 0)
    return DrawnBins(
        rows=rows,
        width_gap=cells.width.sums(gap),
        mass_count=size,
        mass_correct=cells.mass.sums(right),
        mass_gap=cells.mass.sums(gap),
        mass_effective=effective,
    )
