"""Writers of SQLite take turns: a workspace that writes much delays others by one write."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextvars import copy_context
from pathlib import Path

import pytest
from helpers.live_service import Local
from helpers.registration import temperature_registration

from service.errors import Unavailable
from service.storage import database as module
from service.storage.database import Database
from service.storage.write_turns import OWNER, WriteTurns


def waiting(turns: WriteTurns) -> int:
    return sum(map(len, turns._waiting.values()))


def test_owners_take_turns_and_calls_of_one_keep_their_order() -> None:
    turns = WriteTurns()
    order: list[str] = []
    threads = []

    def write(name: str) -> None:
        OWNER.set(name[0])
        with turns.turn(10):
            order.append(name)

    with turns.turn(10):
        for count, name in enumerate(("a1", "a2", "a3", "a4", "b1", "c1", "b2")):
            threads.append(threading.Thread(target=copy_context().run, args=(write, name)))
            threads[-1].start()
            until(lambda count=count: waiting(turns) == count + 1)
    for thread in threads:
        thread.join(10)
    assert order == ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]
    with turns.turn(0):
        pass


def test_who_waits_too_long_leaves_and_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database(f"sqlite:///{tmp_path / 'some.db'}")
    monkeypatch.setattr(module, "BUSY_SECONDS", 0.05)
    with database.write(), pytest.raises(Unavailable) as refused, database.write():
        pass
    assert refused.value.code == "database_busy"
    with database.write():
        pass
    database.close()


def test_a_write_is_of_its_callers_workspace(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    owners: list[str] = []
    take = WriteTurns._take
    monkeypatch.setattr(
        WriteTurns,
        "_take",
        lambda self, owner, seconds: owners.append(owner) or take(self, owner, seconds),
    )
    assert local.post("/v1/runs", json={"name": "job", "kind": "monitor"}).is_success
    body = temperature_registration(2.0)
    assert local.post("/v1/calibrators/a/versions", json=body).is_success
    assert owners
    assert all(one.startswith("ws_") for one in owners)


def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)
