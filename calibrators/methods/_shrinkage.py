"""Fit a temperature for each segment, shrunk towards 1 by empirical Bayes.

Let u = -log T, and let F_g(u) be the NLL summed over the rows of segment g. Under the prior
u ~ N(0, tau^2), the posterior mode of a segment is ``u_g = argmin F_g(u) + u^2 / (2 tau^2)``. By
Laplace's approximation, the log evidence of tau from all segments is

``sum over g of  -F_g(u_g) - u_g^2 / (2 tau^2) - log(1 + tau^2 F_g''(u_g)) / 2``,

which is ``-sum F_g(0)`` at tau = 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from calibrators.arrays import Labels, row_maxima
from calibrators.fitting.context import FitContext
from calibrators.methods.temperature import bracketed_newton
from calibrators.numerics.parallel import Floats
from calibrators.numerics.softmax import partition_sums
from calibrators.segments import Segments

REACH = 16.0
OCTAVES = 6
ROUNDS = OCTAVES + 5
COARSE, FINE = 4e-4, 1e-7


class Solution(NamedTuple):
    """The best 1/T of a segment, whether it is inside the bounds, and the prior's log evidence."""

    beta: float = 1.0
    is_inside: bool = False
    evidence: float = 0.0


class SegmentSample:
    """The rows of a segment, with their logits after the global map."""

    def __init__(self, logits: Floats, labels: Labels) -> None:
        row_max = row_maxima(logits)
        pull = row_max - logits[np.arange(len(logits)), labels]
        # if the global map rules out a label, no temperature makes it possible
        possible = np.isfinite(pull)
        self.rows = int(possible.sum())
        self.evaluations = 0
        self._logits = logits if possible.all() else logits[possible]
        self._row_max = row_max[possible]
        self._pull = float(pull[possible].sum(dtype=np.float64))

    def nll(self, beta: float) -> tuple[float, float, float]:
        """Return the summed NLL of softmax(beta z) and its first two derivatives in log beta."""
        if not self.rows:
            return 0.0, 0.0, 0.0
        self.evaluations += 1
        total, first, second, _ = partition_sums(self._logits, self._row_max, beta)
        slope = beta * (self._pull + first)
        return beta * self._pull + total, slope, slope + beta**2 * second

    @cached_property
    def unscaled(self) -> tuple[float, float, float]:
        """The NLL and its derivatives at T = 1."""
        return self.nll(1.0)

    def solve(self, precision: float, start: float, accuracy: float) -> Solution:
        """Return the best 1/T under a prior on its logarithm.

        ``precision`` is 1/tau^2, or 0 for no prior. The NLL is convex in 1/T, but its sum with the
        prior need not be. ``bracketed_newton`` still ends where the slope vanishes, because it
        halves its bracket wherever the curvature is not positive.
        """
        always_right = self._pull == 0
        if not any(self.unscaled[1:]) or (always_right and not precision):
            return Solution(evidence=-self.unscaled[0])
        last = (0.0, 0.0, 0.0)

        def derivatives(beta: float) -> tuple[float, float]:
            nonlocal last
            value, slope, bend = self.unscaled if beta == 1 else self.nll(beta)
            u = math.log(beta)
            last = value + precision * u**2 / 2, slope + precision * u, bend + precision
            return last[1] / beta, (last[2] - last[1]) / beta**2

        root = bracketed_newton(derivatives, 1 / REACH, REACH, start, accuracy)
        if not precision:
            return Solution(root.value, not root.at_bound)
        value, slope, bend = last
        bend = max(bend, precision)
        lowest = value if root.at_bound else value - slope**2 / (2 * bend)
        return Solution(root.value, not root.at_bound, -lowest - math.log(bend / precision) / 2)


def split_up(logits: Floats, labels: Labels, segments: Segments) -> list[SegmentSample]:
    """Split a sample into its segments, sorted by name."""
    order = np.argsort(segments.codes, kind="stable")
    ends = np.concatenate([[0], np.cumsum(segments.counts)])
    parts = (order[start:stop] for start, stop in pairwise(ends))
    return [SegmentSample(logits[rows], labels[rows]) for rows in parts]


class Rounds:
    """Solver for all segments, which warm-starts each prior from the previous solutions."""

    def __init__(self, segments: Sequence[SegmentSample], context: FitContext) -> None:
        self.segments = segments
        self._context = context
        self._betas = [1.0] * len(segments)
        self._done = 0

    def solve(self, precision: float, accuracy: float = FINE) -> list[Solution]:
        """Return the solution of every segment for a prior of this precision."""
        solutions = []
        for segment, start in zip(self.segments, self._betas, strict=True):
            self._context.cancelled()
            solutions.append(segment.solve(precision, start, accuracy))
        if precision:
            self._betas = [one.beta for one in solutions]
        self._done += 1
        self._context.step(self._done, ROUNDS)
        return solutions


def shrink(rounds: Rounds) -> tuple[float, list[Solution]]:
    """Return the tau with the largest evidence, and each segment's solution for it.

    The candidates are 1, 1/2, ..., 1/64, then the values half an octave to either side of the best,
    and finally the vertex of the parabola through the best candidate and its neighbours. tau is 0
    if no candidate has more evidence than T = 1 in all segments.
    """

    def evidence(octave: float) -> float:
        return sum(one.evidence for one in rounds.solve(4.0**octave, COARSE))

    tried = {float(octave): evidence(octave) for octave in range(OCTAVES + 1)}
    best = max(tried, key=lambda octave: tried[octave])
    if tried[best] <= -sum(one.unscaled[0] for one in rounds.segments):
        return 0.0, [Solution() for _ in rounds.segments]
    tried |= {octave: evidence(octave) for octave in (best - 0.5, best + 0.5) if octave > 0}
    best = max(tried, key=lambda octave: tried[octave])
    before, after = tried.get(best - 0.5), tried.get(best + 0.5)
    if before is not None and after is not None:
        bend = 2 * tried[best] - before - after
        best += (after - before) / (4 * bend) if bend > 0 else 0.0
    return 2.0**-best, rounds.solve(4.0**best)


def figures(
    segments: Sequence[SegmentSample], solutions: Sequence[Solution], tau: float | None
) -> dict[str, float]:
    """Return the mean NLL before and after the fit, and the largest remaining slope in log T."""
    rows = sum(one.rows for one in segments) or 1
    precision = tau**-2 if tau else 0.0
    ended = [one.nll(solved.beta) for one, solved in zip(segments, solutions, strict=True)]
    slopes = [
        abs(slope + precision * math.log(solved.beta))
        for (_, slope, _), solved in zip(ended, solutions, strict=True)
        if solved.is_inside
    ]
    return {
        "nll_of_base": sum(one.unscaled[0] for one in segments) / rows,
        "nll": sum(value for value, _, _ in ended) / rows,
        "gradient_norm": max(slopes, default=0.0) / rows,
    }
