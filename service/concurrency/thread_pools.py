"""Bounded thread pools, one per kind of slow work, that no single caller can fill."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ParamSpec, Protocol, TypeVar

from service.errors import TooMany, Unavailable

SMALL_BYTES = 1 << 16

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
    """Run calls on a few threads; one owner never occupies all of them.

    The threads are few on purpose: every thread that computes in Python delays the event loop.
    An owner (a workspace) occupies at most ``threads - 1`` of them (or the only one) and may have
    ``most_waiting`` calls in flight; beyond that it gets TooMany.
    """

    def __init__(self, name: str, threads: int, *, most_waiting: int = 64) -> None:
        self._name = name
        self._share = max(1, threads - 1)
        self._most_waiting = most_waiting
        self._owners: dict[str, _Owner] = {}
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)

    async def run(
        self, owner: str, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run the call when a thread is free, and return its result."""
        mine = self._owners.setdefault(owner, _Owner(asyncio.Semaphore(self._share)))
        if mine.calls >= self._most_waiting:
            raise TooMany(
                "too_many_requests",
                f"{mine.calls} calls of this workspace are already waiting for {self._name}: "
                "wait for responses before sending more",
            )
        mine.calls += 1
        try:
            await mine.threads.acquire()
        except BaseException:
            self._leave(owner, mine)
            raise
        return await asyncio.wrap_future(self._submit(owner, mine, partial(call, *args, **kwargs)))

    def of(self, owner: str) -> Runner:
        """Return a runner for the calls of one owner."""
        return partial(self.run, owner)

    def close(self) -> None:
        """Shut down: running calls finish, waiting ones are cancelled."""
        self._pool.shutdown(wait=False, cancel_futures=True)

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
        mine.threads.release()
        self._leave(owner, mine)

    def _leave(self, owner: str, mine: _Owner) -> None:
        mine.calls -= 1
        if not mine.calls:
            self._owners.pop(owner, None)


@dataclass
class _Owner:
    threads: asyncio.Semaphore
    calls: int = 0


class Runner(Protocol):
    """Run a call on a thread of an executor."""

    async def __call__(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run the call and return its result."""


@dataclass(frozen=True)
class Executors:
    """The thread pools in an API process.

    ``inspect`` checks uploads and maps, ``parse`` reads JSON and forms, ``store`` writes parts of
    uploads, ``load`` reads maps for predict, ``apply`` decodes and calibrates large bodies,
    ``download`` reads blobs for responses, ``query`` makes the database calls of coroutines, and
    ``merge`` decides steps of runs, which takes up to a minute. The database calls of plain
    functions stay on the framework's own threads.
    """

    inspect: FairExecutor = field(default_factory=lambda: FairExecutor("inspect", 2))
    parse: FairExecutor = field(default_factory=lambda: FairExecutor("parse", 2, most_waiting=256))
    store: FairExecutor = field(default_factory=lambda: FairExecutor("store", 4, most_waiting=256))
    load: FairExecutor = field(default_factory=lambda: FairExecutor("load", 4, most_waiting=256))
    apply: FairExecutor = field(default_factory=lambda: FairExecutor("apply", 2, most_waiting=256))
    download: FairExecutor = field(
        default_factory=lambda: FairExecutor("download", 4, most_waiting=2048)
    )
    query: FairExecutor = field(default_factory=lambda: FairExecutor("query", 4, most_waiting=256))
    merge: FairExecutor = field(default_factory=lambda: FairExecutor("merge", 3, most_waiting=256))

    def close(self) -> None:
        """Shut down: running calls finish, waiting ones are cancelled."""
        for one in vars(self).values():
            one.close()
