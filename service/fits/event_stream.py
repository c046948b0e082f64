"""Server-sent events for changes of a fit."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable

from starlette.types import Scope

from service.errors import Unauthenticated
from service.fits.schemas import FitOut
from service.fits.service import FitWatcher
from service.http.middleware.fair_turns import take_turn
from service.storage.records import Fit

KEEPALIVE_SECONDS = 15.0
CHECK_SECONDS = 1.5  # how soon a stream notices a revoked key
MAX_EVENTS = 64

_events: dict[int, tuple[Fit, str]] = {}


async def event_stream(
    watcher: FitWatcher, fit: Fit, check: Callable[[], None], scope: Scope
) -> AsyncIterator[str]:
    """Yield an event for each change, until the fit ends or ``check`` raises Unauthenticated.

    A caller's streams take turns, so that sending an event to hundreds of them does not block the
    event loop.
    """
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
            await take_turn(scope)
            yield event_of(current)
            coming = asyncio.ensure_future(anext(changes, None))
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)
        await changes.aclose()


def event_of(fit: Fit) -> str:
    """Return the event text for the current state of a fit, shared by all streams."""
    known = _events.get(id(fit))
    if known is not None and known[0] is fit:
        return known[1]
    data = json.dumps(FitOut.of(fit).model_dump(mode="json"))
    text = f"event: {fit.status}\ndata: {data}\n\n"
    while len(_events) >= MAX_EVENTS:
        del _events[next(iter(_events))]
    _events[id(fit)] = fit, text
    return text


def _is_authorized(check: Callable[[], None]) -> bool:
    try:
        check()
    except Unauthenticated:
        return False
    return True
