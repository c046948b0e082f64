"""Waiting for news: one poller for all who wait, and nobody holds a session or a thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Hashable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager, suppress
from typing import Generic, TypeVar

import structlog

from service.errors import ServiceError
from service.runs.decisions import decide
from service.runs.step_repository import SessionKey
from service.storage.database import AWAY, Database
from service.storage.records import Fit

POLL_SECONDS = 0.2
MERGE_THREADS = 3
MOST_DUE = 100
RETRY_SECONDS = 5.0  # before a step that could not be merged is tried again

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")

_log = structlog.get_logger("calibrd.watching")


class Watcher(Generic[Key, Item]):
    """Tells those who wait how things go on; ``read`` gives those of some keys as they are."""

    def __init__(self, what: str, read: Callable[[list[Key]], Mapping[Key, Item]]) -> None:
        self._what = what
        self._read = read
        self._waiting: dict[Key, set[asyncio.Queue[Item | None]]] = {}
        self._poller: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"watch-{what}")
        self._is_stopped = False

    async def changes(
        self, key: Key, first: Item, is_enough: Callable[[Item], bool]
    ) -> AsyncGenerator[Item]:
        """The thing now and after every change, until it is enough or ``stop`` is called."""
        yield first
        if is_enough(first):
            return
        with self._listening(key) as news:
            seen = first
            while not (is_enough(seen) or self._is_stopped):
                current = await news.get()
                if current is not None and current != seen:
                    seen = current
                    yield seen

    async def until(
        self, key: Key, first: Item, is_enough: Callable[[Item], bool], seconds: float
    ) -> Item:
        """The thing when it is enough, or as it is after so many seconds or at ``stop``."""
        latest = first
        with suppress(TimeoutError):
            changes = self.changes(key, first, is_enough)
            async with asyncio.timeout(seconds), aclosing(changes):
                async for current in changes:
                    latest = current
        return latest

    def stop(self) -> None:
        """Let nobody wait any longer: the service ends."""
        self._is_stopped = True
        for listeners in self._waiting.values():
            for news in listeners:
                _tell(news, None)

    async def close(self) -> None:
        """Stop polling."""
        if self._poller is not None:
            self._poller.cancel()
            await asyncio.gather(self._poller, return_exceptions=True)
        self._thread.shutdown(wait=False, cancel_futures=True)

    @contextmanager
    def _listening(self, key: Key) -> Iterator[asyncio.Queue[Item | None]]:
        news: asyncio.Queue[Item | None] = asyncio.Queue(maxsize=1)
        self._waiting.setdefault(key, set()).add(news)
        if self._poller is None or self._poller.done():
            self._poller = asyncio.create_task(self._poll())
        try:
            yield news
        finally:
            listeners = self._waiting[key]
            listeners.discard(news)
            if not listeners:
                del self._waiting[key]

    async def _poll(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            found: Mapping[Key, Item] = {}
            try:
                found = await loop.run_in_executor(self._thread, self._read, list(self._waiting))
            except Exception as error:  # noqa: BLE001 - the database may be away for a while
                _log.warning(f"{self._what}_not_read", error=type(error).__name__)
            for key, item in found.items():
                for news in self._waiting.get(key, ()):
                    _tell(news, item)
            await asyncio.sleep(POLL_SECONDS)


class FitWatcher(Watcher[str, Fit]):
    """Tells how fits go on."""

    def __init__(self, database: Database) -> None:
        def read(ids: list[str]) -> dict[str, Fit]:
            with database.read() as store:
                return {fit.id: fit for fit in store.fits.several(ids)}

        super().__init__("fits", read)

    def changes_of(self, fit: Fit) -> AsyncGenerator[Fit]:
        """The fit now and after every change, until it is final or ``stop`` is called."""
        return self.changes(fit.id, fit, _is_final)

    async def finished(self, fit: Fit, seconds: float) -> Fit:
        """The fit when it is final, or as it is after so many seconds or at ``stop``."""
        return await self.until(fit.id, fit, _is_final, seconds)


class RunWatcher(Watcher[SessionKey, int]):
    """Tells how many steps of runs are decided, and sees that those that are due will be.

    Merging takes up to a minute, so the poller leaves it to other threads: one for each workspace
    at a time.
    """

    def __init__(self, database: Database) -> None:
        super().__init__("runs", self._look)
        self._database = database
        self._workspaces: dict[SessionKey, str] = {}
        self._merging: set[str] = set()
        self._tried: dict[SessionKey, float] = {}
        self._merges = ThreadPoolExecutor(MERGE_THREADS, thread_name_prefix="merge")

    async def beyond(
        self, key: SessionKey, workspace: str, step: int, after: int, seconds: float
    ) -> int:
        """The last decided step of a session when it is beyond another, or after a while."""
        self._workspaces[key] = workspace
        try:
            return await self.until(key, step, lambda current: current > after, seconds)
        finally:
            if key not in self._waiting:
                self._workspaces.pop(key, None)

    async def close(self) -> None:
        """Stop polling and merging."""
        await super().close()
        self._merges.shutdown(wait=False, cancel_futures=True)

    def _look(self, keys: list[SessionKey]) -> dict[SessionKey, int]:
        with self._database.read() as store:
            due = store.run_steps.due(keys, MOST_DUE)
            found = store.run_steps.last_numbers(keys)
        self._tried = {key: when for key, when in self._tried.items() if key in due}
        now = time.monotonic()
        for key in sorted(due, key=lambda key: self._tried.get(key, 0.0)):
            workspace = self._workspaces.get(key)
            is_new = now - self._tried.get(key, -RETRY_SECONDS) >= RETRY_SECONDS
            if workspace is not None and workspace not in self._merging and is_new:
                self._tried[key] = now
                self._merging.add(workspace)
                self._merges.submit(self._merge, key, workspace)
        return found

    def _merge(self, key: SessionKey, workspace: str) -> None:
        try:
            decide(self._database, key, wait=0.0)
        except (*AWAY, ServiceError) as error:
            _log.warning("step_not_merged", error=type(error).__name__)
        finally:
            self._merging.discard(workspace)


def _is_final(fit: Fit) -> bool:
    return fit.status.is_final


def _tell(news: asyncio.Queue[Item | None], item: Item | None) -> None:
    if news.full():  # who reads slowly gets the latest only
        news.get_nowait()
    news.put_nowait(item)
