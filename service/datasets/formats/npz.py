"""The npz format: a zip of npy files, read by ``zipfile`` after a check of its directory.

``zipfile`` reads a directory of any size into memory, does not notice overlapping members, and
tolerates a wrong end-of-central-directory record. All of this, including the stated sizes, is
therefore checked before anything is unpacked. Unpacked data is checked by ``zipfile`` (CRC) and
``MemberReader`` (length).
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np

from service.datasets.formats import npy
from service.datasets.formats.bodies import (
    Arrays,
    Codec,
    Format,
    check_names,
    check_size,
    named_arrays,
)
from service.datasets.formats.npy import (
    Array,
    Bytes,
    Column,
    FileColumn,
    check_length,
    read_at,
    rows_of,
)
from service.datasets.formats.segment_names import SEGMENTS
from service.errors import Invalid, Malformed

END = struct.Struct("<4s4H2LH")
END64 = struct.Struct("<4sQ2H2L4Q")
LOCATOR64_MAGIC = b"PK\x06\x07"
LOCATOR64 = struct.Struct("<4sLQL")
CENTRAL_BYTES, LOCAL_BYTES = 46, 30
ENCRYPTED = 0x0001 | 0x0040 | 0x2000
MAX_MEMBERS = 16
LONGEST_DIRECTORY = 1 << 14
HIGHEST_RATIO = 1040
FULL_16, FULL_32 = 0xFFFF, 0xFFFFFFFF
PIECE, LARGE_PIECE = 1 << 16, 1 << 20
SEGMENT_COPIES = 2


@dataclass(frozen=True)
class ZipMember:
    """A zip member whose data begins at byte ``start``."""

    archive: zipfile.ZipFile
    info: zipfile.ZipInfo
    start: int

    @property
    def is_packed(self) -> bool:
        """True if the member is compressed."""
        return self.info.compress_type != zipfile.ZIP_STORED

    @property
    def unpacked(self) -> int:
        """The uncompressed size of the member, as stated in the directory."""
        return self.info.file_size


def members(file: BinaryIO, size: int, limit: int) -> dict[str, ZipMember]:
    """Return the members of an npz file by array name; raise if they exceed ``limit`` bytes."""
    count, offset, length = _directory(file, size)
    if count > MAX_MEMBERS or length > LONGEST_DIRECTORY:
        raise Malformed(
            "too_many_members",
            f"a zip directory may have at most {MAX_MEMBERS} members and {LONGEST_DIRECTORY} "
            f"bytes, got {count} members and {length} bytes",
        )
    with _errors("its directory cannot be read"):
        _check_entries(read_at(file, offset, length), count)
        archive = zipfile.ZipFile(file)
    infos = sorted(archive.infolist(), key=lambda one: one.header_offset)
    found = [ZipMember(archive, one, _data_start(file, one, offset)) for one in infos]
    for first, second in pairwise(found):
        if first.start + first.info.compress_size > second.info.header_offset:
            raise _damaged("its members overlap")
    names = [one.orig_filename for one in infos]
    if len(set(names)) != len(names):
        raise Malformed("duplicate_names", "two members of the zip file have the same name")
    check_names(name.removesuffix(".npy") for name in names if name.endswith(".npy"))
    other = next((name for name in names if not name.endswith(".npy")), None)
    if other is not None:
        raise Invalid("unknown_array", f"the zip member {other[:40]!r} is not an npy file")
    check_size(sum(one.unpacked for one in found), limit)
    return {name.removesuffix(".npy"): one for name, one in zip(names, found, strict=True)}


class MemberReader:
    """Sequential reader of a member, which checks its length and CRC at the end."""

    def __init__(self, member: ZipMember) -> None:
        info = copy(member.info)
        info.file_size += 1  # otherwise bytes beyond the stated size would go unnoticed
        self._left = member.unpacked
        with _errors("a member's local header is missing or has a different name"):
            self._file = member.archive.open(info)

    def read(self, size: int) -> bytes:
        """Return the next ``size`` bytes; raise Malformed if there are fewer."""
        with _errors("a member cannot be unpacked, or its CRC is wrong"):
            pieces = range(0, size, PIECE)  # faster than a single read
            data = b"".join(self._file.read(min(PIECE, size - start)) for start in pieces)
            self._left -= len(data)
            is_longer = not self._left and self._file.read(1)
        if len(data) != size or is_longer:
            raise _damaged("a member is shorter or longer than declared")
        return data


class ZipColumn:
    """An array in a zip member, unpacked as it is read."""

    def __init__(self, file: BinaryIO, member: ZipMember, *, is_text: bool = False) -> None:
        self._file = file
        self._member = member
        self._stream = MemberReader(member)
        prefix = self._stream.read(min(npy.PREFIX, member.unpacked))
        self._header = npy.header_length(prefix)
        missing = min(self._header, member.unpacked) - len(prefix)
        self.layout = npy.parse_header(prefix + self._stream.read(missing), is_text=is_text)
        check_length(self._header + self.layout.nbytes, member.unpacked)

    def rows(self, start: int, stop: int) -> Array:
        """Return the rows from ``start`` to ``stop``; blocks must be read in order."""
        wide = self.layout.nbytes // self.layout.shape[0]
        return rows_of(self.layout, self._stream.read((stop - start) * wide), stop - start)

    def mapped(self, path: Path) -> Array:
        """Return the whole array, memory-mapped if it is not compressed."""
        if not self._member.is_packed:
            return self._file_column().mapped(path)
        array = np.empty(self.layout.nbytes, np.uint8)
        for start in range(0, len(array), LARGE_PIECE):
            stop = min(start + LARGE_PIECE, len(array))
            array[start:stop] = np.frombuffer(self._stream.read(stop - start), np.uint8)
        return self.layout.array(array.data)

    def in_rows(self, spool: BinaryIO) -> Column:
        """Return a column readable by rows, unpacking a Fortran-order array to ``spool``."""
        if not (self.layout.fortran and len(self.layout.shape) == 2):
            return self
        start, left = spool.seek(0, io.SEEK_END), self.layout.nbytes
        while left:
            piece = self._stream.read(min(LARGE_PIECE, left))
            left -= len(piece)
            if self._member.is_packed:
                spool.write(piece)
        if self._member.is_packed:
            return FileColumn(spool, start, self.layout)
        return self._file_column()

    def _file_column(self) -> FileColumn:
        """Return an uncompressed member as a column of the file."""
        return FileColumn(self._file, self._member.start + self._header, self.layout)


def _decode(body: Bytes, limit: int) -> Arrays:
    found = members(io.BytesIO(body), len(body), limit)
    return named_arrays(
        {
            name: npy.decode(MemberReader(one).read(one.unpacked), is_text=name == SEGMENTS)
            for name, one in found.items()
        }
    )


def _columns(file: BinaryIO, size: int, limit: int) -> dict[str, Column]:
    found = members(file, size, limit)
    return {name: ZipColumn(file, one, is_text=name == SEGMENTS) for name, one in found.items()}


def _encode(arrays: dict[str, Array]) -> bytes:
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    return file.getvalue()


def _unpacked_size(body: Bytes, limit: int) -> int:
    """Return the memory in bytes that the arrays take, according to the directory."""
    found = members(io.BytesIO(body), len(body), limit)
    segments = found[SEGMENTS].unpacked if SEGMENTS in found else 0
    # each row also needs its segment's code and scale, however short the name
    return sum(one.unpacked for one in found.values()) + SEGMENT_COPIES * segments


def _directory(file: BinaryIO, size: int) -> tuple[int, int, int]:
    """Return the number of members, and the offset and length of the directory."""
    if size < END.size:
        raise Malformed(
            "truncated_body", f"a zip file must have at least {END.size} bytes, got {size}"
        )
    position = size - END.size
    magic, *disks, count, length, offset, comment = END.unpack(read_at(file, position, END.size))
    if magic != b"PK\x05\x06" or comment:
        raise _damaged("it must end with an end-of-central-directory record without a comment")
    is_zip64 = count == FULL_16 or FULL_32 in (length, offset)
    before = read_at(file, max(0, position - LOCATOR64.size), min(position, LOCATOR64.size))
    if not is_zip64 and before.startswith(LOCATOR64_MAGIC):
        raise _damaged(
            "it has two end-of-central-directory records"
        )  # ``zipfile`` would read the other one
    if is_zip64:
        position -= LOCATOR64.size + END64.size
        if position < 0:
            raise _damaged("its zip64 end record is missing")
        record = read_at(file, position, END64.size + LOCATOR64.size)
        located, _, place, _ = LOCATOR64.unpack_from(record, END64.size)
        magic, _, _, _, *disks, count, length, offset = END64.unpack_from(record)
        if (located, magic, place) != (LOCATOR64_MAGIC, b"PK\x06\x06", position):
            raise _damaged("its zip64 end record is missing")
    if disks != [0, 0, count]:
        raise _damaged("it is part of a multi-disk zip file")
    if offset + length != position:
        raise _damaged(
            "its directory does not end where its end-of-central-directory record begins"
        )
    return count, offset, length


def _check_entries(directory: bytes, count: int) -> None:
    """Raise Malformed if the directory's length does not match its members (zipfile ignores it)."""
    end = 0
    for _ in range(count):
        end += CENTRAL_BYTES + sum(struct.unpack_from("<3H", directory, end + 28))
    if end != len(directory):
        raise _damaged("the length of its directory does not match its members")


def _data_start(file: BinaryIO, info: zipfile.ZipInfo, limit: int) -> int:
    """Return the offset of a member's data; raise Malformed if it is unsupported or damaged."""
    if info.flag_bits & ENCRYPTED:
        raise Malformed("encrypted", "encrypted zip files are not supported")
    is_stored, packed, unpacked = info.compress_type == 0, info.compress_size, info.file_size
    if not is_stored and info.compress_type != zipfile.ZIP_DEFLATED:
        raise Malformed(
            "bad_compression", f"zip members must be stored or deflated, got {info.compress_type}"
        )
    if unpacked > packed * HIGHEST_RATIO or (is_stored and packed != unpacked):
        raise _damaged("a member states a larger size than its compressed data allows")
    if info.header_offset + LOCAL_BYTES > limit:
        raise _damaged("a member lies outside the file")
    lengths = struct.unpack("<2H", read_at(file, info.header_offset + LOCAL_BYTES - 4, 4))
    start: int = info.header_offset + LOCAL_BYTES + sum(lengths)
    if start + packed > limit:
        raise _damaged("a member overlaps the directory")
    return start


@contextmanager
def _errors(what: str) -> Iterator[None]:
    """Convert ``zipfile`` errors to Malformed."""
    try:
        yield
    except (
        zipfile.BadZipFile,
        zlib.error,
        struct.error,
        EOFError,
        NotImplementedError,
        RuntimeError,
        ValueError,
    ) as error:
        raise _damaged(what) from error


def _damaged(what: str) -> Malformed:
    return Malformed("bad_zip", f"the zip file cannot be read: {what}")


CODEC = Codec(
    format=Format.NPZ,
    media_types=("application/x-npz", "application/zip"),
    holds="`logits` or `probabilities`, `labels`, and optionally `segments`, `features`, "
    "`head_weight` and `head_bias`",
    decode=_decode,
    columns=_columns,
    encode=_encode,
    begins=lambda head: head.startswith(b"PK\x03\x04"),
    unpacked_size=_unpacked_size,
)
