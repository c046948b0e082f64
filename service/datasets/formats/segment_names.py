"""The array ``segments``: the name of each row's segment, as a string or an integer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrators import DataError
from calibrators.segments import (
    MAX_SEGMENTS,
    SegmentCoder,
    Segments,
    check_cells,
    check_length,
)
from service.errors import Invalid

if TYPE_CHECKING:
    from service.datasets.formats.npy import Array, Layout

SEGMENTS = "segments"
BLOCK_BYTES = 1 << 20
BLOCK_NAMES = 1 << 12
LAST_CHARACTER = 0x10FFFF


def from_list(names: Any) -> Segments:
    """Return segments from a JSON list of strings, or of integers whose digits are the names.

    >>> from_list(["web", "app"]).names, from_list([3, 12]).names
    (('app', 'web'), ('12', '3'))
    """
    if not isinstance(names, list):
        raise Invalid("not_an_array", "segments must be a list of names or integers")
    is_text = check_cells(names) is str
    blocks = (names[start : start + BLOCK_NAMES] for start in range(0, len(names), BLOCK_NAMES))
    return from_names(blocks if is_text else (map(str, block) for block in blocks))


def from_names(blocks: Iterable[Iterable[str]]) -> Segments:
    """Return segments from blocks of names, one name per row."""
    coder = SegmentCoder()
    for block in blocks:
        coder.add_names(block)
    return coder.segments()


def checked(array: Array) -> Array:
    """Return the array if its shape and Unicode text are valid; calibrators checks the rest."""
    if array.ndim not in (1, 2):
        raise DataError("bad_segments", f"segments must have shape (n,), got {array.shape}")
    broken = _invalid_text(array)
    if broken is not None:
        _refuse_where(broken, *INVALID_TEXT)
    return array


def check_layout(layout: Layout, rows: int) -> None:
    """Raise the same error as calibrators if segments cannot have this type and shape."""
    dtype = np.dtype(np.float32) if layout.bfloat16 else layout.dtype
    shape = layout.shape[:1] if layout.shape[1:] == (1,) else layout.shape
    if len(shape) != 1:
        Segments.of(np.broadcast_to(np.zeros((), dtype), layout.shape))
    Segments.of(np.ones(1, dtype))
    check_length(shape[0], rows)


def count(layout: Layout, rows_of: Callable[[int, int], Array]) -> int:
    """Count the distinct segments block by block, raising the same errors as calibrators."""
    found: dict[str, tuple[int, int]] = {}
    bad_rows, bad_first, start = 0, 0, 0
    for block in _blocks(layout, rows_of):
        broken = _invalid_text(block)
        if broken is not None:
            bad_first = bad_first if bad_rows else start + int(broken.argmax())
            bad_rows += int(broken.sum())
        elif not bad_rows:
            _add(found, block, start)
        start += len(block)
    if bad_rows:
        raise DataError(*INVALID_TEXT, rows=bad_rows, first=bad_first)
    names = sorted(found)
    try:
        Segments.of(np.array(names, np.str_))
    except DataError as error:
        rows, first = found[names[error.first or 0]]
        raise DataError(error.code, error.rule, rows=rows, first=first) from error
    return len(names)


def load(layout: Layout, rows_of: Callable[[int, int], Array]) -> Segments:
    """Load the segments of a file without holding all names in memory at once."""
    check_layout(layout, layout.shape[0])
    coder = SegmentCoder()
    for block in _blocks(layout, rows_of):
        coder.add(block.astype(np.str_) if block.dtype.hasobject else block)
    return coder.segments()


def load_rows(layout: Layout, rows_of: Callable[[int, int], Array], rows: Array) -> Segments:
    """Load the segments of ``rows``, which must be in ascending order."""
    coder, start = SegmentCoder(), 0
    for block in _blocks(layout, rows_of):
        first, last = np.searchsorted(rows, (start, start + len(block)))
        taken = block[rows[first:last] - start]
        coder.add(taken.astype(np.str_) if taken.dtype.hasobject else taken)
        start += len(block)
    return coder.segments()


def _blocks(layout: Layout, rows_of: Callable[[int, int], Array]) -> Iterator[Array]:
    total = layout.shape[0]
    step = min(BLOCK_NAMES, max(1, BLOCK_BYTES // layout.dtype.itemsize))
    for start in range(0, total, step):
        yield rows_of(start, min(total, start + step)).reshape(-1)


INVALID_TEXT = ("bad_segment_name", "a segment name must be valid Unicode text")


def _add(found: dict[str, tuple[int, int]], block: Array, start: int) -> None:
    """Count the rows of each name, and record the index of its first row."""
    if block.dtype.hasobject:
        block = block.astype(np.str_)
    names, firsts, counts = np.unique(block, return_index=True, return_counts=True)
    for name, first, rows in zip(map(str, names), firsts, counts, strict=True):
        before, place = found.get(name, (0, start + int(first)))
        found[name] = before + int(rows), place
    if len(found) > MAX_SEGMENTS:
        raise DataError(
            "too_many_segments",
            f"at most {MAX_SEGMENTS} segments are allowed, got more: "
            "check that this is not a column of identifiers",
        )


def _invalid_text(array: Array) -> Array | None:
    """Return a mask of the rows with a character beyond U+10FFFF; None if there are none."""
    if array.dtype.kind != "U" or not array.size:
        return None
    flat = np.ascontiguousarray(array)
    points = flat.view(flat.dtype.str[0] + "u4").reshape(len(array), -1)
    broken: Array = np.any(points > LAST_CHARACTER, axis=1)
    return broken if broken.any() else None


def _refuse_where(broken: Any, code: str, rule: str) -> None:
    places = np.asarray(broken, dtype=bool)
    if places.any():
        raise DataError(code, rule, rows=int(places.sum()), first=int(places.argmax()))
