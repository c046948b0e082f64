"""Checks of probabilities, labels, confidences and options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from calibrators.errors import DataError, ParameterError
from calibrators.numerics.parallel import Scratch, map_blocks, oriented

Floats: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.intp]
Bools: TypeAlias = npt.NDArray[np.bool_]
Array: TypeAlias = npt.NDArray[Any]
Summary = TypeVar("Summary")

SUM_TOLERANCE = 1e-3
ROUNDING = 1e-6


@dataclass(frozen=True, eq=False)
class Checked:
    """Validated probabilities (n, k) and labels (n,), with the top labels found in the same pass.

    For each row, ``confidence`` is the largest probability, clipped to [0, 1]. ``correct`` is True
    if the first column with this probability is the label.
    """

    probabilities: Array
    labels: Integers
    confidence: Floats
    correct: Bools

    @property
    def classes(self) -> int:
        """Number of classes."""
        return int(self.probabilities.shape[1])

    @property
    def of_label(self) -> Floats:
        """The probability of each row's label (n,)."""
        rows = np.arange(self.labels.size)
        return self.probabilities[rows, self.labels].astype(np.float64)


def checked(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> Checked:
    """Return checked probabilities and labels; binary input (n,) or (n, 1) becomes (n, 2)."""
    matrix, truth = _shaped(probabilities, labels)
    confidence, correct = np.empty(truth.size), np.empty(truth.size, dtype=np.bool_)

    def keep(start: int, stop: int, largest: Array, right: Bools, _: Scratch) -> None:
        np.clip(largest, 0.0, 1.0, out=confidence[start:stop])
        correct[start:stop] = right

    _each_block(matrix, truth, keep)
    return Checked(matrix, truth, confidence, correct)


def checked_blocks(
    probabilities: npt.ArrayLike,
    labels: npt.ArrayLike,
    summarise: Callable[[Array, Bools, Scratch], Summary],
) -> list[Summary]:
    """Check input as `checked` does, but return only a summary of each block of rows."""
    matrix, truth = _shaped(probabilities, labels)
    return _each_block(matrix, truth, lambda start, stop, *rows: summarise(*rows))


def _shaped(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> tuple[Array, Integers]:
    matrix = _matrix(probabilities, "probabilities")
    return matrix, _labels(labels, *matrix.shape)


def _each_block(
    matrix: Array, truth: Integers, use: Callable[[int, int, Array, Bools, Scratch], Summary]
) -> list[Summary]:
    """Call ``use`` for each block, with its start, stop, row maxima, correctness and scratch."""

    def work(start: int, stop: int, scratch: Scratch) -> Summary:
        values, axis = oriented(matrix[start:stop], scratch)
        largest, sound = _row_maxima(values, axis, scratch)
        own = _of_label(values, axis, truth[start:stop], scratch)
        right = np.equal(own, largest, out=scratch.take("right", largest.shape, np.bool_))
        # above one half, plus the tolerance of the row sum, no second column can be as large
        if largest.min() < 0.5 + SUM_TOLERANCE:
            same = scratch.take("same", values.shape, np.bool_)
            np.equal(values, np.expand_dims(largest, axis), out=same)
            count = scratch.take("count", largest.shape, np.uint32)
            np.add.reduce(same.view(np.uint8), axis=axis, out=count)
            tied = np.flatnonzero(count > 1)
            right[tied] = matrix[start + tied].argmax(axis=1) == truth[start + tied]
        if not sound:
            _refuse_rows(matrix, "probabilities")
        return use(start, stop, largest, right, scratch)

    return map_blocks(work, *matrix.shape)


def checked_probabilities(probabilities: npt.ArrayLike, name: str) -> Array:
    """Return a checked matrix (n, k) of probabilities without labels."""
    matrix = _matrix(probabilities, name)

    def work(start: int, stop: int, scratch: Scratch) -> bool:
        return _row_maxima(*oriented(matrix[start:stop], scratch), scratch)[1]

    if not all(map_blocks(work, *matrix.shape)):
        _refuse_rows(matrix, name)
    return matrix


def _row_maxima(values: Array, axis: int, scratch: Scratch) -> tuple[Array, bool]:
    """Return the row maxima of a block from ``oriented``, and whether all values are valid."""
    rows = (values.shape[1 - axis],)
    largest, off = (scratch.take(name, rows, values.dtype) for name in ("largest", "off"))
    with np.errstate(invalid="ignore", over="ignore"):
        np.maximum.reduce(values, axis=axis, out=largest)
        np.add.reduce(values, axis=axis, out=off)
        off -= 1
        np.abs(off, out=off)
        inside = values.min() >= -ROUNDING and largest.max() <= 1 + ROUNDING
        return largest, bool(inside and off.max() <= SUM_TOLERANCE)


def _of_label(values: Array, axis: int, labels: Integers, scratch: Scratch) -> Array:
    """Return the value (n,) at each row's label in a block from ``oriented``."""
    rows = np.arange(labels.size)
    if axis == 1:
        return np.asarray(values[rows, labels])
    place = np.multiply(labels, labels.size, out=scratch.take("place", labels.shape, np.intp))
    place += rows
    own = scratch.take("own", labels.shape, values.dtype)
    return values.reshape(-1).take(place, out=own, mode="clip")


def _refuse_rows(matrix: Array, name: str) -> None:
    """Raise a DataError with the violated rule and the number of invalid rows."""
    with np.errstate(invalid="ignore", over="ignore"):
        outside = np.any((matrix < -ROUNDING) | (matrix > 1 + ROUNDING), axis=1)
        total: Array = matrix.sum(axis=1)
        hint = ""
        if 2 * np.count_nonzero(outside) > len(matrix):
            hint = "; these look like logits: apply softmax or a calibration map first"
        refuse(~np.isfinite(total), f"{name} must be finite (no NaN, no infinity)", hint)
        refuse(outside, f"{name} must lie in [0, 1]", hint)
        refuse(np.abs(total - 1) > SUM_TOLERANCE, f"{name} must sum to 1 in each row")


def _matrix(probabilities: npt.ArrayLike, name: str) -> Array:
    try:
        matrix = np.asarray(probabilities)
    except (ValueError, TypeError, RuntimeError) as error:
        raise DataError("not_an_array", f"{name} cannot be read as an array: {error}") from error
    if matrix.dtype.kind not in "fiub":
        raise DataError("bad_input", f"{name} must be an array of numbers, got {matrix.dtype}")
    if matrix.dtype not in (np.float32, np.float64):
        matrix = matrix.astype(np.float64)
    if matrix.ndim not in (1, 2):
        raise DataError(
            "bad_input", f"{name} must have shape (n, k), (n,) or (n, 1), got {matrix.shape}"
        )
    if matrix.shape[0] == 0:
        raise DataError("bad_input", f"{name} must have at least one row, got shape {matrix.shape}")
    if matrix.ndim == 2 and matrix.shape[1] == 0:
        raise DataError(
            "bad_input", f"{name} must have at least 2 classes, got shape {matrix.shape}"
        )
    if matrix.ndim == 1 or matrix.shape[1] == 1:
        second = matrix.reshape(-1).astype(np.float64)
        with np.errstate(invalid="ignore"):
            matrix = np.column_stack((1 - second, second))
    return matrix


def _labels(labels: npt.ArrayLike, rows: int, classes: int) -> Integers:
    array = np.asarray(labels)
    if array.dtype.kind not in "iub":
        raise DataError("bad_input", f"labels must be integers, got {array.dtype}")
    if array.ndim != 1:
        raise DataError("bad_input", f"labels must have shape (n,), got {array.shape}")
    if array.size != rows:
        raise DataError(
            "bad_input", f"there must be one label per row, got {array.size} for {rows} rows"
        )
    if array.min() < 0 or array.max() >= classes:
        outside = (array < 0) | (array >= classes)
        refuse(outside, f"labels must lie in 0..{classes - 1}")
    return array.astype(np.intp, copy=False)


def checked_confidence(confidence: npt.ArrayLike) -> Floats:
    """Return checked confidences (n,) as float64 in [0, 1]; rounding errors are clipped."""
    values = np.asarray(confidence, dtype=np.float64)
    if values.ndim != 1 or values.size == 0:
        raise DataError(
            "bad_input", f"confidence must have shape (n,) with n >= 1, got {values.shape}"
        )
    inside = (values >= -ROUNDING) & (values <= 1 + ROUNDING)
    refuse(~inside, "confidence must lie in [0, 1]")
    return np.clip(values, 0.0, 1.0)


def checked_correct(correct: npt.ArrayLike, rows: int) -> Bools:
    """Return correctness (n,) as booleans; 0 and 1 are accepted as well."""
    values = np.asarray(correct)
    if values.shape != (rows,):
        raise DataError(
            "bad_input", f"correct must have shape ({rows},) like confidence, got {values.shape}"
        )
    if values.dtype != np.bool_:
        refuse((values != 0) & (values != 1), "correct must be True or False (or 1 and 0)")
    return values.astype(np.bool_, copy=False)


def at_least(name: str, value: int, least: int) -> None:
    """Raise if an integer option is below its minimum."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ParameterError(
            "bad_parameter", f"{name} must be an integer of at least {least}, got {value!r}"
        )


def refuse(broken: Bools, rule: str, hint: str = "") -> None:
    """If any rows are invalid, raise a DataError with their number and the first index."""
    count = int(np.count_nonzero(broken))
    if count:
        raise DataError("bad_input", rule + hint, rows=count, first=int(np.argmax(broken)))
