"""Waiting for fits: one poller for all who wait, and nobody holds a session or a thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager, suppress

import structlog

from service.storage.database import Database
from service.storage.records import Fit

POLL_SECONDS = 0.2

_log = structlog.get_logger("calibrd.watching")


class FitWatcher:
    """Tells those who wait how their fits go on."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: dict[str, set[asyncio.Queue[Fit | None]]] = {}
        self._poller: asyncio.Task[None] | None = None
        self._is_stopped = False

    async def changes(self, fit: Fit) -> AsyncGenerator[Fit]:
        """The fit now and after every change, until it is final or ``stop`` is called."""
        yield fit
        if fit.status.is_final:
            return
        with self._listening(fit.id) as news:
            seen = fit
            while not (seen.status.is_final or self._is_stopped):
                current = await news.get()
                if current is not None and current != seen:
                    seen = current
                    yield seen

    async def finished(self, fit: Fit, seconds: float) -> Fit:
        """The fit when it is final, or as it is after so many seconds or at ``stop``."""
        latest = fit
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), aclosing(self.changes(fit)) as changes:
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

    @contextmanager
    def _listening(self, id: str) -> Iterator[asyncio.Queue[Fit | None]]:
        news: asyncio.Queue[Fit | None] = asyncio.Queue(maxsize=1)
        self._waiting.setdefault(id, set()).add(news)
        if self._poller is None or self._poller.done():
            self._poller = asyncio.create_task(self._poll())
        try:
            yield news
        finally:
            listeners = self._waiting[id]
            listeners.discard(news)
            if not listeners:
                del self._waiting[id]

    async def _poll(self) -> None:
        while self._waiting:
            try:
                fits = await asyncio.to_thread(self._read, list(self._waiting))
            except Exception as error:  # noqa: BLE001 - the database may be away for a while
                _log.warning("fits_not_read", error=type(error).__name__)
                fits = []
            for fit in fits:
                for news in self._waiting.get(fit.id, ()):
                    _tell(news, fit)
            await asyncio.sleep(POLL_SECONDS)

    def _read(self, ids: list[str]) -> list[Fit]:
        with self._database.read() as store:
            return store.fits.several(ids)


def _tell(news: asyncio.Queue[Fit | None], fit: Fit | None) -> None:
    if news.full():  # who reads slowly gets the latest only
        news.get_nowait()
    news.put_nowait(fit)
