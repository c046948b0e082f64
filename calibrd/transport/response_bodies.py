"""Response bodies, which are decompressed here to limit their size."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

from calibrd.errors import NotCalibrd

MEGABYTE = 1 << 20
# most responses are JSON; calls that need more set their own limit
MAX_BYTES = 64 * MEGABYTE
MAX_MAP_BYTES = 1 << 30
ACCEPTED = "gzip"
GZIP = 16 + zlib.MAX_WBITS


class Body:
    """The bytes of a response, limited to ``max_bytes`` both compressed and decompressed."""

    def __init__(self, headers: Mapping[str, str], max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._sent = 0
        self._content = bytearray()
        coding = headers.get("content-encoding", "").strip().lower()
        if coding not in ("", "identity", ACCEPTED):
            raise NotCalibrd(
                f"the response is compressed as {coding[:50]!r}, which was not requested"
            )
        self._gzip = zlib.decompressobj(GZIP) if coding == ACCEPTED else None
        length = headers.get("content-length", "")
        if length.isdecimal() and len(length) < 20 and int(length) > max_bytes:
            raise self._too_long()

    def add(self, piece: bytes) -> None:
        """Add received bytes; raise NotCalibrd if the response is too long or damaged."""
        self._sent += len(piece)
        if self._sent > self._max_bytes:
            raise self._too_long()
        if self._gzip is None:
            self._content += piece
            return
        try:
            self._content += self._gzip.decompress(piece, self._max_bytes - len(self._content) + 1)
        except zlib.error as error:
            raise NotCalibrd(f"the response cannot be decompressed: {error}") from error
        if len(self._content) > self._max_bytes:
            raise self._too_long()

    def content(self) -> bytes:
        """Return the whole body; raise NotCalibrd if it is incomplete."""
        if self._gzip is not None and self._sent and not self._gzip.eof:
            raise NotCalibrd("the response cannot be decompressed: it ends too early")
        return bytes(self._content)

    def _too_long(self) -> NotCalibrd:
        return NotCalibrd(
            f"the response is longer than the {self._max_bytes:,} bytes that this call allows"
        )
