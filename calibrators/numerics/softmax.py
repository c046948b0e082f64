"""Blocked softmax for temperature-type maps, and the sums over classes for fitting them.

All functions use only numpy, and are exact to the precision of the logits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrators.arrays import check_rows, row_maxima
from calibrators.data import CalibrationSet
from calibrators.errors import MapError
from calibrators.numerics.parallel import Floats, Scratch, map_blocks, oriented

FAR = -1e30

InverseTemperature = Callable[[Floats], Floats | float] | Floats


def softmax(logits: Floats, inverse_temperature: InverseTemperature | None = None) -> Floats:
    """Check the rows and return their ``softmax(logits * inverse_temperature(logits))``.

    ``inverse_temperature`` may also be an array (n,) with a number for each row. Raise a MapError
    if it makes the probabilities of a row non-finite. The largest logit is subtracted before any
    multiplication, so margins of 1e4 and -inf are exact, and the largest logit always has the
    largest probability.

    >>> softmax(np.array([[0.0, -np.inf], [1e4, 0.0], [3.0, 3.0]])).tolist()
    [[1.0, 0.0], [1.0, 0.0], [0.5, 0.5]]
    """
    return _scaled(logits, inverse_temperature, normalise=True)


def scaled_logits(logits: Floats, inverse_temperature: InverseTemperature) -> Floats:
    """Return ``(logits - row maximum) * inverse_temperature``, the exponents of ``softmax``.

    >>> scaled_logits(np.array([[3.0, 1.0]]), lambda block: 0.5).tolist()
    [[0.0, -1.0]]
    """
    return _scaled(logits, inverse_temperature, normalise=False)


def _scaled(
    logits: Floats, inverse_temperature: InverseTemperature | None, *, normalise: bool
) -> Floats:
    if len(logits) == 1:
        return _scaled_row(logits, inverse_temperature, normalise=normalise)
    out = np.empty(logits.shape, dtype=logits.dtype)
    broken: list[NDArray[np.intp]] = []

    def work(start: int, stop: int, scratch: Scratch) -> bool:
        block = logits[start:stop]
        values, axis = oriented(block, scratch)
        maxima = values.max(axis=axis, keepdims=True)
        if not np.isfinite(maxima).all():
            return False
        target = out[start:stop] if axis == 1 else values
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            np.subtract(values, maxima, out=target)
            if inverse_temperature is not None:
                beta = _of_rows(inverse_temperature, block, start, stop)
                target *= beta if beta.ndim == 0 else np.expand_dims(beta, axis)
            if normalise:
                np.exp(target, out=target)
                totals = target.sum(axis=axis, keepdims=True)
                if not math.isfinite(totals.sum()):
                    broken.append(start + np.flatnonzero(~np.isfinite(totals)))
                target /= totals
        if axis == 0:
            out[start:stop] = values.T
        return True

    if not all(map_blocks(work, *logits.shape)):
        check_rows(row_maxima(logits))
    if broken:
        rows = np.concatenate(broken)
        raise MapError(len(rows), int(rows.min()))
    return out


def _of_rows(inverse: InverseTemperature, block: Floats, start: int, stop: int) -> Floats:
    """Return 1/T of the rows from ``start`` to ``stop``, in the dtype of the logits."""
    beta = inverse(block) if callable(inverse) else inverse[start:stop]
    return np.asarray(beta, dtype=block.dtype)


def _scaled_row(
    logits: Floats, inverse_temperature: InverseTemperature | None, *, normalise: bool
) -> Floats:
    """Scale a single row (1, k); with scalars instead of columns, numpy is twice as fast."""
    row = logits[0]
    largest = row.max()
    if not math.isfinite(largest):
        check_rows(row_maxima(logits))
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        target: Floats = np.subtract(row, largest)
        if inverse_temperature is not None:
            target *= _of_rows(inverse_temperature, logits, 0, 1)
        if normalise:
            np.exp(target, out=target)
            total = target.sum()
            if not math.isfinite(total):
                raise MapError(1, 0)
            target /= total
    return target.reshape(1, -1)


def rewritten(
    logits: Floats, write: Callable[[Floats, Floats, Floats], None], row_cost: int = 0
) -> Floats:
    """Return an array shaped like ``logits``, filled block by block; raise if a row is not finite.

    ``write(block, maxima, target)`` fills ``target``, given rows and their maxima (n, 1).
    ``row_cost`` is the number of intermediate values per row, if it exceeds the number of classes.

    >>> rewritten(np.array([[3.0, 1.0]]), lambda z, top, out: np.subtract(z, top, out=out)).tolist()
    [[0.0, -2.0]]
    """
    out = np.empty(logits.shape, dtype=logits.dtype)

    def work(start: int, stop: int, scratch: Scratch) -> bool:
        block = logits[start:stop]
        maxima = block.max(axis=1, keepdims=True)
        if not np.isfinite(maxima).all():
            return False
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            write(block, maxima, out[start:stop])
        return True

    rows, k = logits.shape
    if not all(map_blocks(work, rows, max(k, row_cost))):
        check_rows(row_maxima(logits))
    return out


def margins(logits: Floats) -> Floats:
    """Return each row's largest minus its second-largest logit (n,); inf if only one is finite.

    >>> margins(np.array([[1.0, 3.0, 2.5], [2.0, 2.0, 0.0]])).tolist()
    [0.5, 0.0]
    """

    def work(start: int, stop: int, scratch: Scratch) -> Floats:
        largest, second = two_largest(*oriented(logits[start:stop], scratch))
        return np.subtract(largest, second)

    return np.concatenate(map_blocks(work, *logits.shape))


def two_largest(block: Floats, axis: int) -> tuple[Floats, Floats]:
    """Return the largest and second-largest values along an axis of a 2-d block."""
    if axis == 0:
        largest, second = block[0].copy(), np.full(block.shape[1], -np.inf, dtype=block.dtype)
        for row in block[1:]:
            np.maximum(second, np.minimum(largest, row), out=second)
            np.maximum(largest, row, out=largest)
        return largest, second
    rows, top = np.arange(len(block)), block.argmax(axis=1)
    rest = block.copy()
    rest[rows, top] = -np.inf
    return block[rows, top], rest.max(axis=1)


def mean_gaps(data: CalibrationSet) -> Floats:
    """Return the mean of ``row_max - logits`` over each row's finite logits, (n,)."""

    def work(start: int, stop: int, scratch: Scratch) -> Floats:
        gaps = data.row_max[start:stop, np.newaxis] - data.logits[start:stop]
        finite = np.isfinite(gaps)
        means = np.where(finite, gaps, 0).sum(axis=1, dtype=np.float64) / finite.sum(axis=1)
        return np.asarray(means)

    return np.concatenate(map_blocks(work, data.n, data.k))


class PartitionSums(NamedTuple):
    """``L = log sum_k exp(-beta d_k)``, summed over rows, and its derivatives in beta.

    The derivatives are minus the mean of d under softmax(beta z), the variance of d, and minus its
    third central moment.
    """

    value: float
    first: float
    second: float
    third: float


def partition_sums(logits: Floats, row_max: Floats, beta: float) -> PartitionSums:
    """Return the sums for fitting a temperature, where ``d = row_max - logits``.

    Blocks are computed in the dtype of the logits and summed in float64. The moments of ``beta d``
    are used because its size does not depend on the scale of the logits.
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
    """Yield the sums over classes of ``weights * gaps**i``, i = 0 to 3; overwrite ``weights``."""
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
    """Return the mean negative log likelihood of ``softmax(beta * logits)``, for any beta > 0."""
    total = partition_sums(data.logits, data.row_max, beta).value
    return beta * float(data.label_gaps.mean(dtype=np.float64)) + total / data.n
