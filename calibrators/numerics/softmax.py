"""The blocked softmax that applies every temperature-type map: numpy only, exact to the type."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from calibrators.arrays import check_rows, row_maxima
from calibrators.errors import MapError
from calibrators.numerics.parallel import Floats, Scratch, map_blocks, oriented

InverseTemperature = Callable[[Floats], Floats | float] | Floats


def softmax(logits: Floats, inverse_temperature: InverseTemperature | None = None) -> Floats:
    """Row-wise ``softmax(logits * inverse_temperature(logits))``; checks rows as it goes.

    A MapError is raised where ``inverse_temperature`` leaves a row without finite probabilities.

    ``inverse_temperature`` may also be an array with a number for each row (n,). The largest logit
    is subtracted before anything is multiplied, so margins of 1e4 and -inf are exact and the
    largest logit always has the largest probability.

    >>> softmax(np.array([[0.0, -np.inf], [1e4, 0.0], [3.0, 3.0]])).tolist()
    [[1.0, 0.0], [1.0, 0.0], [0.5, 0.5]]
    """
    return _scaled(logits, inverse_temperature, normalise=True)


def scaled_logits(logits: Floats, inverse_temperature: InverseTemperature) -> Floats:
    """``(logits - row maximum) * inverse_temperature``: logits with the same softmax.

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
        turned, axis = oriented(block, scratch)
        maxima = turned.max(axis=axis, keepdims=True)
        if not np.isfinite(maxima).all():
            return False
        target = out[start:stop] if axis == 1 else turned
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            np.subtract(turned, maxima, out=target)
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
            out[start:stop] = turned.T
        return True

    if not all(map_blocks(work, *logits.shape)):
        check_rows(row_maxima(logits))
    if broken:
        rows = np.concatenate(broken)
        raise MapError(len(rows), int(rows.min()))
    return out


def _of_rows(inverse: InverseTemperature, block: Floats, start: int, stop: int) -> Floats:
    """1/T of the rows from ``start`` to ``stop``, in their type."""
    found = inverse(block) if callable(inverse) else inverse[start:stop]
    return np.asarray(found, dtype=block.dtype)


def _scaled_row(
    logits: Floats, inverse_temperature: InverseTemperature | None, *, normalise: bool
) -> Floats:
    """The same for a single row (1, k): on numbers in place of columns numpy is twice as fast."""
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
    """An array like ``logits``, made block by block; checks rows as it goes.

    ``write(block, maxima, target)`` fills ``target`` from rows and their maxima (n, 1), with about
    ``row_cost`` numbers a row in between if that is more than there are classes.

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
    """Largest minus second largest logit of every row (n,); inf where only one is finite.

    >>> margins(np.array([[1.0, 3.0, 2.5], [2.0, 2.0, 0.0]])).tolist()
    [0.5, 0.0]
    """

    def work(start: int, stop: int, scratch: Scratch) -> Floats:
        largest, second = two_largest(*oriented(logits[start:stop], scratch))
        return np.subtract(largest, second)

    return np.concatenate(map_blocks(work, *logits.shape))


def two_largest(block: Floats, axis: int) -> tuple[Floats, Floats]:
    """The largest and second largest value along an axis of a 2-d block."""
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
