"""Bodies of responses, decompressed here so that a small one cannot become a huge one."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

from calibrd.errors import NotCalibrd

MEGABYTE = 1 << 20
# most answers are JSON; calls that ask for more say how much
MOST_BYTES = 64 * MEGABYTE
MOST_MAP_BYTES = 1 << 30
ACCEPTED = "gzip"
GZIP = 16 + zlib.MAX_WBITS


class Body:
    """The bytes of a response, at most ``most`` of them, as sent and as decompressed."""

    def __init__(self, headers: Mapping[str, str], most: int) -> None:
        self._most = most
        self._sent = 0
        self._kept = bytearray()
        coding = headers.get("content-encoding", "").strip().lower()
        if coding not in ("", "identity", ACCEPTED):
            raise NotCalibrd(
                f"the answer is compressed as {coding[:50]!r}, which was not asked for"
            )
        self._gzip = zlib.decompressobj(GZIP) if coding == ACCEPTED else None
        told = headers.get("content-length", "")
        if told.isdecimal() and len(told) < 20 and int(told) > most:
            raise self._too_long()

    def add(self, piece: bytes) -> None:
        """Take a piece as it was sent; NotCalibrd if the answer is too long or damaged."""
        self._sent += len(piece)
        if self._sent > self._most:
            raise self._too_long()
        if self._gzip is None:
            self._kept += piece
            return
        try:
            self._kept += self._gzip.decompress(piece, self._most - len(self._kept) + 1)
        except zlib.error as error:
            raise NotCalibrd(f"the answer cannot be decompressed: {error}") from error
        if len(self._kept) > self._most:
            raise self._too_long()

    def content(self) -> bytes:
        """Return the whole body; NotCalibrd if it was cut off."""
        if self._gzip is not None and self._sent and not self._gzip.eof:
            raise NotCalibrd("the answer cannot be decompressed: it ends too early")
        return bytes(self._kept)

    def _too_long(self) -> NotCalibrd:
        return NotCalibrd(
            f"the answer is longer than what this call can be answered with, {self._most:,} bytes"
        )
