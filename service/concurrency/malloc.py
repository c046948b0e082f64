"""Settings of the C library's allocator; they do nothing where it is not glibc."""

from __future__ import annotations

import ctypes
from contextlib import suppress

# parameters of mallopt
TRIM_THRESHOLD, MMAP_THRESHOLD, ARENA_MAX = -1, -3, -8
KEPT_BLOCK_BYTES, KEPT_BYTES = 8 << 20, 64 << 20


def share_heaps() -> None:
    """Let all threads share two heaps: each of its own would keep most of its largest body."""
    _set(ARENA_MAX, 2)


def keep_freed_memory() -> None:
    """Let the C library keep some freed memory: arrays of megabytes come and go in every fit.

    Given back and asked for anew, page by page, they take a fifth of the time of a small fit.
    """
    _set(MMAP_THRESHOLD, KEPT_BLOCK_BYTES)
    _set(TRIM_THRESHOLD, KEPT_BYTES)


def _set(parameter: int, value: int) -> None:
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(parameter, value)
