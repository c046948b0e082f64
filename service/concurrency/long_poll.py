"""Long polling: one poller serves all waiting requests, so none holds a thread or a session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Hashable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager, suppress
from typing import Generic, TypeVar

import structlog

POLL_SECONDS = 0.2

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")

_log = structlog.get_logger("calibrd.watching")


class Watcher(Generic[Key, Item]):
    """A poller that notifies waiting requests; ``read`` returns the current items by key."""

    def __init__(self, what: str, read: Callable[[list[Key]], Mapping[Key, Item]]) -> None:
        self._what = what
        self._read = read
        self._waiting: dict[Key, set[asyncio.Queue[Item | None]]] = {}
        self._poller: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"watch-{what}")
        self._is_stopped = False
        self._woken = asyncio.Event()

    async def changes(
        self, key: Key, first: Item, is_enough: Callable[[Item], bool]
    ) -> AsyncGenerator[Item]:
        """Yield the item and its changes until ``is_enough`` accepts it or ``stop`` is called."""
        yield first
        if is_enough(first):
            return
        with self._listening(key) as updates:
            latest = first
            while not (is_enough(latest) or self._is_stopped):
                current = await updates.get()
                if current is not None and current != latest:
                    latest = current
                    yield latest

    async def until(
        self, key: Key, first: Item, is_enough: Callable[[Item], bool], seconds: float
    ) -> Item:
        """Return the item once ``is_enough`` accepts it, or the latest on timeout or ``stop``."""
        latest = first
        with suppress(TimeoutError):
            changes = self.changes(key, first, is_enough)
            async with asyncio.timeout(seconds), aclosing(changes):
                async for current in changes:
                    latest = current
        return latest

    def wake(self) -> None:
        """Poll now instead of after the usual pause; call this after a change."""
        self._woken.set()

    def stop(self) -> None:
        """End all waits, because the service is shutting down."""
        self._is_stopped = True
        for listeners in self._waiting.values():
            for updates in listeners:
                _replace(updates, None)

    async def close(self) -> None:
        """Stop polling."""
        if self._poller is not None:
            self._poller.cancel()
            await asyncio.gather(self._poller, return_exceptions=True)
        self._thread.shutdown(wait=False, cancel_futures=True)

    @contextmanager
    def _listening(self, key: Key) -> Iterator[asyncio.Queue[Item | None]]:
        updates: asyncio.Queue[Item | None] = asyncio.Queue(maxsize=1)
        self._waiting.setdefault(key, set()).add(updates)
        if self._poller is None or self._poller.done():
            self._poller = asyncio.create_task(self._poll())
        try:
            yield updates
        finally:
            listeners = self._waiting[key]
            listeners.discard(updates)
            if not listeners:
                del self._waiting[key]

    async def _poll(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            found: Mapping[Key, Item] = {}
            self._woken.clear()
            try:
                found = await loop.run_in_executor(self._thread, self._read, list(self._waiting))
            except Exception as error:  # noqa: BLE001 - the database may be down for a while
                _log.warning(f"{self._what}_not_read", error=type(error).__name__)
            for key, item in found.items():
                for updates in self._waiting.get(key, ()):
                    _replace(updates, item)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), POLL_SECONDS)


def _replace(updates: asyncio.Queue[Item | None], item: Item | None) -> None:
    if updates.full():  # slow readers only see the latest value
        updates.get_nowait()
    updates.put_nowait(item)
