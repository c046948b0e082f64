"""Build checked calibration sets and segments from arrays of any library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from calibrators import CalibrationSet, DataError
from calibrators.data import Kind
from calibrators.segments import Segments, check_cells
from calibrd.io.arrays import Array, as_array


def checked_set(
    values: Any,
    labels: Any,
    kind: Kind,
    segments: Any = None,
    features: Any = None,
    head: Any = None,
) -> CalibrationSet:
    """Return a checked set built from arrays of any library."""
    array, truth = as_array(values, kind), as_array(labels, "labels")
    names = None if segments is None else as_segments(segments)
    vectors = None if features is None else as_array(features, "features")
    if kind == "logits":
        return CalibrationSet(array, truth, names, vectors, as_head(head))
    if kind == "probabilities":
        return CalibrationSet.from_probabilities(array, truth, names, vectors, as_head(head))
    raise ValueError(f"kind must be 'logits' or 'probabilities', got {kind!r}")


def as_head(head: Any) -> Any:
    """Return the weight and the bias of a head as arrays; ``calibrators`` checks their shapes.

    >>> as_head(([[1.0, 2.0]], None))
    (array([[1., 2.]]), None)
    """
    if not isinstance(head, tuple | list) or len(head) != 2:
        return head
    weight, bias = head
    return (
        as_array(weight, "the weight of the head"),
        None if bias is None else as_array(bias, "the bias of the head"),
    )


def as_segments(values: Any, name: str = "segments") -> Array:
    """Convert a list, an array, a tensor or a column to segments (n,), as strings or integers.

    Categories become their names. Anything but strings and integers raises a DataError that refers
    to the values as ``name``. The segment names themselves are checked by ``calibrators``.

    >>> as_segments(["web", "app"]).tolist(), as_segments((3, 12)).tolist()
    (['web', 'app'], [3, 12])
    >>> as_segments(["web", None])
    Traceback (most recent call last):
    calibrators.errors.DataError: segments must be all strings or all integers, with a name \
such as 'other' for rows that have no segment (1 invalid row, first row 1)
    """
    if isinstance(values, list | tuple):
        return _from_cells(values, name)
    for reader in ("to_pylist", "to_list"):  # methods of pyarrow, and of pandas and polars
        if hasattr(values, reader):
            return _from_cells(getattr(values, reader)(), name)
    if isinstance(values, np.ndarray):
        return values
    if hasattr(values, "__dlpack__"):
        return as_array(values, name)
    if not hasattr(values, "__array__") or isinstance(values, str | bytes):
        raise DataError(
            "bad_segments",
            f"{name} must be a list, an array or a column with the segment of each row, "
            f"got {type(values).__name__}",
        )
    array = np.asarray(values)  # pandas categories and other extension arrays, and frames
    return _from_cells(array.tolist(), name) if array.dtype == object and array.ndim == 1 else array


def names_of(segments: Segments) -> Array:
    """Return the segment name of each row, as strings (n,)."""
    return np.array(segments.names, np.str_)[segments.codes]


def _from_cells(cells: Sequence[Any], name: str) -> Array:
    if check_cells(cells, name) is str:
        return np.array(cells, dtype=object)
    array = np.array(cells)
    # numpy's only common type for negative integers and those beyond 63 bits is float64
    return array if array.dtype.kind in "iu" else np.array(cells, dtype=object)
