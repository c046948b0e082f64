"""The protocol's datatypes, and arrays from the two ways in which tensors are written."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.core.formats.layout import widened_bfloat16
from service.errors import Malformed

DATATYPES: dict[str, np.dtype[Any]] = {
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    "FP16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),  # numpy has no such type: read as bits, see from_bytes
    **{f"INT{8 * size}": np.dtype(f"<i{size}") for size in (1, 2, 4, 8)},
    **{f"UINT{8 * size}": np.dtype(f"<u{size}") for size in (1, 2, 4, 8)},
}


def from_bytes(data: memoryview, datatype: str) -> NDArray[Any]:
    """Little-endian values, flat; BF16 comes as float32."""
    array = np.frombuffer(data, DATATYPES[datatype])
    if datatype == "BF16":
        return widened_bfloat16(array)
    # the JSON before the tensor may end anywhere, and numpy is slow on values across machine words
    return array if array.flags.aligned else array.copy()


def from_json(data: list[Any], datatype: str, shape: tuple[int, int]) -> NDArray[Any]:
    """Values written out flat, or as one list for each row; flat."""
    rows, columns = shape
    if data and type(data[0]) is list:
        if any(type(row) is not list or len(row) != columns for row in data):
            raise Malformed(
                "wrong_length", f"every row of inputs[0].data must be a list of {columns}"
            )
        data = list(chain.from_iterable(data))
    if len(data) != rows * columns:
        raise Malformed(
            "wrong_length",
            f"inputs[0].data must hold {rows * columns} numbers for the shape {list(shape)}, "
            f"got {len(data)}",
        )
    return _numbers(data, datatype)


def _numbers(data: list[Any], datatype: str) -> NDArray[Any]:
    if datatype == "BF16":
        raise Malformed("bad_datatype", "BF16 is read from binary tensors only: send FP32")
    dtype = DATATYPES[datatype]
    allowed = {int, float} if dtype.kind == "f" else {int}
    if not allowed.issuperset(map(type, data)):
        noun = "numbers" if dtype.kind == "f" else "whole numbers"
        raise Malformed("bad_values", f"inputs[0].data of {datatype} must hold {noun} only")
    out_of_range = f"inputs[0].data holds numbers beyond the range of {datatype}"
    try:
        with np.errstate(over="ignore"):
            array = np.array(data, dtype)
    except OverflowError as error:
        raise Malformed("out_of_range", out_of_range) from error
    if dtype.kind == "f" and not np.isfinite(array).all():
        raise Malformed("out_of_range", out_of_range)
    return array
