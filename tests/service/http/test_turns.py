"""Fair turns on the event loop."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from service.access.permissions import Principal, Scope
from service.http.middleware.body_limits import BodyGuard
from service.http.middleware.fair_turns import ADDRESS, TURN, Turn, Turns
from service.http.middleware.request_limits import (
    MAX_RUNNING_WITHOUT_KEY,
    SLOT,
    CallerLoad,
    RequestLimits,
    Slot,
    ThreadLimits,
    WorkspaceLoad,
    waiting,
)


def test_requests_of_one_caller_begin_in_different_turns_of_the_loop() -> None:
    turns, begun = Turns(), []

    async def request(owner: str) -> None:
        await Turn(turns, owner).take()
        begun.append((turns.number, owner))

    async def run() -> None:
        await asyncio.gather(*(request("many") for _ in range(5)), request("one"))

    asyncio.run(run())
    assert len({number for number, owner in begun if owner == "many"}) == 5
    assert begun.index((begun[0][0], "one")) <= 1  # it does not wait for the others


def test_callers_without_a_key_share_their_turns() -> None:
    turns, begun = Turns(), []

    async def request(owner: str) -> None:
        await Turn(turns, owner).take()
        begun.append((turns.number, owner))

    async def run() -> None:
        addresses = [f"{ADDRESS}10.0.0.{number}" for number in range(50)]
        owners = [*addresses, addresses[0], addresses[0], "workspace a"]
        await asyncio.wait_for(asyncio.gather(*map(request, owners)), 10)

    asyncio.run(run())
    place = next(number for number, owner in begun if owner == "workspace a")
    assert place == begun[0][0]  # it waits for none of them
    of_addresses = [number for number, owner in begun if owner != "workspace a"]
    assert len(set(of_addresses)) == len(of_addresses) == 52
    assert [owner for _, owner in begun[-2:]] == [f"{ADDRESS}10.0.0.0"] * 2  # the others were first


def test_a_request_takes_no_second_turn_while_it_has_one() -> None:
    turns = Turns()

    async def run() -> list[bool]:
        mine = Turn(turns, "a")
        waits = []
        for pause in (False, False, True):
            if pause:
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            before = turns.number
            await mine.take()
            waits.append(turns.number != before)
        return waits

    assert asyncio.run(run()) == [False, False, False]


def test_a_caller_that_left_delays_no_one() -> None:
    turns, begun = Turns(), []

    async def request(number: int) -> None:
        await Turn(turns, "a").take()
        begun.append(number)

    async def run() -> None:
        tasks = [asyncio.create_task(request(number)) for number in range(4)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        tasks[2].cancel()
        await asyncio.wait_for(tasks[3], 5)

    asyncio.run(run())
    assert begun == [0, 3]


def test_waits_that_end_together_continue_one_after_another() -> None:
    turns, went_on = Turns(), []

    async def request(load: CallerLoad, event: asyncio.Event) -> None:
        scope = {SLOT: Slot(load), TURN: Turn(turns, "many")}
        async with waiting(scope, 50):
            await event.wait()
        went_on.append(turns.number)

    async def run() -> CallerLoad:
        event, load = asyncio.Event(), CallerLoad(WorkspaceLoad((asyncio.Semaphore(1),)))
        tasks = [asyncio.create_task(request(load, event)) for _ in range(40)]
        await asyncio.sleep(0)
        event.set()
        await asyncio.gather(*tasks)
        return load

    assert asyncio.run(run()).waits == 0
    assert len(set(went_on)) == len(went_on) == 40


def test_waiting_for_a_disconnect_takes_no_thread() -> None:
    async def run() -> int:
        workspace = WorkspaceLoad((asyncio.Semaphore(2),))
        slots = [Slot(CallerLoad(workspace)) for _ in range(10)]
        for slot in slots:
            await slot.run()
            slot.answer()
            await slot.run()  # for the end of its empty body, while a slow reader reads
        return workspace.threads[0]._value

    assert asyncio.run(asyncio.wait_for(run(), 5)) == 2


@pytest.mark.parametrize("last", ["http.request", "http.disconnect"])
@pytest.mark.parametrize("size", [2, 1 << 20])
def test_bodies_that_end_together_are_handled_one_after_another(last: str, size: int) -> None:
    turns, handled = Turns(), []

    async def app(_scope: Any, receive: Any, _send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        handled.append(turns.number)

    async def request(guard: BodyGuard, event: asyncio.Event) -> None:
        async def receive() -> dict[str, Any]:
            await event.wait()
            return {"type": last, "body": b"a"}

        async def send(_: Any) -> None:
            raise AssertionError("nothing is refused")

        headers = [(b"content-length", b"%d" % size)]
        scope = {"type": "http", "method": "POST", "path": "/docs", "headers": headers}
        await guard({**scope, TURN: Turn(turns, "one")}, receive, send)

    async def run() -> None:
        event, guard = asyncio.Event(), BodyGuard(app, lambda _: 1 << 30, 60, 1)
        tasks = [asyncio.create_task(request(guard, event)) for _ in range(40)]
        await asyncio.sleep(0)
        event.set()
        await asyncio.gather(*tasks)

    asyncio.run(run())
    assert len(set(handled)) == len(handled) == 40


def test_callers_without_a_key_use_few_threads_from_however_many_addresses() -> None:
    """Each address used to have four threads of its own, so ten addresses took all of them."""
    running, most, done = 0, 0, asyncio.Event()

    async def app(scope: Any, _receive: Any, _send: Any) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if "principal" not in scope:
            await done.wait()
        running -= 1

    async def run() -> int:
        limits = RequestLimits(ThreadLimits(app), 256)

        def request(address: str, **more: Any) -> asyncio.Task[None]:
            scope = {"type": "http", "method": "POST", "path": "/sign-in", "client": (address, 1)}
            return asyncio.create_task(limits({**scope, **more}, None, None))

        tasks = [request(f"10.0.0.{n}") for n in range(50)]
        await asyncio.sleep(0.05)
        found = most
        key = Principal("w", "key", frozenset(Scope), "k")
        await asyncio.wait_for(request("10.0.0.1", principal=key), 5)
        done.set()
        await asyncio.gather(*tasks)
        return found

    assert asyncio.run(run()) == MAX_RUNNING_WITHOUT_KEY
