"""Isotonic regression of rows that are right or wrong, exact, at a million rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrators.methods._ties import share_reach, tie_starts
from calibrators.numerics.parallel import Floats

SLOW = 0.9


@dataclass(frozen=True, eq=False)
class RisingFunction:
    """A function that never falls: linear between its nodes, constant outside them."""

    nodes: Floats
    heights: Floats
    pools: int
    squared_error: float


def rising_function(
    scores: Floats, right: Floats, right_below: float = 0.0, wrong_above: float = 0.0
) -> RisingFunction:
    """The never falling function of ``scores`` >= 0 nearest to ``right`` (0.0 or 1.0) in squares.

    Equal scores are pooled first, also those that differ by rounding alone. ``right_below`` of a
    right row is added at the lowest score and ``wrong_above`` of a wrong one at the highest. The
    nodes are the first and last score of each pool; there are at least two. ``squared_error`` is
    the mean over the rows.

    >>> found = rising_function(np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.0, 1.0, 0.0, 1.0]))
    >>> found.nodes.tolist(), found.heights.tolist()
    ([0.1, 0.2, 0.3, 0.4], [0.0, 0.5, 0.5, 1.0])
    """
    lowest, highest, hits, rows = tallied(scores, right)
    sums, weights = hits.copy(), rows.copy()
    sums[0] += right_below
    weights[0] += right_below
    weights[-1] += wrong_above
    begin = pool_starts(sums, weights)
    means = np.add.reduceat(sums, begin) / np.add.reduceat(weights, begin)
    hits, rows = np.add.reduceat(hits, begin), np.add.reduceat(rows, begin)
    error = float((hits * (1 - means) ** 2 + (rows - hits) * means**2).sum() / scores.size)
    last = np.append(begin[1:], lowest.size) - 1
    nodes = np.stack([lowest[begin], highest[last]], axis=1).ravel()
    heights = np.repeat(means, 2)
    needed = np.concatenate([[True], (np.diff(nodes) > 0) | (np.diff(heights) > 0)])
    needed[1] |= needed.sum() == 1
    return RisingFunction(nodes[needed], heights[needed], begin.size, error)


def tallied(scores: Floats, right: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """The distinct scores >= 0 in rising order, and how many rows of each are right, and in all.

    Scores that differ by no more than ``share_reach`` says count as one: given are the lowest and
    the highest of them. Where the next score is too close to the highest, as where scores lie close
    all along, that is the lowest again, so none of these is close to one of the next.

    The bits of such numbers rise as the numbers do, and leave one bit free for ``right``: one sort
    of plain integers, ten times as fast at a million rows as one that keeps places.

    >>> [one.tolist() for one in tallied(np.array([0.5, 0.2, 0.5]), np.array([1.0, 0.0, 0.0]))]
    [[0.2, 0.5], [0.2, 0.5], [0.0, 1.0], [1.0, 2.0]]
    """
    keys = (scores + 0.0).view(np.uint64) << np.uint64(1)
    keys |= right.astype(np.uint64)
    keys.sort()
    ordered = keys >> np.uint64(1)
    values = ordered.view(np.float64)
    reach = share_reach(values)
    first = tie_starts(values, reach)
    last = np.append(first[1:], values.size) - 1
    highest = values[last]
    close = np.flatnonzero(values[first[1:]] <= reach[last[:-1]])
    highest[close] = values[first[close]]
    hits = np.add.reduceat((keys & np.uint64(1)).astype(np.float64), first)
    rows = np.diff(first, append=scores.size).astype(np.float64)
    return values[first], highest, hits, rows


def pool_starts(sums: Floats, weights: Floats) -> NDArray[np.intp]:
    """Where the pools of isotonic regression begin, of cells with these sums and weights.

    A whole run of cells whose means do not rise is one pool, so all runs are pooled at once, again
    and again. When that has become slow the few cells that are left go one by one.
    """
    starts = np.arange(sums.size)
    while sums.size > 1:
        rises = sums[1:] * weights[:-1] > sums[:-1] * weights[1:]
        kept = np.flatnonzero(np.concatenate([[True], rises]))
        if kept.size > SLOW * sums.size:
            return starts[_pooled_one_by_one(sums.tolist(), weights.tolist())]
        starts = starts[kept]
        sums, weights = np.add.reduceat(sums, kept), np.add.reduceat(weights, kept)
    return starts


def _pooled_one_by_one(sums: list[float], weights: list[float]) -> list[int]:
    pools: list[tuple[int, float, float]] = []
    for place, (total, weight) in enumerate(zip(sums, weights, strict=True)):
        begin = place
        while pools and pools[-1][1] * weight >= total * pools[-1][2]:
            begin, earlier_total, earlier_weight = pools.pop()
            total += earlier_total
            weight += earlier_weight
        pools.append((begin, total, weight))
    return [begin for begin, _, _ in pools]
