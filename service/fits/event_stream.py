"""Server-sent events for the changes of a fit."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable

from service.errors import Unauthenticated
from service.fits.schemas import FitOut
from service.fits.service import FitWatcher
from service.storage.records import Fit

KEEPALIVE_SECONDS = 15.0
CHECK_SECONDS = 1.5  # how soon a stream notices that its key was revoked


async def event_stream(
    watcher: FitWatcher, fit: Fit, check: Callable[[], None]
) -> AsyncIterator[str]:
    """Yield an event for each change, until the fit ends or ``check`` raises Unauthenticated."""
    changes = watcher.changes_of(fit)
    coming = asyncio.ensure_future(anext(changes, None))
    quiet_seconds = 0.0
    try:
        while _is_authorized(check):
            done, _ = await asyncio.wait([coming], timeout=CHECK_SECONDS)
            quiet_seconds = 0.0 if done else quiet_seconds + CHECK_SECONDS
            if quiet_seconds >= KEEPALIVE_SECONDS:
                quiet_seconds = 0.0
                yield ": keep-alive\n\n"
            if not done:
                continue
            current = coming.result()
            if current is None:
                return
            text = json.dumps(FitOut.of(current).model_dump(mode="json"))
            yield f"event: {current.status}\ndata: {text}\n\n"
            coming = asyncio.ensure_future(anext(changes, None))
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)
        await changes.aclose()


def _is_authorized(check: Callable[[], None]) -> bool:
    try:
        check()
    except Unauthenticated:
        return False
    return True
