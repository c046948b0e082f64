"""Configure the C allocator; this only has an effect with glibc."""

from __future__ import annotations

import ctypes
from contextlib import suppress

# parameters of mallopt
TRIM_THRESHOLD, MMAP_THRESHOLD, ARENA_MAX = -1, -3, -8
RETAINED_BLOCK_BYTES, RETAINED_BYTES = 8 << 20, 64 << 20


def share_heaps() -> None:
    """Make all threads share two heaps, because every heap retains freed memory."""
    _set(ARENA_MAX, 2)


def keep_freed_memory() -> None:
    """Make the C library retain some freed memory, because fits keep allocating large arrays.

    Returning this memory to the system and faulting it in again takes a fifth of a small fit's
    time.
    """
    _set(MMAP_THRESHOLD, RETAINED_BLOCK_BYTES)
    _set(TRIM_THRESHOLD, RETAINED_BYTES)


def _set(parameter: int, value: int) -> None:
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(parameter, value)
