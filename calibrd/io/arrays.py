"""Convert arrays from any library to numpy, without importing that library."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators import DataError

Array = NDArray[Any]
UNREADABLE = (TypeError, ValueError, RuntimeError, BufferError)
NUMPY_FLOATS = ("torch.float16", "torch.float32", "torch.float64")
NOT_NUMBERS = "USTO"
NO_VALUES = ("NoneType", "NAType")  # the latter is from pandas


def as_array(values: Any, name: str = "values") -> Array:
    """Convert an array, a tensor on any device, a column, a frame, a table or a list to numpy.

    A column of lists becomes a matrix with a list in each row, and a frame becomes a matrix with
    the same columns. Data is copied only if necessary. Missing or masked values, nested lists in a
    column, and text raise a DataError that refers to the values as ``name``.

    >>> as_array([[2.0, 0.5], [1.0, 0.0]]).shape
    (2, 2)
    >>> as_array(["cat", "dog"], "labels")
    Traceback (most recent call last):
    calibrators.errors.DataError: labels must be class indices 0..k-1, got text such as 'cat': \
for class names pass np.searchsorted(model.classes_, labels)
    """
    try:
        array = _unmasked(values, name) if isinstance(values, np.ndarray) else _read(values, name)
        if array.dtype.kind == "O" and array.size:
            array = _from_cells(array, name)
    except DataError:
        raise
    except UNREADABLE as error:
        raise DataError("not_an_array", f"{name} cannot be read as numbers: {error}") from error
    if array.dtype.kind in NOT_NUMBERS and array.size:
        raise _not_numbers(array.reshape(-1)[0], name)
    return array


def _read(values: Any, name: str) -> Array:
    for library, kinds, reader in READERS:
        loaded = sys.modules.get(library)
        if loaded is not None and isinstance(
            values, tuple(getattr(loaded, kind) for kind in kinds if hasattr(loaded, kind))
        ):
            return reader(values, name)
    if isinstance(values, list | tuple) and values and hasattr(values[0], "__dlpack__"):
        return _stacked(values, name)
    if hasattr(values, "__dlpack__") and not hasattr(values, "__array__"):
        return np.from_dlpack(values)
    return np.asarray(values)


def _unmasked(array: Array, name: str) -> Array:
    if not isinstance(array, np.ma.MaskedArray):
        return array
    if np.ma.is_masked(array):
        raise DataError("masked", f"{name} must not be masked: drop the masked rows first")
    return np.asarray(array)


def _from_torch(tensor: Any, name: str) -> Array:
    plain = tensor.detach().cpu()
    if plain.is_sparse:
        plain = plain.to_dense()
    if plain.is_floating_point() and str(plain.dtype) not in NUMPY_FLOATS:
        plain = plain.float()
    return np.asarray(plain.resolve_neg().resolve_conj().numpy())


def _from_series(series: Any, name: str) -> Array:
    dtype = series.dtype
    if isinstance(dtype, np.dtype):
        return np.asarray(series.to_numpy())
    if hasattr(dtype, "categories"):
        raise _not_numbers(next(iter(dtype.categories), None), name, "categories")
    _refuse_missing(np.asarray(series.isna(), dtype=bool), name)
    # masked columns have a plain numpy type; other columns are read cell by cell
    return np.asarray(series.to_numpy(dtype=getattr(dtype, "numpy_dtype", None)))


def _from_pandas(frame: Any, name: str) -> Array:
    plain = all(isinstance(dtype, np.dtype) for dtype in frame.dtypes)
    if plain and len({*frame.dtypes}) == 1:
        return np.asarray(frame.to_numpy())
    return _stack_columns([frame.iloc[:, place] for place in range(frame.shape[1])], name)


def _from_polars(series: Any, name: str) -> Array:
    _refuse_missing(series.is_null, name, some=series.null_count())
    nested = type(series.dtype).__name__
    if nested not in ("List", "Array"):
        return np.asarray(series.to_numpy())
    lengths = series.list.len() if nested == "List" else series.arr.len()
    _refuse_ragged(lengths.min(), lengths.max(), name)
    if type(series.dtype.inner).__name__ in ("List", "Array"):
        raise _nested(name)
    cells = series.explode()
    _refuse_missing(cells.is_null, name, some=cells.null_count(), width=lengths.min())
    return as_array(cells, name).reshape(len(series), -1)


def _from_polars_frame(frame: Any, name: str) -> Array:
    return _stack_columns(frame.get_columns(), name)


def _from_chunks(array: Any, name: str) -> Array:
    parts, start = [], 0
    for chunk in array.chunks:
        if len(chunk):
            parts.append(_from_arrow(chunk, name, start))
            start += len(chunk)
    if len({part.shape[1:] for part in parts}) > 1:
        raise _ragged(name)
    return parts[0] if len(parts) == 1 else np.concatenate(parts or [np.empty(0)])


def _from_arrow(array: Any, name: str, start: int = 0, width: int = 1) -> Array:
    """Convert an array that begins at row ``start`` and holds ``width`` numbers per row."""
    _refuse_missing(
        lambda: array.is_null().to_numpy(zero_copy_only=False),
        name,
        some=array.null_count,
        start=start,
        width=width,
    )
    if hasattr(array, "to_numpy_ndarray"):
        return np.asarray(array.to_numpy_ndarray())
    if hasattr(array, "storage"):
        return _from_arrow(array.storage, name, start, width)
    if hasattr(array, "dictionary"):
        raise _not_numbers(next(iter(array.dictionary.to_pylist()), None), name, "categories")
    if not hasattr(array, "value_lengths") or not len(array):
        return np.asarray(array.to_numpy(zero_copy_only=False))
    lengths = np.asarray(array.value_lengths())
    _refuse_ragged(lengths.min(), lengths.max(), name)
    rows = _from_arrow(array.flatten(), name, start, width * int(lengths[0]))
    if rows.ndim != 1:
        raise _nested(name)
    return rows.reshape(len(array), -1)


def _from_arrow_table(table: Any, name: str) -> Array:
    return _stack_columns(table.columns, name)


Reader = Callable[[Any, str], Array]
READERS: tuple[tuple[str, tuple[str, ...], Reader], ...] = (
    ("torch", ("Tensor",), _from_torch),
    ("pandas", ("Series", "Index"), _from_series),
    ("pandas", ("DataFrame",), _from_pandas),
    ("polars", ("Series",), _from_polars),
    ("polars", ("DataFrame",), _from_polars_frame),
    ("pyarrow", ("Array",), _from_arrow),
    ("pyarrow", ("ChunkedArray",), _from_chunks),
    ("pyarrow", ("Table", "RecordBatch"), _from_arrow_table),
)


def _stack_columns(columns: Sequence[Any], name: str) -> Array:
    """Stack the columns of a table; a single column may hold a list per row."""
    arrays = [as_array(column, name) for column in columns]
    if len(arrays) == 1:
        return arrays[0]
    if any(array.ndim != 1 for array in arrays):
        raise DataError(
            "bad_shape", f"{name} must be one column of lists, or columns of numbers, not both"
        )
    return np.column_stack(arrays) if arrays else np.empty((0, 0))


def _from_cells(array: Array, name: str) -> Array:
    """Convert an array of Python objects: numbers, or lists and arrays, which become rows."""
    if array.ndim == 0:
        raise TypeError(f"got a single {type(array.item()).__name__}")
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    flat = array.reshape(-1)
    missing = np.fromiter((type(one).__name__ in NO_VALUES for one in flat), bool, flat.size)
    _refuse_missing(missing.reshape(len(array), -1).any(axis=1), name)
    if isinstance(flat[0], str | bytes):
        raise _not_numbers(flat[0], name)
    if np.ndim(flat[0]) == 0 and not hasattr(flat[0], "__dlpack__"):
        return np.array(array.tolist())
    if array.ndim != 1:
        raise DataError(
            "bad_shape", f"{name} must be one column of lists, got {array.shape[1]} columns"
        )
    return _stacked(flat, name)


def _stacked(rows: Sequence[Any] | Array, name: str) -> Array:
    arrays = [as_array(row, name) for row in rows]
    if len({array.shape for array in arrays}) > 1:
        raise _ragged(name)
    return np.stack(arrays)


def _refuse_missing(
    missing: Any, name: str, *, some: int | None = None, start: int = 0, width: int = 1
) -> None:
    """Raise DataError if values are missing.

    ``missing`` is a mask with ``width`` values per row, or a function that returns one; ``start``
    is the number of the first row in the mask. ``some`` is the number of missing values, if known.
    """
    if some == 0:
        return
    cells = np.asarray(missing() if callable(missing) else missing, dtype=bool)
    rows = cells.reshape(-1, width).any(axis=1)
    if rows.any():
        raise DataError(
            "missing_values",
            f"{name} must not have missing values",
            rows=int(rows.sum()),
            first=start + int(rows.argmax()),
        )


def _refuse_ragged(shortest: Any, longest: Any, name: str) -> None:
    if shortest != longest or shortest == 0:
        raise _ragged(name)


def _ragged(name: str) -> DataError:
    return DataError("not_an_array", f"{name} must have the same number of values in every row")


def _nested(name: str) -> DataError:
    return DataError("bad_shape", f"{name} must be flat lists of numbers, got nested lists")


def _not_numbers(example: Any, name: str, what: str = "text") -> DataError:
    got = f"got {what} such as {getattr(example, 'item', lambda: example)()!r}"
    if name == "labels":
        remedy = ": for class names pass np.searchsorted(model.classes_, labels)"
        return DataError(
            "labels_not_integers",
            f"labels must be class indices 0..k-1, {got}{remedy if what == 'text' else ''}",
        )
    return DataError("bad_type", f"{name} must be numbers, {got}")
