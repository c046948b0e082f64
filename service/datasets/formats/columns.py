"""Arrays of a file on disk, read by rows: a block at a time, or mapped into memory."""

from __future__ import annotations

import io
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np

from calibrators.segments import Segments
from service.datasets.formats import npy, npz, safetensors
from service.datasets.formats.bodies import LABELS, VALUES, Arrays, Format, npz_members, read_arrays
from service.datasets.formats.npy import (
    Array,
    Layout,
    Readable,
    check_length,
    read_at,
    widened_bfloat16,
)
from service.datasets.formats.segment_names import SEGMENTS

PIECE = 1 << 20


class Column(Protocol):
    """One array of a file."""

    @property
    def layout(self) -> Layout: ...

    def rows(self, start: int, stop: int) -> Array:
        """Some rows; blocks must be asked for in order."""

    def mapped(self, path: Path) -> Array:
        """The whole array of the file at ``path``, mapped into memory where that is possible."""


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
        return _rows_of(layout, data, stop - start)

    def mapped(self, path: Path) -> Array:
        layout = self.layout
        if not layout.count:
            return np.empty(layout.shape, layout.dtype)
        raw: Array = np.memmap(
            path, layout.dtype, "r", self._start, layout.shape, "F" if layout.fortran else "C"
        )
        return widened_bfloat16(raw) if layout.bfloat16 else raw


class Zipped:
    """Numbers in a member of a zip file; unpacked as they are read, and never kept."""

    def __init__(self, file: Readable, member: npz.Member, *, is_text: bool = False) -> None:
        self._file = file
        self._member = member
        self._stream = npz.Unpacked(file, member)
        prefix = self._stream.read(min(npy.PREFIX, member.unpacked))
        self._header = npy.header_length(prefix)
        missing = min(self._header, member.unpacked) - len(prefix)
        self.layout = npy.parse_header(prefix + self._stream.read(missing), is_text=is_text)
        check_length(self._header + self.layout.nbytes, member.unpacked)

    def rows(self, start: int, stop: int) -> Array:
        wide = self.layout.nbytes // self.layout.shape[0]
        return _rows_of(self.layout, self._stream.read((stop - start) * wide), stop - start)

    def mapped(self, path: Path) -> Array:
        if not self._member.deflated:
            return self.plain().mapped(path)
        array = np.empty(self.layout.nbytes, np.uint8)
        for start in range(0, len(array), PIECE):
            stop = min(start + PIECE, len(array))
            array[start:stop] = np.frombuffer(self._stream.read(stop - start), np.uint8)
        return self.layout.array(array.data)

    def plain(self) -> Plain:
        """A stored member as plain numbers in the file."""
        return Plain(self._file, self._member.start + self._header, self.layout)

    def by_column(self, spool: BinaryIO) -> Plain:
        """The same column with its rows at hand; what is packed is unpacked into ``spool``."""
        start, left = spool.seek(0, io.SEEK_END), self.layout.nbytes
        while left:
            piece = self._stream.read(min(PIECE, left))
            left -= len(piece)
            if self._member.deflated:
                spool.write(piece)
        return Plain(spool, start, self.layout) if self._member.deflated else self.plain()


class Held:
    """Numbers that are in memory already."""

    def __init__(self, array: Array, *, is_text: bool = False) -> None:
        self.layout = Layout(array.dtype, array.shape, is_text=is_text)
        self._array = array

    def rows(self, start: int, stop: int) -> Array:
        return self._array[start:stop]

    def mapped(self, path: Path) -> Array:
        return self._array


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


def columns(file: BinaryIO, format: Format, limit: int) -> dict[str, Column]:
    """The arrays of a file by name; an npy file has one without a name, called ``values``."""
    size = file.seek(0, io.SEEK_END)
    match format:
        case Format.NPY:
            start = npy.header_length(read_at(file, 0, min(size, npy.PREFIX)))
            layout = npy.parse_header(read_at(file, 0, min(size, start)))
            check_length(start + layout.nbytes, size)
            return {VALUES: Plain(file, start, layout)}
        case Format.NPZ:
            found = npz_members(file, size, limit)
            return {
                name: Zipped(file, member, is_text=name == SEGMENTS)
                for name, member in found.items()
            }
        case Format.SAFETENSORS:
            start = safetensors.header_length(read_at(file, 0, min(size, safetensors.PREFIX)))
            header = safetensors.parse_header(read_at(file, 0, min(size, start)))
            check_length(header.file_length, size)
            return {
                name: Plain(file, one.start, one.layout) for name, one in header.tensors.items()
            }
        case Format.JSON | Format.CSV:
            return _held(read_arrays(format, read_at(file, 0, size), limit=limit))


def by_rows(column: Column, spool: BinaryIO) -> Column:
    """A column whose rows can be read in order, whatever the order it is stored in."""
    by_column = column.layout.fortran and len(column.layout.shape) == 2
    return column.by_column(spool) if by_column and isinstance(column, Zipped) else column


def _held(arrays: Arrays) -> dict[str, Column]:
    found: dict[str, Column] = {arrays.declared or VALUES: Held(arrays.values)}
    if arrays.labels is not None:
        found[LABELS] = Held(arrays.labels)
    if isinstance(arrays.segments, Segments):
        found[SEGMENTS] = Named(arrays.segments)
    elif arrays.segments is not None:
        found[SEGMENTS] = Held(arrays.segments, is_text=True)
    return found


def _rows_of(layout: Layout, data: bytes, count: int) -> Array:
    raw = np.frombuffer(data, layout.dtype)
    if layout.bfloat16:
        raw = widened_bfloat16(raw)
    return raw.reshape(count, *layout.shape[1:])
