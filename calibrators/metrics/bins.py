"""Bins of confidence: one pass over the rows builds the table that all binned metrics use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from calibrators.metrics._inputs import (
    Array,
    Bools,
    Floats,
    Integers,
    at_least,
    checked_confidence,
    checked_correct,
)
from calibrators.numerics.parallel import Scratch, map_blocks

__all__ = ["BinTable", "equal_width"]

NEAR_AN_EDGE = 1e-6
# Many rows are counted in fine cells of log odds: 2304 cells per unit between confidences of 0.018
# and 0.9997, and 128 outside. A cell does not record which of its rows are correct. This matters
# at the edge between two bins, but only a little if nearly all rows of the cell are correct. Log
# odds below -12 require 160,000 classes; from 37 on, the confidence is 1 in float64.
CELLS = 32768
ODDS = (-12.0, -4.0, 8.0, 40.0)
AT_CELL = (0, 1024, 28672, CELLS)
Tally: TypeAlias = tuple[Floats, Integers]


@dataclass(frozen=True, eq=False)
class BinTable:
    """Per-bin sums of confidence and correctness.

    Counts may be fractional, because equal-mass bins share tied confidences in proportion.
    `effective_count` is (sum w)^2 / sum w^2 over the shares w of the rows in a bin, which is the
    plain count if no row is shared. It determines the variance of a bin's accuracy.

    >>> table = equal_width([0.2, 0.9, 0.9, 1.0], [False, True, False, True], bins=2)
    >>> table.count
    array([1., 3.])
    >>> table.gap.round(3)
    array([-0.2  , -0.267])
    >>> round(table.ece(), 3)
    0.25
    """

    count: Floats
    confidence_sum: Floats
    correct_sum: Floats
    lower: Floats
    upper: Floats
    effective_count: Floats

    @property
    def mean_confidence(self) -> Floats:
        """Mean confidence per bin; NaN for an empty bin."""
        return ratio(self.confidence_sum, self.count)

    @property
    def accuracy(self) -> Floats:
        """Share of correct predictions in each bin; NaN for an empty bin."""
        # rows that bins share are split in proportion, which may round to 1 + 1e-16
        return np.clip(ratio(self.correct_sum, self.count), 0, 1)

    @property
    def gap(self) -> Floats:
        """Accuracy minus mean confidence: negative means overconfident."""
        return ratio(self.correct_sum - self.confidence_sum, self.count)

    def to_dict(self) -> dict[str, list[float | None]]:
        """Return count, confidence and accuracy per bin as plain JSON; None for empty bins."""
        columns = {"confidence": self.mean_confidence, "accuracy": self.accuracy}
        nullable = {
            name: [None if np.isnan(value) else value for value in column.tolist()]
            for name, column in columns.items()
        }
        return {"count": self.count.tolist(), **nullable}

    def ece(self) -> float:
        """Return the mean absolute gap, each bin weighted by its count."""
        return float(np.abs(self.correct_sum - self.confidence_sum).sum() / self.count.sum())

    def mce(self) -> float:
        """Return the largest absolute gap of any non-empty bin."""
        return float(np.nanmax(np.abs(self.gap)))

    def debiased_squared(self) -> float:
        """Return the mean squared gap minus its expected noise; see `debiased_squared`."""
        return float(
            debiased_squared(
                self.count,
                self.correct_sum,
                self.correct_sum - self.confidence_sum,
                self.effective_count,
            )
        )


@dataclass(frozen=True, eq=False)
class TiedRows:
    """Distinct confidences in ascending order, each with its counts of rows and correct rows."""

    lower: Floats
    upper: Floats
    confidence: Floats
    count: Floats
    correct: Floats

    def equal_mass(self, bins: int) -> BinTable:
        """Return a table of M = `bins` bins; bin i ends after floor(i n / M) rows.

        Rows that are tied at an edge are shared between the bins on both sides in proportion. The
        outermost edges are 0 and 1; an edge inside a tie is interpolated.
        """
        rows = int(self.count.sum())
        cuts = np.arange(bins + 1) * rows // bins
        below = _sums_below(self.count)
        tie = np.minimum(np.searchsorted(below, cuts, side="right"), len(self.count)) - 1
        share = (cuts - below[tie]) / self.count[tie]

        def inside(amounts: Floats) -> Floats:
            return np.diff(_sums_below(amounts)[tie] + share * amounts[tie])

        odds = self.lower[tie] + share * (self.upper - self.lower)[tie]
        edges = np.concatenate([[0.0], sigmoid(odds[1:-1]), [1.0]])
        count = np.diff(cuts).astype(np.float64)
        confidence, right = inside(self.count * self.confidence), inside(self.correct)
        return BinTable(count, confidence, right, edges[:-1], edges[1:], count)


def debiased_squared(count: Floats, correct: Floats, gap: Floats, effective: Floats) -> Floats:
    """Return `sum_b w_b ((acc_b - conf_b)^2 - acc_b (1 - acc_b) / (n_b - 1))` over the last axis.

    The variance of a bin's accuracy inflates its expected squared gap; the second term is an
    unbiased estimate of that variance. n_b is the effective count. Bins with n_b <= 1 allow no such
    estimate and contribute 0, as in the code of Kumar et al. 2019. `gap` is the sum of correctness
    minus confidence.
    """
    usable = effective > 1
    size = np.where(usable, count, 1.0)
    accuracy = correct / size
    noise = accuracy * (1 - accuracy) / np.where(usable, effective - 1, 1.0)
    squared = np.where(usable, count * ((gap / size) ** 2 - noise), 0.0)
    total: Floats = squared.sum(axis=-1) / count.sum(axis=-1)
    return total


def equal_width(confidence: npt.ArrayLike, correct: npt.ArrayLike, bins: int = 15) -> BinTable:
    """Return the table of `bins` equal-width bins (i/M, (i + 1)/M]; 0 belongs to the first bin.

    Edges are float64, and a confidence exactly on an edge belongs to the bin below it.

    >>> equal_width([0.25, 0.5, 0.75, 1.0], [True] * 4, bins=2).count
    array([2., 2.])
    """
    at_least("bins", bins, 1)
    scores = checked_confidence(confidence)
    hits = checked_correct(correct, scores.size)
    return tabulate(scores, hits, bins)


def tabulate(scores: Floats, hits: Bools, bins: int) -> BinTable:
    """Return the equal-width table of checked confidences and correctness."""

    def work(start: int, stop: int, scratch: Scratch) -> Tally:
        return tally(scores[start:stop], hits[start:stop], bins, scratch)

    return table_of(map_blocks(work, scores.size, 4))


def tally(scores: Array, hits: Bools, bins: int, scratch: Scratch) -> Tally:
    """Return each equal-width bin's sum of confidences, and the counts of misses and hits."""
    values = np.clip(scores, 0.0, 1.0, out=scratch.take("clipped", scores.shape, scores.dtype))
    index = bin_index(values, bins, scratch)
    sums: Floats = np.bincount(index, values, bins).astype(np.float64, copy=False)
    index *= 2
    index += hits
    return sums, np.bincount(index, minlength=2 * bins)


def table_of(parts: list[Tally]) -> BinTable:
    """Merge the tallies of all parts, in order, into an equal-width table."""
    sums = np.sum([part[0] for part in parts], axis=0)
    bins = sums.size
    wrong, right = np.sum([part[1] for part in parts], axis=0, dtype=float).reshape(bins, 2).T
    edges = width_edges(bins)
    count = wrong + right
    return BinTable(count, sums, right, edges[:-1], edges[1:], count)


def width_edges(bins: int) -> Floats:
    """Return the edges 0, 1/M, ..., 1 in float64."""
    return np.arange(bins + 1) / bins


def bin_index(values: Array, bins: int, scratch: Scratch | None = None) -> Integers:
    """Return the equal-width bin for each value in [0, 1], exact at the float64 edges."""
    scratch = scratch or Scratch()
    scaled = scratch.take("scaled", values.shape, np.float64)
    index: Integers = scratch.take("index", values.shape, np.intp)
    np.multiply(values, bins, out=scaled, dtype=np.float64)
    np.ceil(scaled, out=index, casting="unsafe")
    index -= 1
    if values.dtype != np.float32:  # for float32 the product is exact, and so is the bin
        scaled -= np.rint(scaled)
        near = np.flatnonzero(np.abs(scaled, out=scaled) < NEAR_AN_EDGE)
        index.flat[near] += _correction(values.flat[near], index.flat[near], bins)
    return np.clip(index, 0, bins - 1, out=index)


def _correction(values: Array, index: Integers, bins: int) -> Integers:
    """Return the correction (-1, 0 or 1) to bin indices that rounding may have shifted by one."""
    edges = width_edges(bins)
    below, above = edges.take(index, mode="clip"), edges.take(index + 1, mode="clip")
    return (values > above).astype(np.intp) - (values <= below)


def ratio(part: Floats, whole: Floats) -> Floats:
    """Return ``part / whole``, with NaN where ``whole`` is 0."""
    share: Floats = np.full(part.shape, np.nan)
    np.divide(part, whole, out=share, where=whole > 0)
    return share


def cell_of(odds: npt.NDArray[Any]) -> Integers:
    """Return the cell of each value of log odds; the outermost cells are unbounded.

    >>> cell_of(np.array([-np.inf, -4.0, 0.0, 39.999, np.inf])).tolist()
    [0, 1024, 10240, 32767, 32767]
    """
    place: Floats = np.interp(odds, ODDS, AT_CELL)
    return np.minimum(place, CELLS - 1).astype(np.intp)


def odds_at(place: npt.NDArray[Any]) -> Floats:
    """Return the log odds at a fractional cell position between 0 and 32768.

    >>> odds_at(np.array([0, 10240.0, 32768])).tolist()
    [-12.0, 0.0, 40.0]
    """
    odds: Floats = np.interp(place, AT_CELL, ODDS)
    return odds


def sigmoid(odds: Floats) -> Floats:
    """Return the confidence for the given log odds."""
    confidence: Floats = 1 / (1 + np.exp(-odds))
    return confidence


def _sums_below(amounts: Floats) -> Floats:
    """Return the sum (n + 1,) of the amounts before each position; the last is the total."""
    return np.concatenate([[0.0], np.cumsum(amounts)])
