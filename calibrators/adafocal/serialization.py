"""Bin statistics as bytes: numbers' bytes sorted by their place, then deflated."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators.adafocal.binning import PLACES, CountedRows, ExactRows
from calibrators.adafocal.log_odds_cells import CELLS
from calibrators.errors import DataError

Integers = NDArray[np.int64]

MAGIC = b"CBS1"
SUMS = 47
MOST_KEYS = 1 << 17
ROWS, CELLED = b"R", b"C"
HEAD = len(ROWS) + 8 * SUMS
LONGEST = HEAD + max(4 * MOST_KEYS, 16 * CELLS)


def plain(spread: ExactRows | CountedRows, sums: Integers) -> bytes:
    """What is deflated: a letter for the spread's kind, the sums, the spread."""
    kind = ROWS if isinstance(spread, ExactRows) else CELLED
    return kind + _planes(sums) + _planes(spread.raw())


def packed(spread: ExactRows | CountedRows, sums: Integers) -> bytes:
    """The bytes of statistics."""
    return MAGIC + zlib.compress(plain(spread, sums), 6)


def unpacked(data: bytes) -> tuple[ExactRows | CountedRows, Integers]:
    """The spread and the sums that ``packed`` wrote; DataError if they are not whole."""
    try:
        if data[: len(MAGIC)] != MAGIC:
            raise ValueError("they do not begin with CBS1")
        inflater = zlib.decompressobj()
        found = inflater.decompress(data[len(MAGIC) :], LONGEST + 1)
        kind, rest = found[:1], len(found) - HEAD
        fits = rest == 16 * CELLS if kind == CELLED else rest % 4 == 0 and rest <= 4 * MOST_KEYS
        if rest < 0 or not fits or not inflater.eof or inflater.unused_data:
            raise ValueError("they have the wrong length")
        if kind not in (ROWS, CELLED):
            raise ValueError("they hold neither rows nor cells")
    except (ValueError, zlib.error) as error:
        raise DataError("bad_statistics", f"these are no statistics: {error}") from error
    sums = _numbers(found[1:HEAD], "<i8").astype(np.int64)
    if kind == CELLED:
        return CountedRows(_numbers(found[HEAD:], "<i8").astype(np.int64).reshape(2, CELLS)), sums
    keys = np.cumsum(_numbers(found[HEAD:], "<u4"), dtype=np.uint64)
    if keys.size and keys[-1] >= 2 * PLACES:
        raise DataError("bad_statistics", "a row of these statistics lies outside the scale")
    return ExactRows(keys.astype(np.uint32)), sums


def _planes(numbers: NDArray[Any]) -> bytes:
    """First the lowest byte of every number, then the next: equal bytes come together."""
    size = numbers.dtype.itemsize
    little = numbers.astype(numbers.dtype.newbyteorder("<"))
    return little.view(np.uint8).reshape(-1, size).T.tobytes()


def _numbers(planes: bytes, kind: str) -> NDArray[Any]:
    size = np.dtype(kind).itemsize
    turned = np.frombuffer(planes, dtype=np.uint8).reshape(size, -1).T
    return np.ascontiguousarray(turned).view(kind)[:, 0]
