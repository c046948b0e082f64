"""The npy format, versions 1 to 3: a magic, a header that is a Python literal, the numbers.

C and Fortran order and both byte orders are read. numpy parses the header, after its length and
its brackets were counted: it takes time linear in at most 4 kB. Object arrays are refused before
anything could be unpickled. Arrays of all formats are described and read as those of npy files.
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

# a header of plain numbers has two pairs of brackets and few commas, a structured type some more
MOST_BRACKETS, MOST_COMMAS = 64, 200
# what numpy raises for headers that it cannot read, and its warning of those by Python 2
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
    """The array of a whole npy file, without copying its numbers; ``is_text`` takes names too."""
    start = header_length(bytes(body[:PREFIX]))
    layout = parse_header(bytes(body[:start]), is_text=is_text)
    check_length(start + layout.nbytes, len(body))
    # in one step: frombuffer and reshape take twice as long, which counts for small bodies
    return np.ndarray(layout.shape, layout.dtype, body, start, order="F" if layout.fortran else "C")


@lru_cache(maxsize=64)
def header_length(prefix: bytes) -> int:
    """How many bytes come before the numbers, by the first 12 of the file."""
    if prefix[:6] != npy_format.MAGIC_PREFIX[: len(prefix)]:
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
    bad = Malformed("bad_header", "the npy header does not give descr, fortran_order and shape")
    brackets = sum(map(header.count, (b"(", b"[", b"{")))
    if brackets > MOST_BRACKETS or header.count(b",") > MOST_COMMAS:
        raise bad
    versions = (npy_format.read_array_header_1_0, npy_format.read_array_header_2_0)
    read = versions[header[6] > 1]  # version 3 differs from 2 in names of fields alone
    try:
        shape, fortran, dtype = read(io.BytesIO(header[8:]), max_header_size=LONGEST_HEADER)
    except (*UNREADABLE, TokenError, Warning) as error:
        raise bad from error
    if any(type(one) is not int or one < 0 for one in shape) or dtype.kind in "mMT":
        raise bad
    if dtype.names is not None:
        raise Invalid("bad_type", "structured arrays are not read: send one array of numbers")
    return Layout(dtype, shape, fortran=fortran, is_text=is_text)


def encode(array: Array) -> bytes:
    """An npy file (version 1) of an array."""
    array = np.ascontiguousarray(array)
    return b"".join((written_header(array.dtype, array.shape), array.data))


@lru_cache(maxsize=256)
def written_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """The header of an array in C order, padded so that the numbers are aligned."""
    file = io.BytesIO()
    described = {"descr": dtype.str, "fortran_order": False, "shape": shape}
    npy_format.write_array_header_1_0(file, described)
    return file.getvalue()


DTYPES = frozenset(np.dtype(code) for code in "efdbBhHiIlLqQ?")
CHARACTER_BYTES = 4
LONGEST = 1 << 48
MOST_DIMENSIONS = 32


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
        # numpy takes the product of the others where an array is empty
        sizes = [math.prod(filter(None, self.shape))] if 0 in self.shape else self.shape
        if len(self.shape) > MOST_DIMENSIONS or any(size >= LONGEST for size in sizes):
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


def read_at(file: BinaryIO, offset: int, size: int) -> bytes:
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


class Column(Protocol):
    """One array of a file."""

    @property
    def layout(self) -> Layout: ...

    def rows(self, start: int, stop: int) -> Array:
        """Some rows; blocks must be asked for in order."""

    def mapped(self, path: Path) -> Array:
        """The whole array of the file at ``path``, mapped into memory where that is possible."""

    def in_rows(self, spool: BinaryIO) -> Column:
        """A column whose rows can be read in order, whatever the order it is stored in."""


class Plain:
    """Numbers that lie in a file as they are, from ``start`` on."""

    def __init__(self, file: BinaryIO, start: int, layout: Layout) -> None:
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

    def in_rows(self, spool: BinaryIO) -> Column:
        return self


class Held:
    """Numbers that are in memory already."""

    def __init__(self, array: Array, *, is_text: bool = False) -> None:
        self.layout = Layout(array.dtype, array.shape, is_text=is_text)
        self._array = array

    def rows(self, start: int, stop: int) -> Array:
        return self._array[start:stop]

    def mapped(self, path: Path) -> Array:
        return self._array

    def in_rows(self, spool: BinaryIO) -> Column:
        return self


class Named:
    """Segments that are in memory already, read as names."""

    def __init__(self, segments: Segments) -> None:
        self.layout = Layout(np.dtype("U1"), segments.codes.shape, is_text=True)
        self._names: Array = np.array(segments.names, dtype=object)
        self._codes = segments.codes

    def rows(self, start: int, stop: int) -> Array:
        return np.asarray(self._names[self._codes[start:stop]])

    def mapped(self, path: Path) -> Array:
        return self.rows(0, len(self._codes))

    def in_rows(self, spool: BinaryIO) -> Column:
        return self


def rows_of(layout: Layout, data: bytes, count: int) -> Array:
    """Some rows of an array from the bytes that they take, in C order."""
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
    return {VALUES: Plain(file, start, layout)}


CODEC = Codec(
    format=Format.NPY,
    media_types=("application/x-npy", "application/numpy", "application/x-numpy"),
    holds="one array, for predict without labels",
    decode=_decode,
    columns=_columns,
    encode=lambda arrays: encode(next(iter(arrays.values()))),
    begins=lambda head: head.startswith(npy_format.MAGIC_PREFIX),
    parsed_size=lambda body: 0,
    is_named=False,
    is_file=False,
)
