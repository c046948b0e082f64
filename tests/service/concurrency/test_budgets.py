"""Limits for one caller: threads, memory, and the cost of JSON."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time

import numpy as np
import pytest
from starlette.types import Message, Receive, Scope, Send

from service.access.permissions import Principal
from service.access.permissions import Scope as ScopeOf
from service.app import MAX_SMALL_JSON_BYTES
from service.concurrency.memory_budget import (
    MAX_WAITING,
    CallHold,
    CallMemory,
    MemoryBudget,
    MemoryHold,
)
from service.concurrency.thread_pools import SPARE_AFTER, FairExecutor
from service.datasets.formats import csv_text
from service.errors import Invalid, TooLarge, TooMany
from service.http import json_body
from service.http.middleware.body_memory import BodyMemory, is_streamed


def test_one_owner_leaves_a_thread_to_the_others():
    async def check() -> None:
        executor, blocked = FairExecutor("test", 2), threading.Event()
        slow = [asyncio.create_task(executor.run("one", blocked.wait, 30)) for _ in range(5)]
        await asyncio.sleep(0.05)
        assert await asyncio.wait_for(executor.run("other", lambda: "answered"), 10) == "answered"
        blocked.set()
        assert await asyncio.gather(*slow) == [True] * 5
        executor.close()

    asyncio.run(check())


def test_an_owner_with_too_many_calls_is_refused_until_some_have_ended():
    async def check() -> None:
        executor, blocked = FairExecutor("test", 2, most_waiting=3), threading.Event()
        slow = [asyncio.create_task(executor.run("one", blocked.wait, 30)) for _ in range(3)]
        await asyncio.sleep(0.05)
        with pytest.raises(TooMany):
            await executor.run("one", int)
        blocked.set()
        await asyncio.gather(*slow)
        assert await executor.run("one", lambda: 7) == 7
        assert not executor._owners
        executor.close()

    asyncio.run(check())


def test_a_thread_that_ends_while_a_caller_leaves_is_free_for_the_next():
    async def check() -> None:
        executor, blocked = FairExecutor("test", 2), threading.Event()
        slow = [asyncio.create_task(executor.run(one, blocked.wait, 30)) for one in "ab"]
        await asyncio.sleep(0.05)
        leaving = asyncio.create_task(executor.run("c", int))
        await asyncio.sleep(0.05)
        leaving.cancel()
        executor._end()  # a thread ends in the same pass of the loop
        executor._running += 1
        blocked.set()
        await asyncio.gather(*slow)
        for owner in "abc":
            assert await asyncio.wait_for(executor.run(owner, int), 10) == 0
        assert (executor._running, len(executor._waiting), executor._owners) == (0, 0, {})
        executor.close()

    asyncio.run(check())


def test_a_caller_that_left_keeps_its_thread_until_the_call_has_ended():
    async def check() -> None:
        executor, blocked = FairExecutor("test", 2), threading.Event()
        left = asyncio.create_task(executor.run("one", blocked.wait, 30))
        await asyncio.sleep(0.05)
        left.cancel()
        waiting = asyncio.create_task(executor.run("one", lambda: "next"))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        blocked.set()
        assert await asyncio.wait_for(waiting, 10) == "next"
        executor.close()

    asyncio.run(check())


def test_owners_that_fill_all_threads_do_not_block_others():
    async def check() -> None:
        executor, blocked = FairExecutor("test", 2), threading.Event()
        names = ("one", "two", "three")
        slow = [asyncio.create_task(executor.run(name, blocked.wait, 30)) for name in names]
        await asyncio.sleep(0.05)
        asked = time.monotonic()
        assert await asyncio.wait_for(executor.run("other", lambda: "answered"), 10) == "answered"
        assert time.monotonic() - asked < SPARE_AFTER + 5
        assert not blocked.is_set()
        blocked.set()
        assert await asyncio.gather(*slow) == [True] * 3
        assert await executor.run("other", lambda: "again") == "again"
        assert not executor._running
        executor.close()

    asyncio.run(check())


def test_a_timer_that_fires_a_moment_early_still_brings_a_spare_thread():
    """The clocks of event loops are rounded, so the time that passed may seem a little shorter."""

    async def check() -> None:
        loop, executor, blocked = (
            asyncio.get_running_loop(),
            FairExecutor("test", 1),
            threading.Event(),
        )
        slow = asyncio.create_task(executor.run("one", blocked.wait, 30))
        await asyncio.sleep(0.05)
        call_later = loop.call_later
        loop.call_later = lambda delay, *call: call_later(delay - 0.1, *call)  # type: ignore[method-assign]
        try:
            assert await asyncio.wait_for(executor.run("other", int), SPARE_AFTER + 5) == 0
        finally:
            blocked.set()
        assert await slow
        executor.close()

    asyncio.run(check())


def test_a_caller_that_leaves_while_it_waits_for_a_thread_takes_none():
    async def check() -> None:
        executor, blocked = FairExecutor("test", 1), threading.Event()
        slow = asyncio.create_task(executor.run("one", blocked.wait, 30))
        await asyncio.sleep(0.05)
        waiting = asyncio.create_task(executor.run("two", lambda: "never"))
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert not executor._waiting
        blocked.set()
        await slow
        assert await executor.run("two", lambda: "next") == "next"
        executor.close()

    asyncio.run(check())


def test_memory_is_waited_for_and_given_back():
    async def check() -> None:
        budget, order = MemoryBudget(100, wait_seconds=20), []

        async def call(owner: str, size: int, release: asyncio.Event) -> None:
            hold = MemoryHold(budget, owner)
            await hold.grow_to(size // 2)
            await hold.grow_to(size)
            order.append(owner)
            await release.wait()
            hold.release()

        first, second = asyncio.Event(), asyncio.Event()
        tasks = [asyncio.create_task(call("a", 40, first))]
        await asyncio.sleep(0)
        # more than its half: it waits, while another owner continues
        tasks.append(asyncio.create_task(call("a", 40, second)))
        tasks.append(asyncio.create_task(call("b", 50, second)))
        await asyncio.sleep(0.05)
        assert order == ["a", "b"]
        first.set()
        second.set()
        await asyncio.gather(*tasks)
        assert order == ["a", "b", "a"]
        assert budget.held == 0

    asyncio.run(check())


def test_a_call_larger_than_its_share_runs_alone_and_leaves_the_others_theirs():
    async def check() -> None:
        budget = MemoryBudget(100, wait_seconds=0.05)
        large, second = MemoryHold(budget, "a"), MemoryHold(budget, "a")
        await large.grow_to(500)
        with pytest.raises(TooMany):
            await second.grow_to(10)
        await MemoryHold(budget, "b").grow_to(500)
        large.release()
        await second.grow_to(10)
        assert budget.held == 60

    asyncio.run(check())


def test_calls_of_one_owner_beyond_a_number_do_not_wait():
    async def check() -> None:
        budget = MemoryBudget(100, wait_seconds=20)
        first = MemoryHold(budget, "a")
        await first.grow_to(50)
        waiting = [
            asyncio.create_task(MemoryHold(budget, "a").grow_to(1)) for _ in range(MAX_WAITING)
        ]
        await asyncio.sleep(0)
        with pytest.raises(TooMany):
            await asyncio.wait_for(MemoryHold(budget, "a").grow_to(1), 5)
        await MemoryHold(budget, "b").grow_to(1)
        first.release()
        await asyncio.gather(*waiting[:50])
        for one in waiting:
            one.cancel()

    asyncio.run(check())


def test_finished_responses_that_wait_for_memory_have_a_limit_of_their_own():
    """A caller that reads nothing gets its share twice: sent and waiting to be sent."""
    memory, size = CallMemory(1 << 22), 1 << 17
    share = memory.answers.share // size
    began: list[int] = []
    unread = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-length", b"%d" % size)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": bytes(size)})

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            began.append(message["status"])
        elif len(message["body"]) == size:
            await unread.wait()

    async def check() -> None:
        guarded = BodyMemory(app, memory)
        principal = Principal("ws", "tests", frozenset(ScopeOf))
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/",
            "headers": [],
            "principal": principal,
        }
        calls = [asyncio.create_task(guarded(dict(scope), receive, send)) for _ in range(20)]
        await asyncio.sleep(0.1)
        assert sorted(began) == [200] * share + [429] * (20 - 2 * share)
        unread.set()
        await asyncio.gather(*calls)
        assert sorted(began) == [200] * 2 * share + [429] * (20 - 2 * share)
        assert not memory.answers.held

    asyncio.run(check())


def test_a_call_that_is_cancelled_while_it_waits_holds_nothing():
    async def check() -> None:
        budget = MemoryBudget(100)
        first, second = MemoryHold(budget, "a"), MemoryHold(budget, "a")
        await first.grow_to(50)
        waiting = asyncio.create_task(second.grow_to(50))
        await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        first.release()
        assert budget.held == 0

    asyncio.run(check())


def test_small_calls_do_not_overtake_a_large_one_forever():
    async def check(in_order: bool) -> bool:
        budget = MemoryBudget(100, in_order=in_order, wait_seconds=0.3)

        async def many_small_calls(owner: str) -> None:
            for _ in range(100):
                hold = MemoryHold(budget, owner)
                await hold.grow_to(30)
                await asyncio.sleep(0.01)
                hold.release()

        small = []
        for owner in "abc":
            small.append(asyncio.create_task(many_small_calls(owner)))
            await asyncio.sleep(0.005)
        large = MemoryHold(budget, "large")
        try:
            await large.grow_to(50)
        except TooMany:
            return False
        finally:
            large.release()
            for one in small:
                one.cancel()
            await asyncio.gather(*small, return_exceptions=True)
        return True

    assert asyncio.run(check(in_order=True))
    assert not asyncio.run(check(in_order=False))


def test_calls_that_time_out_or_leave_while_being_admitted_hold_nothing():
    async def check() -> None:
        loop = asyncio.get_running_loop()
        for delay in np.linspace(0.008, 0.012, 60):
            budget = MemoryBudget(100, wait_seconds=0.01)
            first = MemoryHold(budget, "a")
            await first.grow_to(50)
            holds = [MemoryHold(budget, "a") for _ in range(4)]
            waiting = [asyncio.create_task(one.grow_to(20)) for one in holds]
            loop.call_later(delay, first.release)
            loop.call_later(delay, waiting[0].cancel)
            ended = await asyncio.gather(*waiting, return_exceptions=True)
            kinds = {type(one) for one in ended}
            assert kinds <= {type(None), TooMany, asyncio.CancelledError}, ended
            for one in (first, *holds):
                one.release()
            assert budget.held == 0

    asyncio.run(check())


def test_owners_take_turns_in_a_budget():
    async def check() -> None:
        budget, order = MemoryBudget(100, in_order=True, wait_seconds=20), []

        async def call(owner: str) -> None:
            hold = MemoryHold(budget, owner)
            await hold.grow_to(50)
            order.append(owner)
            await asyncio.sleep(0.005)
            hold.release()

        calls = [asyncio.create_task(call(owner)) for owner in "aaaaab"]
        await asyncio.gather(*calls)
        assert order.index("b") <= 2
        assert budget.held == 0

    asyncio.run(check())


def test_slow_bodies_and_responses_of_one_caller_leave_room_for_the_largest_of_another():
    async def check() -> None:
        memory = CallMemory(256, wait_seconds=0.05)
        holds = []
        for _ in range(20):
            slow = CallHold(memory, "slow")
            with contextlib.suppress(TooMany):
                await slow.body.grow_to(10)
                await slow.answer.grow_to(10)
            holds.append(slow)
        other = CallHold(memory, "other")
        await other.body.grow_to(32)
        await other.work.grow_to(160)
        assert other.answer.grow_now(32)
        for one in (*holds, other):
            one.release()
        assert memory.bodies.held == memory.work.held == memory.answers.held == 0

    asyncio.run(check())


@pytest.mark.parametrize(
    "text", [b"[" + b"0," * 2_000_000 + b"0]", b"[" + b"{}," * 500_000 + b"{}]"]
)
def test_json_of_too_many_values_is_refused_before_it_is_parsed(text):
    with pytest.raises(TooLarge) as refused:
        json_body.parse(text)
    assert refused.value.code == "too_many_values"


def test_json_of_many_values_within_the_budget_is_read():
    assert len(json_body.parse(b"[" + b"0.25," * 999_999 + b"0]")) == 1_000_000


@pytest.mark.parametrize("text", [b"[" * 100 + b"]" * 100, b'{"a":' * 40 + b"[]" + b"}" * 40])
def test_depth_is_checked_before_a_large_text_is_parsed(text):
    blanks = b" " * (1 << 16)
    with pytest.raises(Invalid, match="32 levels deep"):
        json_body.parse(b"[" + blanks + text + b"]")
    assert json_body.parse(b"[" + blanks + b"[[{}],[]]," * 9999 + b"0]")


def test_brackets_in_texts_are_not_counted():
    names = b",".join([b'"[0, 10)"', rb'"\\"', rb'"\"["'] * 9999)
    assert len(json_body.parse(b"[" + names + b"]")) == 29_997
    hidden = b'["' + b"]" * 600 + b'",' + b" " * (1 << 16)
    with pytest.raises(Invalid, match="32 levels deep"):
        json_body.parse(hidden + b"[" * 500 + b"]" * 500 + b"]")


@pytest.mark.parametrize("size", [1 << 16, (1 << 20) - 1, 1 << 20, (1 << 20) + 1])
def test_texts_that_end_anywhere_in_a_block_are_left_out(size):
    text = b'["' + rb"\\" * (size // 2) + b"[" * 40 + b'",[]]'
    assert json_body.parse(text)[1] == []


def test_lists_cost_more_than_numbers():
    assert len(json_body.parse(b"[" + b"[0]," * 200_000 + b"[0]]")) == 200_001
    with pytest.raises(TooLarge):
        json_body.parse(b"[" + b"[0]," * 300_000 + b"[0]]")


def test_depth_and_width_of_a_document_are_limited():
    document: list = []
    for _ in range(100):
        document = [document]
    with pytest.raises(Invalid):
        json_body.check_shape(document, 1000)
    with pytest.raises(TooLarge):
        json_body.check_shape({"a": [0] * 2000}, 1000)
    json_body.check_shape({"a": [[0] * 10] * 10}, 1000)


@pytest.mark.parametrize("row", [b"1," * 300_000, b'"\n",' * 300_000])
def test_a_csv_row_of_too_many_cells_is_refused(row):
    with pytest.raises(TooLarge):
        csv_text.decode(b"logit_0,logit_1,label\n" + row)


ARRAYS = b"application/x-npz"


@pytest.mark.parametrize(
    ("request_line", "type", "expected"),
    [
        ("POST /v1/datasets", ARRAYS, True),
        ("PUT /v1/datasets/ds_1/parts/12", ARRAYS, True),
        ("POST /v1/calibrators/a/fits", ARRAYS, True),
        ("POST /v1/calibrators/a/fits", b"Application/JSON; charset=utf-8", False),
        ("POST /v1/datasets/ds_1/commit", ARRAYS, False),
        ("POST /v1/datasets/ds_1/parts/presigned", ARRAYS, False),
        ("PATCH /v1/runs/fits", ARRAYS, False),
        ("PUT /v1/calibrators/m/aliases/fits", ARRAYS, False),
        ("PUT /v1/calibrators/parts/aliases/1", ARRAYS, False),
    ],
)
def test_only_bodies_written_to_disk_are_exempt_from_the_memory_budget(
    request_line: str, type: bytes, expected: bool
) -> None:
    """All bodies below /v1/datasets used to be exempt, and those of runs named "fits"."""
    method, path = request_line.split()
    scope = {"method": method, "path": path, "headers": [(b"content-type", type)]}
    assert is_streamed(scope) == expected


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PATCH", "/v1/runs/fits"),
        ("PATCH", "/v1/runs/versions"),
        ("PATCH", "/v1/runs/predict"),
        ("PUT", "/v1/calibrators/parts/aliases/a"),
        ("PUT", "/v1/calibrators/m/aliases/fits"),
        ("POST", "/v1/calibrators/fits/aliases/infer/rollback"),
        ("PATCH", "/v1/calibrators/fits/versions/1"),
        ("POST", "/v1/datasets/fits/commit"),
    ],
)
def test_names_in_a_path_do_not_raise_the_limit_of_its_body(local, method: str, path: str) -> None:
    """One PATCH of a run named "fits" with 1.2 GB took 2.4 GB and held the event loop."""
    refused = local.request(
        method, path, content=b" " * (MAX_SMALL_JSON_BYTES + 1), headers={"Content-Type": "a/b"}
    )
    assert (refused.status_code, refused.json()["code"]) == (413, "body_too_large")


@pytest.mark.parametrize("blank", ["\u00a0", "\u0085", "\u001f"])
def test_a_body_is_read_as_the_type_that_its_limit_was_chosen_for(local, blank: str) -> None:
    """A no-break space before the type gave a JSON body the limit of a dataset, 4 GiB in memory."""
    type = f"{blank}application/json".encode("latin-1")
    for path in ("/v1/calibrators/a/fits?method=temperature", "/v1/datasets"):
        answer = local.post(path, content=b'{"logits": []}', headers={b"Content-Type": type})
        assert answer.status_code in (400, 415), answer.text
