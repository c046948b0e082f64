"""Event streams of one fit with many clients: one text per change, one stream per turn."""

from __future__ import annotations

import asyncio

import pytest
from helpers.fit_fixtures import Place

from service.access.permissions import Principal, Scope
from service.fits import service as fits
from service.fits.event_stream import MAX_EVENTS, event_of, event_stream
from service.fits.service import FitWatcher
from service.http.middleware.fair_turns import TURN, Turn, Turns
from service.storage.records import FitStatus

pytestmark = pytest.mark.both_backends

STREAMS = 40


def test_streams_of_a_caller_take_turns_and_share_the_text(place: Place) -> None:
    started = place.start_fit(place.dataset(), ("temperature", {}))
    caller = Principal(place.workspace, "tests", frozenset({Scope.FIT}))
    with place.database.write() as store:
        fit = fits.cancel(store, caller, started.id)
    assert fit.status is FitStatus.CANCELLED
    turns, seen, texts = Turns(), [], []

    async def follow() -> None:
        scope = {TURN: Turn(turns, "workspace a")}
        async for text in event_stream(watcher, fit, lambda: None, scope):
            seen.append(turns.number)
            texts.append(text)

    async def follow_all() -> None:
        await asyncio.gather(*(follow() for _ in range(STREAMS)))
        await watcher.close()

    watcher = FitWatcher(place.database)
    asyncio.run(follow_all())
    assert len(set(seen)) == len(seen) == STREAMS
    assert len({id(text) for text in texts}) == 1
    assert texts[0].startswith("event: cancelled\ndata: {")


def test_texts_of_few_fits_are_kept(place: Place) -> None:
    dataset = place.dataset()
    all_fits = [place.start_fit(dataset, ("temperature", {})) for _ in range(MAX_EVENTS + 1)]
    first = event_of(all_fits[0])
    assert event_of(all_fits[0]) is first
    for one in all_fits[1:]:
        assert one.id in event_of(one)
    assert event_of(all_fits[0]) is not first
    assert event_of(all_fits[0]) == first
