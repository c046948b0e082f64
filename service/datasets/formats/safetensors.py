"""The safetensors format: 8 bytes of length, a JSON header, the numbers of all tensors.

The package of that name is not used: it copies all numbers, gives no offsets to read rows by, takes
headers of 100 MB and keys that are there twice, and has no BF16 for numpy.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, BinaryIO, NamedTuple, NoReturn, TypeGuard

import numpy as np

from service.datasets.formats.bodies import Codec, Format, named_arrays
from service.datasets.formats.npy import (
    Array,
    Bytes,
    Column,
    Layout,
    Plain,
    check_length,
    read_at,
)
from service.errors import Invalid, Malformed

PREFIX = 8
LONGEST_HEADER = 1 << 16
MOST_TENSORS = 16
HEADER_COST = 4  # the time of a byte of the header, in bytes of JSON
ALIGNMENT = 8
DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "|i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "|u1",
    "BOOL": "|b1",
}
NAMES = {np.dtype(code): name for name, code in DTYPES.items() if name != "BF16"}


class StoredTensor(NamedTuple):
    """Where a tensor lies: its numbers start at ``start`` of the file."""

    layout: Layout
    start: int


class TensorHeader(NamedTuple):
    """What a safetensors header says: its tensors, and the length of the whole file."""

    tensors: dict[str, StoredTensor]
    file_length: int


def decode(body: Bytes) -> dict[str, Array]:
    """The arrays of a whole safetensors file, without copying their numbers."""
    start = header_length(bytes(body[:PREFIX]))
    header = parse_header(bytes(body[:start]))
    check_length(header.file_length, len(body))
    return {name: one.layout.array(body, one.start) for name, one in header.tensors.items()}


def header_length(prefix: bytes) -> int:
    """How many bytes come before the numbers, by the first 8 of the file."""
    if len(prefix) < PREFIX:
        raise Malformed(
            "truncated_body", f"a safetensors file has a header, got {len(prefix)} bytes"
        )
    length = int.from_bytes(prefix, "little")
    if not 2 <= length <= LONGEST_HEADER:
        raise Malformed(
            "bad_header", f"a safetensors header has 2 to {LONGEST_HEADER} bytes here, got {length}"
        )
    return PREFIX + length


@lru_cache(maxsize=64)
def parse_header(header: bytes) -> TensorHeader:
    """What the length and the JSON say; tensors must lie end to end, as the format asks."""
    start = header_length(header[:PREFIX])
    if len(header) < start:
        raise Malformed("truncated_body", f"the safetensors header ends after {len(header)} bytes")
    described = _json(header[PREFIX:])
    described.pop("__metadata__", None)
    if len(described) > MOST_TENSORS:
        raise Malformed(
            "too_many_members", f"at most {MOST_TENSORS} tensors are read, got {len(described)}"
        )
    tensors, end = {}, start
    for name, one in sorted(described.items(), key=lambda item: _offsets(item[1])):
        layout = _layout(one)
        first, last = _offsets(one)
        if start + first != end or last - first != layout.nbytes:
            raise Malformed(
                "bad_offsets",
                f"the tensor {name[:40]!r} does not start where the one before it ends, "
                "or its shape and type need another number of bytes",
            )
        tensors[name] = StoredTensor(layout, end)
        end += layout.nbytes
    return TensorHeader(tensors, end)


def encode(arrays: dict[str, Array]) -> bytes:
    """A safetensors file of arrays."""
    header, parts, end = {}, [], 0
    # the widest numbers first: all tensors are then aligned
    for name, one in sorted(arrays.items(), key=lambda item: -item[1].dtype.itemsize):
        data = np.ascontiguousarray(one, one.dtype.newbyteorder("<")).tobytes()
        dtype = NAMES[one.dtype.newbyteorder("<")]
        offsets = [end, end + len(data)]
        header[name] = {"dtype": dtype, "shape": list(one.shape), "data_offsets": offsets}
        parts.append(data)
        end += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return b"".join([len(text).to_bytes(PREFIX, "little"), text, *parts])


def _json(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Malformed(
            "bad_header", "the safetensors header is not JSON of unique keys"
        ) from error
    if not isinstance(header, dict):
        raise Malformed("bad_header", "the safetensors header is not a JSON object")
    return header


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("duplicate keys")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _offsets(described: Any) -> list[int]:
    offsets = described.get("data_offsets") if isinstance(described, dict) else None
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise Malformed("bad_header", "every tensor needs two data_offsets")
    return offsets


def _layout(described: dict[str, Any]) -> Layout:
    dtype, shape = described.get("dtype"), described.get("shape")
    if set(described) != {"dtype", "shape", "data_offsets"} or not _are_sizes(shape):
        raise Malformed("bad_header", "every tensor needs dtype, shape and data_offsets alone")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise Invalid(
            "bad_type", f"tensors must be of {', '.join(DTYPES)}, got {str(dtype)[:40]!r}"
        )
    return Layout(np.dtype(DTYPES[dtype]), tuple(shape), bfloat16=dtype == "BF16")


def _are_sizes(values: Any) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(type(one) is int and one >= 0 for one in values)


def _columns(file: BinaryIO, size: int, limit: int) -> dict[str, Column]:
    start = header_length(read_at(file, 0, min(size, PREFIX)))
    header = parse_header(read_at(file, 0, min(size, start)))
    check_length(header.file_length, size)
    return {name: Plain(file, one.start, one.layout) for name, one in header.tensors.items()}


CODEC = Codec(
    format=Format.SAFETENSORS,
    media_types=("application/x-safetensors", "application/vnd.safetensors"),
    holds="the same as npz; F16, BF16, F32, F64 and integers, so `segments` as integers only",
    decode=lambda body, limit: named_arrays(decode(body)),
    columns=_columns,
    encode=encode,
    begins=lambda head: head[8:9] == b"{" and head[5:8] == b"\0\0\0",
    parsed_size=lambda body: HEADER_COST * int.from_bytes(body[:PREFIX], "little"),
)
