"""The npy format, versions 1 to 3: a magic, a header that is a Python literal, the numbers.

C and Fortran order and both byte orders are read. The header is parsed as a literal, as numpy does,
after its length and its brackets were counted: parsing takes time linear in at most 4 kB. Object
arrays are refused before anything could be unpickled.
"""

from __future__ import annotations

import ast
import math
import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Protocol, TypeGuard

import numpy as np
from numpy.typing import NDArray

from calibrators import DataError
from calibrators.segments import LONGEST_NAME
from service.errors import Invalid, Malformed

MAGIC = b"\x93NUMPY"
PREFIX = 12
LONGEST_HEADER = 4096
ALIGNMENT = 64

# a header of plain numbers has two pairs of brackets and few commas, a structured type some more
MOST_BRACKETS, MOST_COMMAS = 64, 200

_DESCRIPTION = re.compile(r"[<>|=]?[biufcSUVOMm?]\d*")


def decode(body: Bytes, *, is_text: bool = False) -> Array:
    """The array of a whole npy file, without copying its numbers; ``is_text`` takes names too."""
    start = header_length(bytes(body[:PREFIX]))
    layout = parse_header(bytes(body[:start]), is_text=is_text)
    check_length(start + layout.nbytes, len(body))
    # in one step: frombuffer and reshape take twice as long, which counts for small bodies
    return np.ndarray(layout.shape, layout.dtype, body, start, order="F" if layout.fortran else "C")


@lru_cache(maxsize=64)
def header_length(prefix: bytes) -> int:
    """How many bytes come before the numbers, by the first 12 of the file."""
    if prefix[:6] != MAGIC[: len(prefix)]:
        raise Malformed("not_npy", "these bytes do not start as an npy file does")
    if len(prefix) < PREFIX:
        raise Malformed(
            "truncated_body", f"an npy file has a header, got {len(prefix)} bytes in all"
        )
    version = prefix[6]
    if version == 1:
        length = 10 + int.from_bytes(prefix[8:10], "little")
    elif version in (2, 3):
        length = 12 + int.from_bytes(prefix[8:12], "little")
    else:
        raise Malformed("unknown_version", f"npy versions 1 to 3 are read, got {version}")
    if not PREFIX <= length <= LONGEST_HEADER:
        raise Malformed(
            "bad_header", f"an npy header has 12 to {LONGEST_HEADER} bytes here, got {length}"
        )
    return length


@lru_cache(maxsize=256)
def parse_header(header: bytes, *, is_text: bool = False) -> Layout:
    """What a whole header, from the magic to the newline, says."""
    if len(header) < header_length(header[:PREFIX]):
        raise Malformed("truncated_body", f"the npy header ends after {len(header)} bytes")
    fields = _literal(header[10 if header[6] == 1 else 12 :].decode("latin-1").strip())
    if set(fields) != {"descr", "fortran_order", "shape"}:
        raise _bad_header()
    description, fortran, shape = fields["descr"], fields["fortran_order"], fields["shape"]
    if isinstance(description, list):
        raise Invalid("bad_type", "structured arrays are not read: send one array of numbers")
    if not isinstance(description, str) or not isinstance(fortran, bool) or not _is_shape(shape):
        raise _bad_header()
    return Layout(_dtype(description), shape, fortran=fortran, is_text=is_text)


def encode(array: Array) -> bytes:
    """An npy file (version 1) of an array."""
    array = np.ascontiguousarray(array)
    return b"".join((written_header(array.dtype, array.shape), array.data))


@lru_cache(maxsize=256)
def written_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """The header of an array in C order, padded so that the numbers are aligned."""
    text = f"{{'descr': {dtype.str!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    padding = -(len(text) + 11) % ALIGNMENT
    length = len(text) + padding + 1
    return (
        MAGIC + b"\x01\x00" + length.to_bytes(2, "little") + (text + " " * padding).encode() + b"\n"
    )


def _bad_header() -> Malformed:
    return Malformed("bad_header", "the npy header does not give descr, fortran_order and shape")


def _dtype(description: str) -> np.dtype[np.generic]:
    if not _DESCRIPTION.fullmatch(description):
        raise Malformed("bad_header", f"the npy header has an unknown type {description[:40]!r}")
    try:
        return np.dtype(description)
    except (TypeError, ValueError, OverflowError) as error:
        raise Malformed(
            "bad_header", f"the npy header has an unknown type {description[:40]!r}"
        ) from error


def _literal(text: str) -> dict[Any, Any]:
    """Return the dictionary that a header holds; its length was limited before."""
    if sum(map(text.count, "([{")) > MOST_BRACKETS or text.count(",") > MOST_COMMAS:
        raise _bad_header()
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise _bad_header() from error
    if not isinstance(found, dict):
        raise _bad_header()
    return found


def _is_shape(value: Any) -> TypeGuard[tuple[int, ...]]:
    return isinstance(value, tuple) and all(type(one) is int and one >= 0 for one in value)


Array = NDArray[Any]
Bytes = bytes | memoryview

DTYPES = frozenset(np.dtype(code) for code in "efdbBhHiIlLqQ?")
CHARACTER_BYTES = 4
LONGEST = 1 << 48
MOST_DIMENSIONS = 32


class Readable(Protocol):
    """A binary file: on disk, or bytes in memory."""

    def seek(self, offset: int, /) -> int: ...
    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True)
class Layout:
    """Type, shape and order of an array; ``bfloat16`` says what the bits of a uint16 mean.

    ``is_text`` says that the array may hold names: what ``segments`` do, and nothing else.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool = False
    bfloat16: bool = False
    is_text: bool = False

    def __post_init__(self) -> None:
        if self.is_text:
            _check_names(self.dtype)
        elif self.dtype.newbyteorder("=") not in DTYPES:
            raise Invalid(
                "bad_type",
                "arrays must be float16, bfloat16, float32, float64, integers or (labels only) "
                f"booleans, got {str(self.dtype)[:80]}",
            )
        if len(self.shape) > MOST_DIMENSIONS or any(size >= LONGEST for size in self.shape):
            raise Malformed("bad_header", "the header claims a shape that no file can hold")

    @cached_property
    def count(self) -> int:
        """How many numbers, as a Python integer: 2^32 x 2^32 does not overflow to 0."""
        return math.prod(self.shape)

    @cached_property
    def nbytes(self) -> int:
        """How many bytes the numbers take."""
        return self.count * self.dtype.itemsize

    def array(self, data: Bytes, offset: int = 0) -> Array:
        """The array whose numbers start at ``offset`` of ``data``: shared, not copied."""
        flat = np.frombuffer(data, self.dtype, self.count, offset)
        if self.bfloat16:
            flat = widened_bfloat16(flat)
        return flat.reshape(self.shape, order="F" if self.fortran else "C")


def _check_names(dtype: np.dtype[Any]) -> None:
    """Refuse, by the header alone, what cannot be names."""
    if dtype.kind == "U" and not 1 <= dtype.itemsize // CHARACTER_BYTES <= LONGEST_NAME:
        raise DataError(
            "bad_segment_name",
            f"the names of segments must have 1 to {LONGEST_NAME} characters, "
            f"got an array of {str(dtype)[:80]}",
        )
    if dtype.kind != "U" and dtype.newbyteorder("=") not in DTYPES:
        hint = (
            ": save segments.astype(str), with a name such as 'other' where a row has no segment"
            if dtype.hasobject
            else ""
        )
        raise DataError(
            "bad_segments", f"segments must be text or integers, got {str(dtype)[:80]}{hint}"
        )


def widened_bfloat16(bits: Array) -> Array:
    """The float32 numbers of bfloat16 bits: they are the upper halves."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def check_dimensions(name: str, shape: tuple[int, ...]) -> None:
    """Refuse what has neither one nor two dimensions, as calibrators does."""
    if len(shape) in (1, 2):
        return
    if name == "labels":
        rule = f"(n,), got {shape}; for one-hot rows pass argmax(axis=1)"
        raise DataError("bad_label_shape", f"labels must have shape {rule}")
    raise DataError("bad_shape", f"{name} must have shape (n, k), (n, 1) or (n,), got {shape}")


def read_at(file: Readable, offset: int, size: int) -> bytes:
    """Exactly ``size`` bytes from ``offset``."""
    file.seek(offset)
    data = file.read(size)
    if len(data) != size:
        raise Malformed(
            "truncated_body",
            f"the file ends after {offset + len(data)} bytes, in the midst of an array",
        )
    return data


def check_length(expected: int, got: int) -> None:
    """Refuse bytes that are not as many as the header says."""
    if got < expected:
        raise Malformed(
            "truncated_body", f"the header describes {expected} bytes but there are {got}"
        )
    if got > expected:
        raise Malformed("trailing_bytes", f"{got - expected} bytes follow the end of the data")


class Plain:
    """Numbers that lie in a file as they are, from ``start`` on."""

    def __init__(self, file: Readable, start: int, layout: Layout) -> None:
        self.layout = layout
        self._file = file
        self._start = start

    def rows(self, start: int, stop: int) -> Array:
        layout, size = self.layout, self.layout.dtype.itemsize
        if layout.fortran and len(layout.shape) == 2:
            total, width = layout.shape
            raw = np.empty((stop - start, width), layout.dtype)
            for column in range(width):
                place = self._start + (column * total + start) * size
                raw[:, column] = np.frombuffer(
                    read_at(self._file, place, (stop - start) * size), layout.dtype
                )
            return raw
        wide = layout.count // layout.shape[0] * size
        data = read_at(self._file, self._start + start * wide, (stop - start) * wide)
        return rows_of(layout, data, stop - start)

    def mapped(self, path: Path) -> Array:
        layout = self.layout
        if not layout.count:
            return np.empty(layout.shape, layout.dtype)
        raw: Array = np.memmap(
            path, layout.dtype, "r", self._start, layout.shape, "F" if layout.fortran else "C"
        )
        return widened_bfloat16(raw) if layout.bfloat16 else raw


class Held:
    """Numbers that are in memory already."""

    def __init__(self, array: Array, *, is_text: bool = False) -> None:
        self.layout = Layout(array.dtype, array.shape, is_text=is_text)
        self._array = array

    def rows(self, start: int, stop: int) -> Array:
        return self._array[start:stop]

    def mapped(self, path: Path) -> Array:
        return self._array


def rows_of(layout: Layout, data: bytes, count: int) -> Array:
    """Some rows of an array from the bytes that they take, in C order."""
    raw = np.frombuffer(data, layout.dtype)
    if layout.bfloat16:
        raw = widened_bfloat16(raw)
    return raw.reshape(count, *layout.shape[1:])
