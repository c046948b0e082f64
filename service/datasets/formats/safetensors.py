"""The safetensors format: an 8-byte header length, a JSON header, then the tensor data.

The package ``safetensors`` is not used: it copies all data, exposes no offsets for reading rows,
accepts headers of 100 MB and duplicate keys, and does not support BF16 with numpy.
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
    FileColumn,
    Layout,
    check_length,
    read_at,
)
from service.errors import Invalid, Malformed

PREFIX = 8
LONGEST_HEADER = 1 << 16
MAX_TENSORS = 16
HEADER_COST = 4  # parsing a header byte takes as long as parsing this many bytes of JSON
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
    """The layout of a tensor whose data begins at byte ``start`` of the file."""

    layout: Layout
    start: int


class TensorHeader(NamedTuple):
    """A parsed header: the tensors, and the length of the whole file."""

    tensors: dict[str, StoredTensor]
    file_length: int


def decode(body: Bytes) -> dict[str, Array]:
    """Return the arrays in a safetensors file, without copying them unless they are BF16."""
    start = header_length(bytes(body[:PREFIX]))
    header = parse_header(bytes(body[:start]))
    check_length(header.file_length, len(body))
    return {name: one.layout.array(body, one.start) for name, one in header.tensors.items()}


def header_length(prefix: bytes) -> int:
    """Return the number of bytes before the data, given the first 8 bytes of the file."""
    if len(prefix) < PREFIX:
        raise Malformed(
            "truncated_body",
            f"the body is too short for a safetensors header: got {len(prefix)} bytes",
        )
    length = int.from_bytes(prefix, "little")
    if not 2 <= length <= LONGEST_HEADER:
        raise Malformed(
            "bad_header",
            f"a safetensors header must have 2 to {LONGEST_HEADER} bytes, got {length}",
        )
    return PREFIX + length


@lru_cache(maxsize=64)
def parse_header(header: bytes) -> TensorHeader:
    """Parse a header; tensors must be contiguous, as the format requires."""
    start = header_length(header[:PREFIX])
    if len(header) < start:
        raise Malformed(
            "truncated_body", f"the safetensors header is truncated after {len(header)} bytes"
        )
    described = _json(header[PREFIX:])
    described.pop("__metadata__", None)
    if len(described) > MAX_TENSORS:
        raise Malformed(
            "too_many_members", f"at most {MAX_TENSORS} tensors are allowed, got {len(described)}"
        )
    tensors, end = {}, start
    for name, one in sorted(described.items(), key=lambda item: _offsets(item[1])):
        layout = _layout(one)
        first, last = _offsets(one)
        if start + first != end or last - first != layout.nbytes:
            raise Malformed(
                "bad_offsets",
                f"tensor {name[:40]!r} does not start where the previous one ends, "
                "or its data_offsets do not match its shape and dtype",
            )
        tensors[name] = StoredTensor(layout, end)
        end += layout.nbytes
    return TensorHeader(tensors, end)


def encode(arrays: dict[str, Array]) -> bytes:
    """Encode arrays as a safetensors file."""
    header, parts, end = {}, [], 0
    # the widest types first, so that all tensors are aligned
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
            "bad_header", "the safetensors header is not valid JSON, or has duplicate keys"
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
        raise Malformed("bad_header", "each tensor must have two data_offsets")
    return offsets


def _layout(described: dict[str, Any]) -> Layout:
    dtype, shape = described.get("dtype"), described.get("shape")
    if set(described) != {"dtype", "shape", "data_offsets"} or not _are_sizes(shape):
        raise Malformed("bad_header", "each tensor must have exactly dtype, shape and data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise Invalid(
            "bad_type", f"the dtype must be one of {', '.join(DTYPES)}, got {str(dtype)[:40]!r}"
        )
    return Layout(np.dtype(DTYPES[dtype]), tuple(shape), bfloat16=dtype == "BF16")


def _are_sizes(values: Any) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(type(one) is int and one >= 0 for one in values)


def _columns(file: BinaryIO, size: int, limit: int) -> dict[str, Column]:
    start = header_length(read_at(file, 0, min(size, PREFIX)))
    header = parse_header(read_at(file, 0, min(size, start)))
    check_length(header.file_length, size)
    return {name: FileColumn(file, one.start, one.layout) for name, one in header.tensors.items()}


CODEC = Codec(
    format=Format.SAFETENSORS,
    media_types=("application/x-safetensors", "application/vnd.safetensors"),
    holds="the same as npz, as F16, BF16, F32, F64 or integers; `segments` must be integers",
    decode=lambda body, limit: named_arrays(decode(body)),
    columns=_columns,
    encode=encode,
    begins=lambda head: head[8:9] == b"{" and head[5:8] == b"\0\0\0",
    parsed_size=lambda body: HEADER_COST * int.from_bytes(body[:PREFIX], "little"),
)
