"""Process large arrays in blocks that fit a core's cache, on several threads.

numpy releases the GIL while it computes, so two threads are nearly twice as fast as one. Results
are returned in block order, so their sum is the same to the last bit for any number of threads.
"""

from __future__ import annotations

import math
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from calibrators.errors import ParameterError

Result = TypeVar("Result")
Floats = NDArray[Any]

BLOCK_ELEMENTS = 1 << 19
NARROW = 48
WORKER = "calibrators-block"


_PerThread = threading.local()


class _Threads:
    count = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    pool: ThreadPoolExecutor | None = None
    lock = threading.Lock()


def set_threads(count: int) -> None:
    """Use ``count`` threads from now on; the default is the number of usable cores."""
    if not isinstance(count, int) or count < 1:
        raise ParameterError("bad_parameter", f"count must be a positive integer, got {count}")
    _forget_pool()
    _Threads.count = count


def get_threads() -> int:
    """Return the number of threads that process large arrays."""
    return _Threads.count


def _pool() -> ThreadPoolExecutor:
    with _Threads.lock:
        if _Threads.pool is None:
            _Threads.pool = ThreadPoolExecutor(_Threads.count - 1, thread_name_prefix=WORKER)
        return _Threads.pool


def _forget_pool() -> None:
    _Threads.lock = threading.Lock()
    _Threads.pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)


class Scratch:
    """Named buffers that one thread reuses from block to block.

    >>> scratch = Scratch()
    >>> scratch.take("work", (2, 3), np.float32).shape
    (2, 3)
    """

    def __init__(self) -> None:
        self._buffers: dict[str, NDArray[np.uint8]] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> Floats:
        """Return an uninitialised array; this invalidates the last array of the same name."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        buffer = self._buffers.get(name)
        if buffer is None or buffer.size < size:
            buffer = self._buffers[name] = np.empty(size, dtype=np.uint8)
        return buffer[:size].view(dtype).reshape(shape)


def scratch_bytes() -> int:
    """Estimate the memory of the block buffers, in bytes."""
    return 2 * 8 * BLOCK_ELEMENTS * _Threads.count


def row_blocks(rows: int, columns: int) -> Iterator[slice]:
    """Yield slices of rows, small enough for each block to stay in the cache.

    >>> list(row_blocks(100_000, 1))
    [slice(0, 100000, None)]
    """
    step = max(1, BLOCK_ELEMENTS // columns)
    for start in range(0, rows, step):
        yield slice(start, min(rows, start + step))


def map_blocks(
    work: Callable[[int, int, Scratch], Result], rows: int, columns: int
) -> list[Result]:
    """Call ``work(start, stop, scratch)`` for consecutive blocks; return the results in order.

    Nested calls run on the calling thread, so threads never wait for each other.
    """
    if rows * columns <= BLOCK_ELEMENTS:
        return [work(0, rows, Scratch())]
    spans = [(block.start, block.stop) for block in row_blocks(rows, columns)]
    threads = min(_Threads.count, len(spans))
    if threads <= 1 or threading.current_thread().name.startswith(WORKER):
        return _run(work, spans)
    blocks = _Blocks(work, spans)
    helpers = [_pool().submit(blocks.run) for _ in range(threads - 1)]
    try:
        blocks.run()
    finally:
        blocks.stop()
        running = [helper for helper in helpers if not helper.cancel()]
        wait(running)
    for helper in running:
        helper.result()
    return blocks.results


class _Blocks(Generic[Result]):
    """Queue of blocks for several threads.

    The calling thread processes blocks too, so it finishes even if all other threads are busy.
    """

    def __init__(
        self, work: Callable[[int, int, Scratch], Result], spans: list[tuple[int, int]]
    ) -> None:
        self.results: list[Result] = [None] * len(spans)  # type: ignore[list-item]
        self._work = work
        self._left = deque(enumerate(spans))

    def run(self) -> None:
        """Process blocks until none is left."""
        scratch = _scratch()
        while True:
            try:
                place, (start, stop) = self._left.popleft()
            except IndexError:
                return
            self.results[place] = self._work(start, stop, scratch)

    def stop(self) -> None:
        """Drop the remaining blocks."""
        self._left.clear()


def _run(work: Callable[[int, int, Scratch], Result], spans: list[tuple[int, int]]) -> list[Result]:
    scratch = _scratch()
    return [work(start, stop, scratch) for start, stop in spans]


def _scratch() -> Scratch:
    """Return the buffers of the current thread; only threads of the pool reuse them."""
    scratch = getattr(_PerThread, "scratch", None) or Scratch()
    if threading.current_thread().name.startswith(WORKER):
        _PerThread.scratch = scratch
    return scratch


def oriented(block: Floats, scratch: Scratch) -> tuple[Floats, int]:
    """Return a block in the layout that numpy reduces fastest, and the axis of its classes.

    Blocks with few classes are transposed, so that numpy's inner loop runs over samples.
    """
    if block.shape[1] > NARROW:
        return block, 1
    transposed = scratch.take("transposed", block.shape[::-1], block.dtype)
    transposed[...] = block.T
    return transposed, 0
