"""Sorted confidences, from which equal-mass bins and ranks follow by cumulative sums."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from calibrators.metrics._inputs import (
    Bools,
    Floats,
    Integers,
    at_least,
    checked_confidence,
    checked_correct,
)
from calibrators.metrics.bins import BinTable, width_edges

__all__ = ["equal_mass"]


@dataclass(frozen=True, eq=False)
class Ranked:
    """Scores in ascending order, the row of each, and the cumulative sums (n + 1,).

    Within a tie, the order of the rows is arbitrary; no metric depends on it.
    """

    order: Integers
    score: Floats
    hit: Bools
    score_below: Floats
    hits_below: Floats

    @classmethod
    def of(cls, score: Floats, hit: Bools) -> Ranked:
        """Sort scores in [0, 1] together with their flags.

        Non-negative floats have the same order as their bits, and integers are faster to sort.
        """
        order = np.argsort((score + 0.0).view(np.int64))
        return cls.of_sorted(order, score[order], hit[order])

    @classmethod
    def of_sorted(cls, order: Integers, score: Floats, hit: Bools) -> Ranked:
        """Build an instance from sorted scores, their flags, and the row of each score."""
        return cls(order, score, hit, _cumulated(score), _cumulated(hit))

    @cached_property
    def ties(self) -> Integers:
        """The positions at which groups of equal scores begin, followed by n."""
        steps = np.flatnonzero(self.score[1:] != self.score[:-1]) + 1
        return np.concatenate(([0], steps, [self.score.size]))

    def group(self, position: Integers) -> tuple[Integers, Integers]:
        """Return the start and end of each position's tie group; n belongs to the last group."""
        value = self.score[np.minimum(position, self.score.size - 1)]
        begin = np.searchsorted(self.score, value, side="left")
        end = np.searchsorted(self.score, value, side="right")
        return begin, end

    def hits_at(self, position: Integers) -> Floats:
        """Return the number of hits below each position; tie groups count in proportion."""
        return _shared(self.hits_below, position, *self.group(position))

    def score_sum_at(self, position: Integers) -> Floats:
        """Return the sum of the scores below each position; tie groups count in proportion."""
        return _shared(self.score_below, position, *self.group(position))

    def mass_edges(self, bins: int) -> Integers:
        """Return the positions at which ``bins`` bins with equal counts begin and end."""
        return np.arange(bins + 1) * self.score.size // bins

    def width_edges(self, bins: int) -> Integers:
        """Return the positions at which the non-empty bins among (i/M, (i + 1)/M] begin and end."""
        inner = np.searchsorted(self.score, width_edges(bins)[1:-1], side="right")
        return np.unique(np.concatenate(([0], inner, [self.score.size])))

    def equal_mass(self, bins: int) -> BinTable:
        """Return the table of `bins` bins with edges at the positions floor(j n / M)."""
        count_all = self.score.size
        edge = self.mass_edges(bins)
        begin, end = self.group(edge)
        count = np.diff(edge).astype(np.float64)
        score_sum = np.diff(_shared(self.score_below, edge, begin, end))
        hit_sum = np.diff(_shared(self.hits_below, edge, begin, end))
        lower = self.score[np.minimum(edge[:-1], count_all - 1)]
        upper = self.score[np.maximum(edge[1:] - 1, 0)]
        squares = _sum_of_squared_shares(edge, begin, end)
        effective = np.divide(count**2, squares, out=np.zeros(bins), where=squares > 0)
        return BinTable(count, score_sum, hit_sum, lower, upper, effective)


def equal_mass(confidence: npt.ArrayLike, correct: npt.ArrayLike, bins: int = 15) -> BinTable:
    """Return the table of `bins` bins with equal numbers of the sorted confidences.

    Tied confidences that straddle an edge are shared between the bins in proportion, so that the
    table does not depend on the order of the rows. `lower` and `upper` are the smallest and the
    largest confidence in each bin.

    >>> table = equal_mass([0.5, 0.9, 0.9, 0.9], [True, True, True, False], bins=2)
    >>> table.correct_sum.round(3)
    array([1.667, 1.333])
    >>> table.lower, table.upper
    (array([0.5, 0.9]), array([0.9, 0.9]))
    """
    at_least("bins", bins, 1)
    scores = checked_confidence(confidence)
    return Ranked.of(scores, checked_correct(correct, scores.size)).equal_mass(bins)


def _cumulated(values: Floats | Bools) -> Floats:
    below = np.zeros(values.size + 1)
    np.cumsum(values, out=below[1:], dtype=np.float64)
    return below


def _shared(below: Floats, position: Integers, begin: Integers, end: Integers) -> Floats:
    share = (position - begin) / (end - begin)
    return below[begin] + share * (below[end] - below[begin])


def _sum_of_squared_shares(edge: Integers, begin: Integers, end: Integers) -> Floats:
    low, high = edge[:-1], edge[1:]
    first = np.minimum(end[:-1], high) - low
    last = np.where(begin[1:] > low, high - begin[1:], 0)
    whole: Floats = (high - low) - _loss(first, (end - begin)[:-1]) - _loss(last, (end - begin)[1:])
    return whole


def _loss(taken: Integers, size: Integers) -> Floats:
    """Return the drop in the sum of squares due to a partly used tie: taken - taken^2 / size."""
    return taken - taken**2 / size
