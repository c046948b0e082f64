"""Convex problems in one positive unknown, solved to the end: a bracket, and Newton inside it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrators.data import CalibrationSet
from calibrators.errors import FitError
from calibrators.numerics.parallel import Floats, Scratch, map_blocks, oriented

FAR = -1e30
ITERATIONS = 100


@dataclass(frozen=True)
class Root:
    """Where a derivative vanishes; ``at_bound`` if it has one sign on the whole interval."""

    value: float
    at_bound: bool
    evaluations: int


def bracketed_newton(
    derivatives: Callable[[float], Sequence[float]],
    low: float,
    high: float,
    start: float,
    accuracy: float = 1e-7,
) -> Root:
    """The minimiser of a convex function on [low, high], 0 < low < high.

    ``derivatives(x)`` gives the first and second derivative, and the third if it is known. Steps
    are taken in log x; one that leaves the bracket goes to the bound if that was not seen yet, else
    to the (geometric) middle, so no start and no data can make it cycle. A step squares the error
    (Newton), with a third derivative it cubes it (Halley): the last one, which is still taken, is
    the first whose square or cube is below ``accuracy``, relative to x.

    >>> bracketed_newton(lambda x: (x - 1 / x, 1 + 1 / x**2), 1e-3, 1e3, 50.0).value
    1.0...
    """
    lower_known = upper_known = False
    lowest, highest = lower, upper = math.log(low), math.log(high)
    at = min(max(math.log(start), lower), upper)
    for evaluations in range(1, ITERATIONS + 1):
        x = math.exp(at)
        slope, bend, *third = derivatives(x)
        if (at == lowest and slope >= 0) or (at == highest and slope <= 0):
            return Root(low if at == lowest else high, True, evaluations)
        if slope > 0:
            upper, upper_known = at, True
        else:
            lower, lower_known = at, True
        step = _step(x, slope, bend, *third)
        following = at + step
        if abs(step) < accuracy ** (1 / (2 + len(third))) or upper - lower < accuracy:
            return Root(math.exp(min(max(following, lower), upper)), False, evaluations)
        if following <= lower:
            following = 0.5 * (lower + upper) if lower_known else lower
        elif following >= upper:
            following = 0.5 * (lower + upper) if upper_known else upper
        at = following
    raise FitError("no_root", f"no root of the derivative in [{low}, {high}]: is it convex?")


def _step(x: float, slope: float, bend: float, third: float = math.nan) -> float:
    """Halley's step in log x; Newton's if the two differ twofold or no third is known."""
    if not bend > 0:
        return math.copysign(math.inf, -slope)
    newton = -slope / (x * bend)
    divisor = 1 + newton * (1 + x * third / bend) / 2
    return newton / divisor if 0.5 < divisor < 2 else newton


class PartitionSums(NamedTuple):
    """``L = log sum_k exp(-beta d_k)`` summed over rows, and its derivatives in beta.

    They are minus the mean of d under softmax(beta z), its variance, and minus its third central
    moment.
    """

    value: float
    first: float
    second: float
    third: float


def partition_sums(logits: Floats, row_max: Floats, beta: float) -> PartitionSums:
    """All that temperature scaling needs to know, with ``d = row_max - logits``.

    Blocks in the type of the logits, sums in float64. Moments are those of ``beta d``, which has
    the same size whatever the scale of the logits is.
    """

    def work(start: int, stop: int, scratch: Scratch) -> NDArray[np.float64]:
        block, axis = oriented(logits[start:stop], scratch)
        gaps = scratch.take("gaps", block.shape, block.dtype)
        np.subtract(block, np.expand_dims(row_max[start:stop], axis), out=gaps)
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):
            gaps *= gaps.dtype.type(beta)
            sums = _block_sums(gaps, axis, scratch)
            if not np.isfinite(sums).all():
                np.maximum(gaps, FAR, out=gaps)
                sums = _block_sums(gaps, axis, scratch)
        return sums

    total = np.sum(map_blocks(work, *logits.shape), axis=0)
    return PartitionSums(*(total / np.float64(beta) ** np.arange(4)).tolist())


def _block_sums(gaps: Floats, axis: int, scratch: Scratch) -> NDArray[np.float64]:
    weights = scratch.take("weights", gaps.shape, gaps.dtype)
    np.exp(gaps, out=weights)
    total, *moments = (moment.astype(np.float64) for moment in _moments(weights, gaps, axis))
    mean, square, cube = (moment / total for moment in moments)
    return np.array(
        [
            np.log(total).sum(),
            mean.sum(),
            (square - mean * mean).sum(),
            (cube - 3 * mean * square + 2 * mean**3).sum(),
        ]
    )


def _moments(weights: Floats, gaps: Floats, axis: int) -> Iterator[Floats]:
    """Yield sums over classes of ``weights * gaps**i``, i = 0 to 3; ``weights`` is used up."""
    if axis == 0:
        for power in range(4):
            if power:
                weights *= gaps
            yield weights.sum(axis=0)
        return
    yield np.vecdot(weights, np.ones(gaps.shape[1], dtype=gaps.dtype))
    for power in range(1, 4):
        if power > 1:
            weights *= gaps
        yield np.vecdot(weights, gaps)


def mean_nll(data: CalibrationSet, beta: float) -> float:
    """Mean negative log likelihood of ``softmax(beta * logits)``, at any scale."""
    total = partition_sums(data.logits, data.row_max, beta).value
    return beta * float(data.label_gaps.mean(dtype=np.float64)) + total / data.n


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
