"""The protocol's datatypes, and conversion of binary tensors and JSON to arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.datasets.formats.npy import widened_bfloat16
from service.datasets.formats.segment_names import BLOCK_NAMES
from service.errors import Malformed

DATATYPES: dict[str, np.dtype[Any]] = {
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    "FP16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),  # numpy has no such type, so these are read as bits; see from_bytes
    **{f"INT{8 * size}": np.dtype(f"<i{size}") for size in (1, 2, 4, 8)},
    **{f"UINT{8 * size}": np.dtype(f"<u{size}") for size in (1, 2, 4, 8)},
}
WHOLE = tuple(name for name in DATATYPES if "INT" in name)
TEXT = "BYTES"
LENGTH_BYTES = 4  # before each string in a binary tensor


def from_bytes(data: memoryview, datatype: str) -> NDArray[Any]:
    """Read little-endian values as a flat array; BF16 becomes float32."""
    array = np.frombuffer(data, DATATYPES[datatype])
    if datatype == "BF16":
        return widened_bfloat16(array)
    # the JSON before the tensor may end anywhere, and numpy is slow on unaligned values
    return array if array.flags.aligned else array.copy()


def names_from_bytes(data: memoryview, count: int, path: str) -> Iterator[list[str]]:
    r"""Yield blocks of length-prefixed UTF-8 strings; equal strings share one object.

    >>> list(names_from_bytes(memoryview(b"\3\0\0\0web\0\0\0\0"), 2, "inputs[1]"))
    [['web', '']]
    """
    known: dict[bytes, str] = {}
    names: list[str] = []
    done = end = 0
    while done < count and end + LENGTH_BYTES <= len(data):
        start = end + LENGTH_BYTES
        end = start + int.from_bytes(data[end:start], "little")
        if end > len(data):
            break
        raw = bytes(data[start:end])
        name = known.get(raw)
        if name is None:
            name = known[raw] = _decoded(raw, path)
        names.append(name)
        done += 1
        if len(names) == BLOCK_NAMES:
            yield names
            names = []
    if done != count or end != len(data):
        raise Malformed(
            "bad_tensor_length",
            f"the bytes of {path} must be exactly {count} strings, each preceded by its "
            f"{LENGTH_BYTES}-byte length",
        )
    yield names


def _decoded(raw: bytes, path: str) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise Malformed("bad_values", f"{path} must contain UTF-8 strings") from error


def names_from_json(data: list[Any], path: str) -> Iterator[list[str]]:
    """Yield blocks of strings from JSON."""
    for start in range(0, len(data), BLOCK_NAMES):
        block = data[start : start + BLOCK_NAMES]
        if not {str}.issuperset(map(type, block)):
            raise Malformed(
                "bad_values", f"{path} has datatype {TEXT} and must contain only strings"
            )
        yield block


def from_json(data: list[Any], datatype: str, path: str) -> NDArray[Any]:
    """Convert numbers from JSON to an array."""
    if datatype == "BF16":
        raise Malformed(
            "bad_datatype", f"{path} cannot contain BF16: send it as a binary tensor, or as FP32"
        )
    dtype = DATATYPES[datatype]
    allowed = {int, float} if dtype.kind == "f" else {int}
    if not allowed.issuperset(map(type, data)):
        noun = "numbers" if dtype.kind == "f" else "integers"
        raise Malformed(
            "bad_values", f"{path} has datatype {datatype} and must contain only {noun}"
        )
    out_of_range = f"{path} contains numbers outside the range of {datatype}"
    try:
        with np.errstate(over="ignore"):
            array = np.array(data, dtype)
    except OverflowError as error:
        raise Malformed("out_of_range", out_of_range) from error
    if dtype.kind == "f" and not np.isfinite(array).all():
        raise Malformed("out_of_range", out_of_range)
    return array
