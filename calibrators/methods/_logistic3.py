"""Solve many logistic regressions at once, each with two inputs and an intercept."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrators.methods._one_vs_rest import Bools
from calibrators.numerics.parallel import Floats

NEUTRAL = np.array([1.0, 1.0, 0.0])
FACES = ((False, True, True), (True, False, True), (False, False, True))
STEPS = 200
ROUNDING = 1e-13


@dataclass(frozen=True, eq=False)
class LogisticProblem:
    """One problem per class: minimise the mean NLL of its rows plus a prior term over w.

    The objective is ``mean(log(1 + e^m) - label m) + prior / (2 rows) |w - (1, 1, 0)|^2`` with
    ``m = w0 first + w1 second + w2``. Inputs, labels and ``counts`` have shape (c, n) and dtype
    float64. ``counts`` is 1.0 for rows that count and 0.0 for others; None means that all rows
    count. Rows that do not count have inputs and labels of 0.
    """

    first: Floats
    second: Floats
    label: Floats
    counts: Floats | None
    prior: float

    def of(self, classes: NDArray[np.intp]) -> LogisticProblem:
        """Return the problems of the given classes."""
        counts = None if self.counts is None else self.counts[classes]
        first, second, label = (one[classes] for one in (self.first, self.second, self.label))
        return LogisticProblem(first, second, label, counts, self.prior)

    def rows(self) -> Floats:
        """Return the number of rows that count for each class, at least 1."""
        if self.counts is None:
            return np.full(len(self.first), float(self.first.shape[1]))
        return np.asarray(np.maximum(1.0, self.counts.sum(axis=1)))


@dataclass(frozen=True, eq=False)
class LogisticMinimum:
    """The solution for each class: weights (c, 3), objective and remaining gradient.

    ``value`` is the mean NLL plus the prior term. ``gradient`` is the largest component of the
    gradient with respect to the weights that are free.
    """

    weights: Floats
    value: Floats
    gradient: Floats
    iterations: int


def minimum(problem: LogisticProblem, tolerance: float) -> LogisticMinimum:
    """Return the minimum under the constraints ``w0 >= 0`` and ``w1 >= 0``.

    If the unconstrained minimum violates them, the constrained one lies on an edge, where one or
    both of these weights are 0. The problem is convex, so the best feasible minimum over all edges
    is the constrained minimum.
    """
    found = _newton(problem, np.ones(3, dtype=bool), tolerance)
    broken = np.flatnonzero((found.weights[:, :2] < 0).any(axis=1))
    if not broken.size:
        return found
    part = problem.of(broken)
    edges = [_newton(part, np.array(face), tolerance) for face in FACES]
    values = [np.where((e.weights[:, :2] < 0).any(axis=1), np.inf, e.value) for e in edges]
    best, place = np.argmin(values, axis=0), np.arange(broken.size)
    for name in ("weights", "value", "gradient"):
        chosen = np.stack([getattr(edge, name) for edge in edges])[best, place]
        getattr(found, name)[broken] = chosen
    return LogisticMinimum(
        found.weights, found.value, found.gradient, max(e.iterations for e in [found, *edges])
    )


def _newton(problem: LogisticProblem, free: Bools, tolerance: float) -> LogisticMinimum:
    """Minimise by Newton's method from (1, 1, 0); weights that are not free are fixed at 0.

    All classes that have not converged take a step at the same time. A step that raises the value
    of a class is halved.
    """
    weights = np.tile(np.where(free, NEUTRAL, 0.0), (len(problem.first), 1))
    value, slope, bend = _derivatives(problem, weights, free)
    step = -np.linalg.solve(bend, slope[..., np.newaxis])[..., 0]
    iterations = 0
    going = np.flatnonzero(np.abs(slope).max(axis=1) > tolerance)
    while going.size and iterations < STEPS:
        iterations += 1
        part = problem if going.size == len(value) else problem.of(going)
        tried = weights[going] + step[going]
        new_value, new_slope, new_bend = _derivatives(part, tried, free)
        good = new_value <= value[going] + ROUNDING * (1 + np.abs(value[going]))
        step[going[~good]] /= 2
        at = going[good]
        weights[at], value[at], slope[at] = tried[good], new_value[good], new_slope[good]
        step[at] = -np.linalg.solve(new_bend[good], new_slope[good][..., np.newaxis])[..., 0]
        going = np.flatnonzero(np.abs(slope).max(axis=1) > tolerance)
    return LogisticMinimum(weights, value, np.abs(slope).max(axis=1), iterations)


def _derivatives(
    problem: LogisticProblem, weights: Floats, free: Bools
) -> tuple[Floats, Floats, Floats]:
    """Return the value (c,), gradient (c, 3) and Hessian (c, 3, 3) of each class's objective."""
    sums = _sums(problem, weights)
    rows = problem.rows()
    away = weights - NEUTRAL
    value = (sums[0] + 0.5 * problem.prior * (away**2).sum(axis=1)) / rows
    slope = (np.stack(sums[1:4], axis=1) + problem.prior * away) * free
    aa, ab, bb, ac, bc, cc = sums[4:]
    bend = np.stack([aa, ab, ac, ab, bb, bc, ac, bc, cc], axis=1).reshape(-1, 3, 3)
    bend = np.where(free[:, np.newaxis] & free, bend + problem.prior * np.eye(3), np.eye(3))
    return value, slope / rows[:, np.newaxis], bend / rows[:, np.newaxis, np.newaxis]


def _sums(problem: LogisticProblem, weights: Floats) -> list[Floats]:
    """Return, for each class, sums over its rows: the NLL and its first and second derivatives."""
    first, second, label = problem.first, problem.second, problem.label
    w0, w1, w2 = weights.T[..., np.newaxis]
    margin = w0 * first
    margin += w1 * second
    margin += w2
    if problem.counts is not None:
        margin *= problem.counts
    tail = np.abs(margin)
    np.negative(tail, out=tail)
    with np.errstate(under="ignore"):
        np.exp(tail, out=tail)
    above = np.maximum(margin, 0)
    nll = _log_of_products(1 + tail) + above.sum(axis=1) - np.vecdot(label, margin)
    share = np.reciprocal(1 + tail)
    chance = np.where(margin > 0, share, np.multiply(tail, share, out=margin))
    np.multiply(tail, share, out=tail)
    curvature = np.multiply(tail, share, out=tail)
    residual = np.subtract(chance, label, out=chance)
    if problem.counts is not None:
        # a row that does not count has a margin of 0, which adds log 2 to the NLL
        nll -= np.log(2.0) * (1 - problem.counts).sum(axis=1)
        residual *= problem.counts
        curvature *= problem.counts
    slopes = [np.vecdot(residual, first), np.vecdot(residual, second), residual.sum(axis=1)]
    by_first = np.multiply(curvature, first, out=above)
    by_second = np.multiply(curvature, second, out=residual)
    products = [(by_first, first), (by_first, second), (by_second, second)]
    ones = [one.sum(axis=1) for one in (by_first, by_second, curvature)]
    return [nll, *slopes, *(np.vecdot(*pair) for pair in products), *ones]


def _log_of_products(factors: Floats) -> Floats:
    """Return ``log(factors).sum(axis=1)`` for factors in [1, 2], with one logarithm per 512."""
    products = np.multiply.reduceat(factors, np.arange(0, factors.shape[1], 512), axis=1)
    return np.asarray(np.log(products).sum(axis=1))
