"""The part of the zip format that npz files use, read with suspicion.

    local header, data        once per member: stored, or deflated
    central directory         what the members are called, where they lie, how long they are
    (zip64 end and locator)   if something is beyond 4 GB
    end record                22 bytes, no comment: the last bytes of the file

Lengths are checked against each other before anything is unpacked, and against what really comes
out while it is. zipfile reads a directory of any size into memory first, so it cannot be used.
"""

from __future__ import annotations

import io
import struct
import zlib
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np

from service.datasets.formats import npy
from service.datasets.formats.npy import Array, Plain, Readable, check_length, read_at, rows_of
from service.errors import Malformed

END = struct.Struct("<4s4H2LH")
END64 = struct.Struct("<4sQ2H2L4Q")
LOCATOR64 = struct.Struct("<4sLQL")
CENTRAL = struct.Struct("<4s6H3L5H2L")
LOCAL = struct.Struct("<4s5H3L2H")
STORED, DEFLATED = 0, 8
ENCRYPTED = 0x0001 | 0x0040 | 0x2000
MOST_MEMBERS = 16
LONGEST_DIRECTORY = 1 << 14
HIGHEST_RATIO = 1040
FULL_16, FULL_32 = 0xFFFF, 0xFFFFFFFF
PIECE, LARGE_PIECE = 1 << 16, 1 << 20


@dataclass(frozen=True)
class ZipMember:
    """A file in a zip: its header lies at ``header``, its ``packed`` bytes at ``start``."""

    name: str
    deflated: bool
    header: int
    start: int
    packed: int
    unpacked: int
    crc: int


def members(file: Readable, size: int) -> list[ZipMember]:
    """The members of a zip file of ``size`` bytes, in the order of their data."""
    count, offset, length = _directory(file, size)
    if count > MOST_MEMBERS or length > LONGEST_DIRECTORY:
        raise Malformed("too_many_members", f"at most {MOST_MEMBERS} members are read, got {count}")
    directory, found = read_at(file, offset, length), []
    for _ in range(count):
        member, used = _member(file, directory, offset)
        found.append(member)
        directory = directory[used:]
    if directory:
        raise _damaged("its directory is longer than its members")
    found.sort(key=lambda one: one.header)
    for first, second in pairwise(found):
        if first.start + first.packed > second.header:
            raise _damaged("its members overlap")
    if len({one.name for one in found}) != len(found):
        raise Malformed("duplicate_names", "two members of the zip file have the same name")
    return found


class Unpacked:
    """The bytes of a member in order; its length and CRC are checked when the last is read."""

    def __init__(self, file: Readable, member: ZipMember) -> None:
        packed = Packed(file, member)
        self._bytes = Inflated(packed) if member.deflated else packed
        self._left = member.unpacked
        self._crc, self._expected_crc = 0, member.crc

    def read(self, size: int) -> bytes:
        """The next ``size`` bytes; Malformed if there are not as many."""
        if size > self._left:
            raise Malformed(
                "truncated_body", "a member of the zip file is shorter than its header says"
            )
        data = self._bytes.read(size)
        self._left -= size
        self._crc = zlib.crc32(data, self._crc)
        if not self._left:
            self._bytes.check_end()
            if self._crc != self._expected_crc:
                raise _damaged("the CRC of a member is wrong")
        return data


class Packed:
    """The bytes of a member as they lie in the file."""

    def __init__(self, file: Readable, member: ZipMember) -> None:
        self._file = file
        self._place = member.start
        self._end = member.start + member.packed

    def read(self, size: int) -> bytes:
        """The next ``size`` bytes, or as many as there are."""
        data = read_at(self._file, self._place, min(size, self._end - self._place))
        self._place += len(data)
        return data

    def check_end(self) -> None:
        """Refuse bytes that are left over."""
        if self._place != self._end:
            raise _damaged("bytes follow the end of a member")


class Inflated:
    """The bytes that deflated ones stand for."""

    def __init__(self, packed: Packed) -> None:
        self._packed = packed
        self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)

    def read(self, size: int) -> bytes:
        """The next ``size`` bytes; Malformed if there are not as many."""
        parts, missing = [], size
        while missing:
            part = self._some(missing)
            if not part:
                raise _damaged("a member ends before its declared length")
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

    def check_end(self) -> None:
        """Refuse bytes that are left over, packed or not."""
        if self._some(1) or not self._inflate.eof:
            raise _damaged("a member is longer than declared")
        if self._inflate.unused_data:
            raise _damaged("bytes follow the end of a member")
        self._packed.check_end()

    def _some(self, most: int) -> bytes:
        """1 to ``most`` bytes, or none at the end."""
        part, waiting = b"", self._inflate.unconsumed_tail
        while not part and not self._inflate.eof:
            waiting = waiting or self._packed.read(PIECE)
            ended = not waiting
            try:
                part = self._inflate.decompress(waiting, most)
            except zlib.error as error:
                raise _damaged("a member cannot be unpacked") from error
            waiting = self._inflate.unconsumed_tail
            if ended:
                break
        return part


class Zipped:
    """Numbers in a member of a zip file; unpacked as they are read, and never kept."""

    def __init__(self, file: Readable, member: ZipMember, *, is_text: bool = False) -> None:
        self._file = file
        self._member = member
        self._stream = Unpacked(file, member)
        prefix = self._stream.read(min(npy.PREFIX, member.unpacked))
        self._header = npy.header_length(prefix)
        missing = min(self._header, member.unpacked) - len(prefix)
        self.layout = npy.parse_header(prefix + self._stream.read(missing), is_text=is_text)
        check_length(self._header + self.layout.nbytes, member.unpacked)

    def rows(self, start: int, stop: int) -> Array:
        wide = self.layout.nbytes // self.layout.shape[0]
        return rows_of(self.layout, self._stream.read((stop - start) * wide), stop - start)

    def mapped(self, path: Path) -> Array:
        if not self._member.deflated:
            return self.plain().mapped(path)
        array = np.empty(self.layout.nbytes, np.uint8)
        for start in range(0, len(array), LARGE_PIECE):
            stop = min(start + LARGE_PIECE, len(array))
            array[start:stop] = np.frombuffer(self._stream.read(stop - start), np.uint8)
        return self.layout.array(array.data)

    def plain(self) -> Plain:
        """A stored member as plain numbers in the file."""
        return Plain(self._file, self._member.start + self._header, self.layout)

    def by_column(self, spool: BinaryIO) -> Plain:
        """The same column with its rows at hand; what is packed is unpacked into ``spool``."""
        start, left = spool.seek(0, io.SEEK_END), self.layout.nbytes
        while left:
            piece = self._stream.read(min(LARGE_PIECE, left))
            left -= len(piece)
            if self._member.deflated:
                spool.write(piece)
        return Plain(spool, start, self.layout) if self._member.deflated else self.plain()


def _directory(file: Readable, size: int) -> tuple[int, int, int]:
    """How many members there are, and where their directory lies."""
    if size < END.size:
        raise Malformed("truncated_body", f"a zip file has at least {END.size} bytes, got {size}")
    position = size - END.size
    magic, disk, first, here, count, length, offset, comment = END.unpack(
        read_at(file, position, END.size)
    )
    if magic != b"PK\x05\x06" or comment:
        raise _damaged("it does not end with a zip end record without a comment")
    if disk or first or here != count:
        raise _damaged("it is a part of a zip over several disks")
    if count == FULL_16 or FULL_32 in (length, offset):
        position, count, length, offset = _directory64(file, position)
    if offset + length != position:
        raise _damaged("its directory does not lie where its end record says")
    return count, offset, length


def _directory64(file: Readable, end: int) -> tuple[int, int, int, int]:
    position = end - LOCATOR64.size - END64.size
    if position < 0:
        raise _damaged("its zip64 end record is missing")
    located, _, offset, _ = LOCATOR64.unpack(read_at(file, end - LOCATOR64.size, LOCATOR64.size))
    record = END64.unpack(read_at(file, position, END64.size))
    magic, _, _, _, disk, first, here, count, length, start = record
    if (located, magic, offset) != (b"PK\x06\x07", b"PK\x06\x06", position):
        raise _damaged("its zip64 end record is missing")
    if disk or first or here != count:
        raise _damaged("it is a part of a zip over several disks")
    return position, count, length, start


def _member(file: Readable, directory: bytes, limit: int) -> tuple[ZipMember, int]:
    """The first member of a directory whose data ends before ``limit``; bytes used."""
    if len(directory) < CENTRAL.size:
        raise _damaged("its directory is shorter than its members")
    (
        magic,
        _,
        _,
        flags,
        method,
        _,
        _,
        crc,
        packed,
        unpacked,
        names,
        extras,
        comments,
        *_,
        header,
    ) = CENTRAL.unpack_from(directory)
    used = CENTRAL.size + names + extras + comments
    if magic != b"PK\x01\x02" or used > len(directory):
        raise _damaged("its directory cannot be read")
    raw = directory[CENTRAL.size : CENTRAL.size + names]
    extra = directory[CENTRAL.size + names : CENTRAL.size + names + extras]
    unpacked, packed, header = _sizes64(extra, unpacked, packed, header)
    if flags & ENCRYPTED:
        raise Malformed("encrypted", "encrypted zip files are not read")
    if method not in (STORED, DEFLATED):
        raise Malformed("bad_compression", f"zip members must be stored or deflated, got {method}")
    if unpacked > packed * HIGHEST_RATIO or (method == STORED and packed != unpacked):
        raise _damaged("a member claims more bytes than its packed ones can give")
    start = _data_start(file, header, raw, limit)
    if start + packed > limit:
        raise _damaged("a member reaches into the directory")
    name = raw.decode("latin-1")
    return ZipMember(name, method == DEFLATED, header, start, packed, unpacked, crc), used


def _data_start(file: Readable, header: int, name: bytes, limit: int) -> int:
    if header + LOCAL.size > limit:
        raise _damaged("a member lies outside the file")
    magic, *_, names, extras = LOCAL.unpack(read_at(file, header, LOCAL.size))
    start: int = header + LOCAL.size + names + extras
    if magic != b"PK\x03\x04" or start > limit:
        raise _damaged("a member has no header")
    if read_at(file, header + LOCAL.size, names) != name:
        raise _damaged("a member has two names")
    return start


def _sizes64(extra: bytes, *sizes: int) -> list[int]:
    """Sizes with those that did not fit into 32 bits taken from the zip64 field."""
    while len(extra) >= 4:
        tag, length = struct.unpack_from("<2H", extra)
        if tag == 1:
            wide = iter(struct.unpack_from(f"<{min(length, len(extra) - 4) // 8}Q", extra, 4))
            return [next(wide, one) if one == FULL_32 else one for one in sizes]
        extra = extra[4 + length :]
    return list(sizes)


def _damaged(what: str) -> Malformed:
    return Malformed("bad_zip", f"the zip file cannot be read: {what}")
