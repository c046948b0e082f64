"""API replicas on one database: steps are decided once, and changes are visible at once."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from helpers.backends import Backend
from helpers.http_calls import good
from helpers.live_service import Local, in_process, within
from helpers.training_clients import SETTINGS, history, open_run, post, seen, state_of

from calibrators.adafocal import AdaFocalState, BinStatistics

pytestmark = pytest.mark.both_backends

RANKS = 6
STEPS = 4


@pytest.fixture(scope="module")
def replicas(
    backend: Backend, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Local, Local]]:
    settings = backend.settings(tmp_path_factory.mktemp("replicas"))
    with in_process(**settings) as first, in_process(**settings) as second:
        # an app makes its routes at its first request, which two in one process must not do at once
        for one in (first, second):
            assert one.get("/v1/runs").status_code == 200
        yield first, second


def expected() -> list[list[float]]:
    """Return the gammas of a run whose ranks observe the same data in every test."""
    state, found = AdaFocalState.begin(SETTINGS), []
    for step in range(1, STEPS + 1):
        parts = [seen(10 * step + rank) for rank in range(RANKS)]
        state = state.update(sum(parts, BinStatistics.empty()))
        found.append(state.gammas.tolist())
    return found


def test_ranks_that_post_at_the_same_time_get_one_decision(
    replicas: tuple[Local, Local],
) -> None:
    asked = {"world_size": RANKS, "decides": "service", "session": "a"}
    together = threading.Barrier(RANKS, timeout=30)

    def train(rank: int) -> list[list[float]]:
        found = []
        with httpx.Client(base_url=replicas[rank % 2].base_url, timeout=60) as client:
            together.wait()
            open_run(client, "race", **asked)
            for step in range(1, STEPS + 1):
                together.wait()
                posted = good(post(client, "race", "a", step, seen(10 * step + rank), rank=rank))
                current = posted
                if posted["status"] == "waiting":
                    current = state_of(client, "race", after=step - 1, wait=20, session="a")
                assert (current["step"], posted["late"]) == (step, False)
                found.append(current["state"]["gammas"])
        return found

    with ThreadPoolExecutor(RANKS) as pool:
        answers = list(pool.map(train, range(RANKS)))
    assert answers == [expected()] * RANKS
    assert [one["gammas"] for one in history(replicas[1], "race")] == expected()
    sessions = good(replicas[0].get("/v1/runs/race"))["sessions"]
    assert [one["id"] for one in sessions] == ["a"]


def test_the_same_post_twice_at_once_is_one(replicas: tuple[Local, Local]) -> None:
    open_run(replicas[0], "twice", kind="monitor", session="a")
    with ThreadPoolExecutor(4) as pool:
        answers = list(
            pool.map(lambda n: good(post(replicas[n % 2], "twice", "a", 1, seen(1))), range(4))
        )
    assert all(answer == answers[0] for answer in answers)
    assert answers[0]["status"] == "decided"


def test_waiting_callers_get_decisions_of_other_replicas_within_a_second(
    replicas: tuple[Local, Local],
) -> None:
    open_run(replicas[0], "news", kind="monitor", session="a")
    steps = itertools.count(1)

    def heard_after() -> float:
        step = next(steps)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(state_of, replicas[0], "news", after=step - 1, wait=30)
            time.sleep(0.3)
            assert not waiting.done()
            good(post(replicas[1], "news", "a", step, seen(step)))
            start = time.monotonic()
            assert waiting.result()["step"] == step
            return time.monotonic() - start

    within(1.0, heard_after)


def test_waiting_without_result_ends_with_a_response(replicas: tuple[Local, Local]) -> None:
    open_run(replicas[0], "calm", session="a")
    start = time.monotonic()
    found = state_of(replicas[0], "calm", after=0, wait=0.5)
    assert 0.5 <= time.monotonic() - start < 5
    assert (found["step"], found["metrics"]) == (0, None)
    # an earlier state is returned without waiting
    assert state_of(replicas[0], "calm", wait=30)["step"] == 0


def test_waiting_callers_get_a_step_after_its_timeout(
    replicas: tuple[Local, Local],
) -> None:
    asked = {"world_size": 2, "decides": "service", "merge_timeout": 0.4, "session": "a"}
    open_run(replicas[0], "partial", **asked)
    good(post(replicas[1], "partial", "a", 1, seen(1)))
    found = state_of(replicas[0], "partial", after=0, wait=30)
    assert (found["step"], found["partial"]) == (1, True)


def test_waiting_callers_delay_no_one(replicas: tuple[Local, Local]) -> None:
    """There are more waiting callers than threads."""
    open_run(replicas[0], "crowd", kind="monitor", session="a")

    async def wait_all() -> list[int]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(
            base_url=replicas[0].base_url, timeout=60, limits=limits
        ) as client:
            url = "/v1/runs/crowd/state?after=0&wait=30"
            waiting = [asyncio.create_task(client.get(url)) for _ in range(80)]
            await asyncio.sleep(1.0)
            assert not any(task.done() for task in waiting)
            start = time.monotonic()
            await asyncio.to_thread(post, replicas[0], "crowd", "a", 1, seen(1))
            assert time.monotonic() - start < 15, "behind those who wait it would take 29 s"
            return [answer.json()["step"] for answer in await asyncio.gather(*waiting)]

    assert asyncio.run(wait_all()) == [1] * 80
