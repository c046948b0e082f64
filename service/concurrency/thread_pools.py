"""Bounded thread pools for slow work; no single caller can fill one."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ParamSpec, Protocol, TypeVar

from service.errors import TooMany, Unavailable

SMALL_BYTES = 1 << 16
SPARE_AFTER = 1.0  # seconds
SPARE_THREADS = 4

P = ParamSpec("P")
T = TypeVar("T")

_parsing = threading.RLock()


@contextmanager
def parsing_turn(size: int) -> Iterator[None]:
    """Wait until no other thread is parsing a large JSON document.

    Parsing such a document holds the GIL for a tenth of a second. Several threads would pass the
    GIL to each other, and the event loop would have to wait for all of them.
    """
    if size <= SMALL_BYTES:
        yield
        return
    with _parsing:
        yield


class FairExecutor:
    """A small thread pool in which one owner never occupies all threads.

    The pool is small on purpose, because every thread that computes in Python delays the event
    loop. An owner (a workspace) occupies at most ``threads - 1`` threads (or the only one) and may
    have ``most_waiting`` calls in flight; further calls raise TooMany. If several owners occupy all
    threads for longer than SPARE_AFTER seconds, waiting calls get up to SPARE_THREADS more.
    """

    def __init__(self, name: str, threads: int, *, most_waiting: int = 64) -> None:
        self._name = name
        self._threads = threads
        self._share = max(1, threads - 1)
        self._most_waiting = most_waiting
        self._owners: dict[str, _Owner] = {}
        self._running = 0
        self._waiting: deque[_Waiting] = deque()
        self._pool = ThreadPoolExecutor(threads + SPARE_THREADS, thread_name_prefix=name)

    async def run(
        self, owner: str, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run the call when a thread is free, and return its result."""
        mine = self._owners.setdefault(owner, _Owner(asyncio.Semaphore(self._share)))
        if mine.calls >= self._most_waiting:
            raise TooMany(
                "too_many_requests",
                f"this workspace already has {mine.calls} {self._name} calls in flight: "
                "wait for responses before sending more",
            )
        mine.calls += 1
        try:
            await mine.threads.acquire()
        except BaseException:
            self._leave(owner, mine)
            raise
        try:
            await self._thread()
        except BaseException:
            mine.threads.release()
            self._leave(owner, mine)
            raise
        return await asyncio.wrap_future(self._submit(owner, mine, partial(call, *args, **kwargs)))

    def of(self, owner: str) -> Runner:
        """Return a runner for the calls of one owner."""
        return partial(self.run, owner)

    def close(self) -> None:
        """Shut down: running calls finish, waiting ones are cancelled."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _thread(self) -> None:
        """Wait for a regular thread or, after SPARE_AFTER seconds, for a spare one."""
        if self._running < self._threads and not self._waiting:
            self._running += 1
            return
        loop = asyncio.get_running_loop()
        mine = _Waiting(loop.create_future())
        self._waiting.append(mine)
        timer = loop.call_later(SPARE_AFTER, self._admit_to_spare, mine)
        try:
            await mine.admitted
        except BaseException:
            if mine.admitted.done() and not mine.admitted.cancelled():
                self._end()
            else:
                with suppress(ValueError):  # _admit may have dropped it already
                    self._waiting.remove(mine)
            raise
        finally:
            timer.cancel()

    def _admit_to_spare(self, call: _Waiting) -> None:
        call.waited_long = True
        self._admit()

    def _admit(self) -> None:
        """Give free threads to waiting calls; only long-waiting calls get spare threads."""
        while self._waiting:
            first = self._waiting[0]
            if first.admitted.done():  # cancelled, and its task has not run since
                self._waiting.popleft()
                continue
            if self._running >= self._threads + (SPARE_THREADS if first.waited_long else 0):
                return
            self._waiting.popleft()
            self._running += 1
            first.admitted.set_result(None)

    def _end(self) -> None:
        self._running -= 1
        self._admit()

    def _submit(self, owner: str, mine: _Owner, call: Callable[[], T]) -> Future[T]:
        loop = asyncio.get_running_loop()

        def done(_: Future[Any]) -> None:
            # if the caller is cancelled, its thread stays busy until the call ends
            with suppress(RuntimeError):  # the loop has ended, and with it all waiting calls
                loop.call_soon_threadsafe(self._release, owner, mine)

        try:
            future = self._pool.submit(contextvars.copy_context().run, call)
        except RuntimeError as error:
            self._release(owner, mine)
            raise Unavailable("shutting_down", "the service is shutting down; try again") from error
        future.add_done_callback(done)
        return future

    def _release(self, owner: str, mine: _Owner) -> None:
        try:
            self._end()
        finally:
            mine.threads.release()
            self._leave(owner, mine)

    def _leave(self, owner: str, mine: _Owner) -> None:
        mine.calls -= 1
        if not mine.calls:
            self._owners.pop(owner, None)


@dataclass(eq=False)
class _Waiting:
    admitted: asyncio.Future[None]
    waited_long: bool = False


@dataclass
class _Owner:
    threads: asyncio.Semaphore
    calls: int = 0


class Runner(Protocol):
    """A function that runs a call on a thread of an executor."""

    async def __call__(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run the call and return its result."""


@dataclass(frozen=True)
class Executors:
    """The thread pools in an API process.

    ``inspect`` checks uploads and maps, ``parse`` reads JSON and forms, ``store`` writes parts of
    uploads, ``load`` reads maps for predict, ``apply`` decodes and calibrates large bodies,
    ``download`` reads blobs for responses, ``session`` looks up dashboard sessions, ``query`` makes
    the database calls of coroutines, and ``merge`` decides steps of runs, which takes up to a
    minute. Routes that are plain functions call the database on the framework's own threads.
    """

    inspect: FairExecutor = field(default_factory=lambda: FairExecutor("inspect", 2))
    parse: FairExecutor = field(default_factory=lambda: FairExecutor("parse", 2, most_waiting=256))
    store: FairExecutor = field(default_factory=lambda: FairExecutor("store", 4, most_waiting=256))
    load: FairExecutor = field(default_factory=lambda: FairExecutor("load", 4, most_waiting=256))
    apply: FairExecutor = field(default_factory=lambda: FairExecutor("apply", 2, most_waiting=256))
    download: FairExecutor = field(
        default_factory=lambda: FairExecutor("download", 4, most_waiting=2048)
    )
    session: FairExecutor = field(
        default_factory=lambda: FairExecutor("session", 2, most_waiting=256)
    )
    query: FairExecutor = field(default_factory=lambda: FairExecutor("query", 4, most_waiting=256))
    merge: FairExecutor = field(default_factory=lambda: FairExecutor("merge", 3, most_waiting=256))

    def close(self) -> None:
        """Shut down: running calls finish, waiting ones are cancelled."""
        for one in vars(self).values():
            one.close()
