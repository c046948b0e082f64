"""Steps of many ranks delay neither writers nor callers who wait for another run."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from helpers.fit_fixtures import Place
from helpers.run_posts import post

from calibrators.adafocal import BinStatistics
from service.access.permissions import Principal, Scope
from service.runs import watcher as run_watcher
from service.runs.repository import RunSteps, SessionKey
from service.runs.service import SentStatistics
from service.runs.sessions import Opening, open_session
from service.runs.watcher import RunWatcher
from service.storage.database import Database

pytestmark = pytest.mark.both_backends


def principal(place: Place) -> Principal:
    return Principal(place.workspace, "tests", frozenset({Scope.FIT}))


def opened(place: Place, name: str, merge_timeout: float = 60.0) -> SessionKey:
    asked = Opening(name, "monitor", None, 2, "service", merge_timeout, "a", None, None, {}, "")
    with place.database.write() as store:
        made = open_session(store, principal(place), asked)
    return SessionKey(made.run.id, made.session.number)


def send(place: Place, name: str, rank: int) -> None:
    statistics = BinStatistics.from_confidences([0.9], [True])
    post(place.database, principal(place), name, SentStatistics("a", 1, rank, statistics, None))


def test_ranks_are_listed_without_the_write_lock(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(place, "job")
    listed: list[int] = []
    ranks = RunSteps.ranks

    def ranks_while_others_write(self: RunSteps, *args: object) -> list[int]:
        with place.database.write() as store:
            store.keys.add_workspace(f"meanwhile-{len(listed)}")
        found = ranks(self, *args)
        listed.extend(found)
        return found

    monkeypatch.setattr(RunSteps, "ranks", ranks_while_others_write)
    send(place, "job", 0)
    assert listed == [0]


def test_a_long_merge_does_not_delay_callers_waiting_for_another_run(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, quick = opened(place, "slow", merge_timeout=1.0), opened(place, "quick")
    send(place, "slow", 0)
    time.sleep(1.1)  # now it is due
    release, merging = threading.Event(), threading.Event()

    def decide(_: Database, key: SessionKey, *, wait: float) -> bool:
        assert key == slow
        merging.set()
        return release.wait(30)

    monkeypatch.setattr(run_watcher, "decide", decide)

    async def wait_for_both() -> tuple[int, float]:
        watcher = RunWatcher(place.database)
        attack = asyncio.create_task(watcher.beyond(slow, "attacker", 0, 0, 20))
        assert await asyncio.to_thread(merging.wait, 10)
        waits = asyncio.create_task(watcher.beyond(quick, "victim", 0, 0, 20))
        for rank in (0, 1):
            await asyncio.to_thread(send, place, "quick", rank)
        began = time.monotonic()
        step = await waits
        seconds = time.monotonic() - began
        attack.cancel()
        release.set()
        await asyncio.gather(attack, return_exceptions=True)
        await watcher.close()
        return step, seconds

    step, seconds = asyncio.run(wait_for_both())
    assert step == 1
    assert seconds < 5
