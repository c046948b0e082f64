"""The one place where probabilities, labels, confidences and options are checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from calibrators.blocks import Scratch, map_blocks, oriented
from calibrators.errors import DataError, ParameterError

Floats: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.intp]
Bools: TypeAlias = npt.NDArray[np.bool_]
Array: TypeAlias = npt.NDArray[Any]

SUM_TOLERANCE = 1e-3
ROUNDING = 1e-6


@dataclass(frozen=True, eq=False)
class Checked:
    """Probabilities (n, k) and labels (n,) that passed every check, with each row's maximum."""

    probabilities: Array
    labels: Integers
    largest: Array

    @property
    def classes(self) -> int:
        return int(self.probabilities.shape[1])

    @property
    def of_label(self) -> Floats:
        """The probability given to each row's own label."""
        rows = np.arange(self.labels.size)
        return self.probabilities[rows, self.labels].astype(np.float64)


def checked(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> Checked:
    """Check shapes, values and labels; a binary (n,) or (n, 1) input becomes (n, 2)."""
    matrix, largest = checked_probabilities(probabilities)
    return Checked(matrix, _labels(labels, *matrix.shape), largest)


def checked_probabilities(
    probabilities: npt.ArrayLike, name: str = "probabilities"
) -> tuple[Array, Array]:
    """The (n, k) matrix and the largest value of each row."""
    matrix = _matrix(probabilities, name)
    rows, classes = matrix.shape
    largest, lowest, total = (np.empty(rows, matrix.dtype) for _ in range(3))

    def work(start: int, stop: int, scratch: Scratch) -> None:
        values, axis = oriented(matrix[start:stop], scratch)
        with np.errstate(invalid="ignore", over="ignore"):
            np.maximum.reduce(values, axis=axis, out=largest[start:stop])
            np.minimum.reduce(values, axis=axis, out=lowest[start:stop])
            np.add.reduce(values, axis=axis, out=total[start:stop])

    map_blocks(work, rows, classes)
    with np.errstate(invalid="ignore"):
        outside = (lowest < -ROUNDING) | (largest > 1 + ROUNDING)
        hint = ""
        if 2 * np.count_nonzero(outside) > rows:
            hint = "; these look like logits; apply softmax or a calibration map first"
        refuse(~np.isfinite(total), f"{name} must be finite (no NaN, no infinity)", hint)
        refuse(outside, f"{name} must lie in [0, 1]", hint)
        refuse(np.abs(total - 1) > SUM_TOLERANCE, f"{name} must sum to 1 in each row")
    return matrix, largest


def _matrix(probabilities: npt.ArrayLike, name: str) -> Array:
    matrix = np.asarray(probabilities)
    if matrix.dtype.kind not in "fiub":
        raise DataError("bad_input", f"{name} must be real numbers, got dtype {matrix.dtype}")
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
        raise DataError("bad_input", f"labels must be integers, got dtype {array.dtype}")
    if array.ndim != 1:
        raise DataError("bad_input", f"labels must have shape (n,), got {array.shape}")
    if array.size != rows:
        raise DataError(
            "bad_input", f"labels must be as many as the rows: {array.size} for {rows} rows"
        )
    if array.min() < 0 or array.max() >= classes:
        outside = (array < 0) | (array >= classes)
        refuse(outside, f"labels must lie in 0..{classes - 1}")
    return array.astype(np.intp, copy=False)


def checked_confidence(confidence: npt.ArrayLike) -> Floats:
    """Confidences (n,) as float64, finite and in [0, 1]; rounding beyond 1 is cut off."""
    values = np.asarray(confidence, dtype=np.float64)
    if values.ndim != 1 or values.size == 0:
        raise DataError(
            "bad_input", f"confidence must have shape (n,) with n >= 1, got {values.shape}"
        )
    inside = (values >= -ROUNDING) & (values <= 1 + ROUNDING)
    refuse(~inside, "confidence must lie in [0, 1]")
    return np.clip(values, 0.0, 1.0)


def checked_correct(correct: npt.ArrayLike, rows: int) -> Bools:
    """Correctness (n,) as booleans; 0 and 1 are taken too."""
    values = np.asarray(correct)
    if values.shape != (rows,):
        raise DataError(
            "bad_input", f"correct must have shape ({rows},) like confidence, got {values.shape}"
        )
    if values.dtype != np.bool_:
        refuse((values != 0) & (values != 1), "correct must be True or False (or 1 and 0)")
    return values.astype(np.bool_, copy=False)


def at_least(name: str, value: int, least: int) -> None:
    """Refuse an integer option below its least value."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ParameterError(
            "bad_parameter", f"{name} must be an integer of at least {least}, got {value!r}"
        )


def refuse(broken: Bools, rule: str, hint: str = "") -> None:
    """Raise a DataError with the number of broken rows and the first, if there is any."""
    count = int(np.count_nonzero(broken))
    if count:
        raise DataError("bad_input", rule + hint, rows=count, first=int(np.argmax(broken)))
