"""The npy format (versions 1 to 3): magic bytes, a Python-literal header, then the data.

C and Fortran order and both byte orders are supported. Headers are limited to 4 kB, and numpy
parses them only after a linear-time check of their length and brackets. Object arrays are rejected
before anything can be unpickled. The other formats describe and read arrays with the same classes.
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from tokenize import TokenError
from typing import Any, BinaryIO, Protocol

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from calibrators import DataError
from calibrators.segments import LONGEST_NAME, Segments
from service.datasets.formats.bodies import VALUES, Arrays, Codec, Format, check_dimensions
from service.errors import Invalid, Malformed

Array = NDArray[Any]
Bytes = bytes | memoryview

PREFIX = 12
LONGEST_HEADER = 4096

# numeric arrays need two pairs of brackets and few commas; structured types need more
MAX_BRACKETS, MAX_COMMAS = 64, 200
# raised by numpy for headers that it cannot read
UNREADABLE = (
    ValueError,
    SyntaxError,
    TypeError,
    LookupError,
    OverflowError,
    MemoryError,
    RecursionError,
)


def decode(body: Bytes, *, is_text: bool = False) -> Array:
    """Return the array in an npy file without copying it; ``is_text`` also allows strings."""
    start = header_length(bytes(body[:PREFIX]))
    layout = parse_header(bytes(body[:start]), is_text=is_text)
    check_length(start + layout.nbytes, len(body))
    # in one step: frombuffer and reshape take twice as long, which matters for small bodies
    return np.ndarray(layout.shape, layout.dtype, body, start, order="F" if layout.fortran else "C")


@lru_cache(maxsize=64)
def header_length(prefix: bytes) -> int:
    """Return the number of bytes before the data, given the first 12 bytes of the file."""
    if prefix[:6] != npy_format.MAGIC_PREFIX[: len(prefix)]:
        raise Malformed("not_npy", "not an npy file (bad magic bytes)")
    if len(prefix) < PREFIX:
        raise Malformed(
            "truncated_body", f"the body is too short for an npy header: got {len(prefix)} bytes"
        )
    version = prefix[6]
    if version == 1:
        length = 10 + int.from_bytes(prefix[8:10], "little")
    elif version in (2, 3):
        length = 12 + int.from_bytes(prefix[8:12], "little")
    else:
        raise Malformed("unknown_version", f"npy versions 1 to 3 are supported, got {version}")
    if not PREFIX <= length <= LONGEST_HEADER:
        raise Malformed(
            "bad_header", f"an npy header must have 12 to {LONGEST_HEADER} bytes, got {length}"
        )
    return length


@lru_cache(maxsize=256)
def parse_header(header: bytes, *, is_text: bool = False) -> Layout:
    """Parse a whole header, from the magic bytes to the newline."""
    if len(header) < header_length(header[:PREFIX]):
        raise Malformed("truncated_body", f"the npy header is truncated after {len(header)} bytes")
    bad = Malformed("bad_header", "the npy header must contain descr, fortran_order and shape")
    brackets = sum(map(header.count, (b"(", b"[", b"{")))
    if brackets > MAX_BRACKETS or header.count(b",") > MAX_COMMAS:
        raise bad
    versions = (npy_format.read_array_header_1_0, npy_format.read_array_header_2_0)
    read = versions[header[6] > 1]  # version 3 differs from 2 only in field names
    try:
        shape, fortran, dtype = read(io.BytesIO(header[8:]), max_header_size=LONGEST_HEADER)
    except (*UNREADABLE, TokenError, Warning) as error:
        raise bad from error
    if any(type(one) is not int or one < 0 for one in shape) or dtype.kind in "mMT":
        raise bad
    if dtype.names is not None:
        raise Invalid("bad_type", "structured arrays are not supported: send a plain numeric array")
    return Layout(dtype, shape, fortran=fortran, is_text=is_text)


def encode(array: Array) -> bytes:
    """Encode an array as an npy file (version 1)."""
    array = np.ascontiguousarray(array)
    return b"".join((encode_header(array.dtype, array.shape), array.data))


@lru_cache(maxsize=256)
def encode_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Return the header of an array in C order, padded so that the numbers are aligned."""
    file = io.BytesIO()
    described = {"descr": dtype.str, "fortran_order": False, "shape": shape}
    npy_format.write_array_header_1_0(file, described)
    return file.getvalue()


DTYPES = frozenset(np.dtype(code) for code in "efdbBhHiIlLqQ?")
CHARACTER_BYTES = 4
LONGEST = 1 << 48
MAX_DIMENSIONS = 32
BLOCK = 1 << 18
FORTRAN_ROWS, FORTRAN_BYTES = 1024, 24 << 20


@dataclass(frozen=True)
class Layout:
    """Type, shape and order of an array; with ``bfloat16``, the values are stored as uint16 bits.

    If ``is_text`` is true, the array may contain strings; only ``segments`` may do so.
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
        # numpy multiplies the nonzero dimensions of an empty array
        sizes = [math.prod(filter(None, self.shape))] if 0 in self.shape else self.shape
        if len(self.shape) > MAX_DIMENSIONS or any(size >= LONGEST for size in sizes):
            raise Malformed("bad_header", "the shape in the header is too large for any file")

    @cached_property
    def count(self) -> int:
        """The number of values, as a Python integer so that 2^32 x 2^32 does not overflow to 0."""
        return math.prod(self.shape)

    @cached_property
    def nbytes(self) -> int:
        """The size of the data in bytes."""
        return self.count * self.dtype.itemsize

    @property
    def rows_at_once(self) -> int:
        """The number of rows per block."""
        width = max(1, self.shape[1] if len(self.shape) > 1 else 1)
        step = max(1, BLOCK // width)
        if self.fortran:  # a block takes one read per column, and reads should not be tiny
            step = max(step, min(FORTRAN_ROWS, FORTRAN_BYTES // (width * self.dtype.itemsize)))
        return step

    def array(self, data: Bytes, offset: int = 0) -> Array:
        """Return the array at ``offset`` in ``data``, without copying it unless it is bfloat16."""
        flat = np.frombuffer(data, self.dtype, self.count, offset)
        if self.bfloat16:
            flat = widened_bfloat16(flat)
        return flat.reshape(self.shape, order="F" if self.fortran else "C")


def _check_names(dtype: np.dtype[Any]) -> None:
    """Raise DataError if an array of this type cannot hold segment names."""
    if dtype.kind == "U" and not 1 <= dtype.itemsize // CHARACTER_BYTES <= LONGEST_NAME:
        raise DataError(
            "bad_segment_name",
            f"segment names must have 1 to {LONGEST_NAME} characters, "
            f"got an array of {str(dtype)[:80]}",
        )
    if dtype.kind != "U" and dtype.newbyteorder("=") not in DTYPES:
        hint = (
            ": save segments.astype(str), with a name such as 'other' for rows without a segment"
            if dtype.hasobject
            else ""
        )
        raise DataError(
            "bad_segments", f"segments must be strings or integers, got {str(dtype)[:80]}{hint}"
        )


def widened_bfloat16(bits: Array) -> Array:
    """Convert bfloat16 bits, the upper halves of float32, to float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def read_at(file: BinaryIO, offset: int, size: int) -> bytes:
    """Read exactly ``size`` bytes from ``offset``."""
    file.seek(offset)
    data = file.read(size)
    if len(data) != size:
        raise Malformed(
            "truncated_body",
            f"the file ends after {offset + len(data)} bytes, in the middle of an array",
        )
    return data


def check_length(expected: int, got: int) -> None:
    """Raise Malformed unless the size matches the header."""
    if got < expected:
        raise Malformed(
            "truncated_body", f"the header describes {expected} bytes, but only {got} were sent"
        )
    if got > expected:
        raise Malformed("trailing_bytes", f"the data is followed by {got - expected} extra bytes")


class Column(Protocol):
    """An array in a file, which is read in blocks of rows."""

    @property
    def layout(self) -> Layout:
        """The layout of the array."""

    def rows(self, start: int, stop: int) -> Array:
        """Return the rows from ``start`` to ``stop``; blocks must be read in order."""

    def mapped(self, path: Path) -> Array:
        """Return the whole array from the file at ``path``, memory-mapped if possible."""

    def in_rows(self, spool: BinaryIO) -> Column:
        """Return a column whose rows can be read in order, whatever the memory layout."""


class FileColumn:
    """An uncompressed array in a file, starting at byte ``start``."""

    def __init__(self, file: BinaryIO, start: int, layout: Layout) -> None:
        self.layout = layout
        self._file = file
        self._start = start

    def rows(self, start: int, stop: int) -> Array:
        """Return the rows from ``start`` to ``stop``; blocks may be read in any order."""
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
        """Return the array, memory-mapped."""
        layout = self.layout
        if not layout.count:
            return np.empty(layout.shape, layout.dtype)
        raw: Array = np.memmap(
            path, layout.dtype, "r", self._start, layout.shape, "F" if layout.fortran else "C"
        )
        return widened_bfloat16(raw) if layout.bfloat16 else raw

    def in_rows(self, spool: BinaryIO) -> Column:
        """Return this column, whose rows can be read in any order."""
        return self


class MemoryColumn:
    """An array in memory."""

    def __init__(self, array: Array, *, is_text: bool = False) -> None:
        self.layout = Layout(array.dtype, array.shape, is_text=is_text)
        self._array = array

    def rows(self, start: int, stop: int) -> Array:
        """Return the rows from ``start`` to ``stop``."""
        return self._array[start:stop]

    def mapped(self, path: Path) -> Array:
        """Return the array."""
        return self._array

    def in_rows(self, spool: BinaryIO) -> Column:
        """Return this column, whose rows can be read in any order."""
        return self


class SegmentColumn:
    """Segments in memory, returned as names."""

    def __init__(self, segments: Segments) -> None:
        self.layout = Layout(np.dtype("U1"), segments.codes.shape, is_text=True)
        self._names: Array = np.array(segments.names, dtype=object)
        self._codes = segments.codes

    def rows(self, start: int, stop: int) -> Array:
        """Return the segment names of the rows from ``start`` to ``stop``."""
        return np.asarray(self._names[self._codes[start:stop]])

    def mapped(self, path: Path) -> Array:
        """Return the segment names of all rows."""
        return self.rows(0, len(self._codes))

    def in_rows(self, spool: BinaryIO) -> Column:
        """Return this column, whose rows can be read in any order."""
        return self


def rows_of(layout: Layout, data: bytes, count: int) -> Array:
    """Decode ``count`` rows of an array from bytes in C order."""
    raw = np.frombuffer(data, layout.dtype)
    if layout.bfloat16:
        raw = widened_bfloat16(raw)
    return raw.reshape(count, *layout.shape[1:])


def _decode(body: Bytes, limit: int) -> Arrays:
    array = decode(body)
    check_dimensions(VALUES, array.shape)
    return Arrays(array)


def _columns(file: BinaryIO, size: int, limit: int) -> dict[str, Column]:
    start = header_length(read_at(file, 0, min(size, PREFIX)))
    layout = parse_header(read_at(file, 0, min(size, start)))
    check_length(start + layout.nbytes, size)
    return {VALUES: FileColumn(file, start, layout)}


CODEC = Codec(
    format=Format.NPY,
    media_types=("application/x-npy", "application/numpy", "application/x-numpy"),
    holds="one array, for predict calls without labels",
    decode=_decode,
    columns=_columns,
    encode=lambda arrays: encode(next(iter(arrays.values()))),
    begins=lambda head: head.startswith(npy_format.MAGIC_PREFIX),
    parsed_size=lambda body: 0,
    is_named=False,
    is_file=False,
)
