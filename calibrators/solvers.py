"""Convex problems in one positive unknown, solved to the end: a bracket, and Newton inside it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrators.blocks import Floats, Scratch, map_blocks, oriented
from calibrators.data import CalibrationSet
from calibrators.errors import FitError

FAR = -1e30
ITERATIONS = 100


@dataclass(frozen=True)
class Root:
    """Where a derivative vanishes; ``at_bound`` if it has one sign on the whole interval."""

    value: float
    at_bound: bool
    evaluations: int


def bracketed_newton(
    derivatives: Callable[[float], tuple[float, float]],
    low: float,
    high: float,
    start: float,
    tolerance: float = 3e-4,
) -> Root:
    """The minimiser of a convex function on [low, high], 0 < low < high.

    ``derivatives(x)`` gives the first and second derivative. Steps are taken in log x; one that
    leaves the bracket goes to the bound if that was not seen yet, else to the (geometric) middle,
    so no start and no data can make it cycle. The last step, shorter than ``tolerance``, is still
    taken: Newton squares the error, so the answer is good to about ``tolerance ** 2``.

    >>> bracketed_newton(lambda x: (x - 1 / x, 1 + 1 / x**2), 1e-3, 1e3, 50.0).value
    1.0...
    """
    lower_known = upper_known = False
    lowest, highest = lower, upper = math.log(low), math.log(high)
    at = min(max(math.log(start), lower), upper)
    for evaluations in range(1, ITERATIONS + 1):
        x = math.exp(at)
        slope, bend = derivatives(x)
        if (at == lowest and slope >= 0) or (at == highest and slope <= 0):
            return Root(low if at == lowest else high, True, evaluations)
        if slope > 0:
            upper, upper_known = at, True
        else:
            lower, lower_known = at, True
        step = -slope / (x * bend) if bend > 0 else math.copysign(math.inf, -slope)
        following = at + step
        if abs(step) < tolerance or upper - lower < tolerance**2:
            return Root(math.exp(min(max(following, lower), upper)), False, evaluations)
        if following <= lower:
            following = 0.5 * (lower + upper) if lower_known else lower
        elif following >= upper:
            following = 0.5 * (lower + upper) if upper_known else upper
        at = following
    raise FitError("no_root", f"no root of the derivative in [{low}, {high}]: is it convex?")


def partition_sums(logits: Floats, row_max: Floats, beta: float) -> tuple[float, float, float]:
    """Sums over rows of ``L = log sum_k exp(-beta d_k)``, ``d = row_max - logits``, and of L', L''.

    L' is minus the mean of d under softmax(beta z), L'' its variance: all that temperature scaling
    needs to know. Blocks in the type of the logits, sums in float64.
    """

    def work(start: int, stop: int, scratch: Scratch) -> NDArray[np.float64]:
        block, axis = oriented(logits[start:stop], scratch)
        gaps = scratch.take("gaps", block.shape, block.dtype)
        np.subtract(block, np.expand_dims(row_max[start:stop], axis), out=gaps)
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):
            sums = _block_sums(gaps, axis, beta, scratch)
            if not np.isfinite(sums).all():
                np.maximum(gaps, FAR, out=gaps)
                sums = _block_sums(gaps, axis, beta, scratch)
        return sums

    total = np.sum(map_blocks(work, *logits.shape), axis=0)
    return float(total[0]), float(total[1]), float(total[2])


def _block_sums(gaps: Floats, axis: int, beta: float, scratch: Scratch) -> NDArray[np.float64]:
    weights = scratch.take("weights", gaps.shape, gaps.dtype)
    np.multiply(gaps, gaps.dtype.type(beta), out=weights)
    np.exp(weights, out=weights)
    zeroth = weights.sum(axis=axis).astype(np.float64)
    if axis == 1:
        first = np.vecdot(weights, gaps)
        weights *= gaps
        second = np.vecdot(weights, gaps)
    else:
        weights *= gaps
        first = weights.sum(axis=0)
        weights *= gaps
        second = weights.sum(axis=0)
    mean = first / zeroth
    return np.array([np.log(zeroth).sum(), mean.sum(), (second / zeroth - mean * mean).sum()])


def mean_nll(data: CalibrationSet, beta: float) -> float:
    """Mean negative log likelihood of ``softmax(beta * logits)``, at any scale."""
    pull = data.row_max - data.logits[np.arange(data.n), data.labels]
    total, _, _ = partition_sums(data.logits, data.row_max, beta)
    return beta * float(pull.mean(dtype=np.float64)) + total / data.n


def minimise_on_grid(
    function: Callable[[float], float], centre: float, octaves: float = 4.0
) -> tuple[float, int]:
    """The minimiser of a function of one positive number that need not be convex, and evaluations.

    Eight points an octave around ``centre``, then ever finer grids around the best point, to one
    part in a million. Ties go to the point nearest to the centre.

    >>> round(minimise_on_grid(lambda x: abs(math.log(x / 3)), 1.0)[0], 5)
    3.0
    """
    best, width, evaluations = math.log(centre), octaves * math.log(2), 0
    points = int(16 * octaves) + 1
    while width > 1e-6:
        offsets = np.linspace(-width, width, points)
        values = [function(math.exp(best + offset)) for offset in offsets]
        evaluations += len(values)
        order = np.lexsort(np.stack([np.abs(offsets), values]))
        best += float(offsets[order[0]])
        width = float(offsets[1] - offsets[0])
        points = 9
    return math.exp(best), evaluations
