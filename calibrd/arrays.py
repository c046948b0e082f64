"""Whatever holds numbers, as a numpy array; no library is loaded that the caller has not."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators import DataError

Array = NDArray[Any]


def as_array(values: Any, name: str = "values") -> Array:
    """The numbers of an array, a tensor on any device, a column, a frame, a table or a list.

    Columns whose entries are lists become rows. ``name`` is what an error calls it.

    >>> as_array([[2.0, 0.5], [1.0, 0.0]]).shape
    (2, 2)
    """
    if type(values) is np.ndarray:
        return values
    array = _from_library(values)
    if array is None:
        array = np.asarray(values)
    if array.dtype == object and array.size:
        array = _rows_of_lists(array, name)
    return array


def _from_library(values: Any) -> Array | None:
    library = type(values).__module__.partition(".")[0]
    if library == "torch":
        return _from_torch(values)
    if library == "pyarrow" and hasattr(values, "columns"):
        return np.column_stack([as_array(column) for column in values.columns])
    if hasattr(values, "to_numpy"):
        return np.asarray(values.to_numpy())
    return None


def _from_torch(tensor: Any) -> Array:
    plain = tensor.detach().cpu()
    if str(plain.dtype) == "torch.bfloat16":
        plain = plain.float()
    return np.asarray(plain.numpy())


def _rows_of_lists(array: Array, name: str) -> Array:
    try:
        return np.stack([np.asarray(row) for row in array.reshape(-1)])
    except ValueError as error:
        raise DataError(
            "not_an_array", f"{name} must have rows of equally many numbers: {error}"
        ) from error
