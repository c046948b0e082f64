"""SQLite writers take turns: a busy workspace delays others by at most one write."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from pathlib import Path

import pytest
from helpers.live_service import Local
from helpers.registration import temperature_registration
from sqlalchemy import text

from service.errors import Unavailable
from service.storage import database as module
from service.storage import write_turns
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


def test_a_writer_that_times_out_delays_no_one(
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


WRITER = """
import sys
import threading
import time
from sqlalchemy import text
from service.storage.database import Database

database = Database(sys.argv[1])

def write():
    while True:
        with database.write() as store:
            store.session.execute(text("INSERT INTO writes VALUES (1)"))
            time.sleep(0.005)

for _ in range(4):
    threading.Thread(target=write).start()
"""


@contextmanager
def busy_writer(database: Database) -> Iterator[subprocess.Popen[bytes]]:
    """Run another process that writes to the database without a pause."""
    with database.write() as store:
        store.session.execute(text("CREATE TABLE writes (one INTEGER)"))
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(database.url)])
    try:
        until(lambda: written(database) > 20, 30.0)
        yield process
    finally:
        process.kill()
        process.wait()


def written(database: Database) -> int:
    with database.read() as store:
        return int(store.session.scalar(text("SELECT count(*) FROM writes")) or 0)


def test_a_process_waits_for_few_writes_of_another_process(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'shared.db'}")
    overtaken = []
    with busy_writer(database):
        for _ in range(60):
            before = written(database)
            with database.write() as store:
                store.session.execute(text("INSERT INTO writes VALUES (2)"))
                overtaken.append(written(database) - before)
            time.sleep(0.005)
    database.close()
    assert sorted(overtaken)[50] <= 4


def test_a_process_stopped_while_waiting_does_not_block_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_turns, "GATE_SECONDS", 0.05)
    file = tmp_path / "some.db"
    with Path(f"{file}.gate").open("ab") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        with WriteTurns(file).turn(5.0):
            pass
        with (
            WriteTurns(file).turn(5.0),
            pytest.raises(TimeoutError),
            WriteTurns(file).turn(0.1),
        ):
            pass


def test_a_killed_process_gives_up_its_turn_and_a_stopped_one_makes_others_time_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database(f"sqlite:///{tmp_path / 'shared.db'}")
    with busy_writer(database) as process:
        refused = 0
        with monkeypatch.context() as patched:
            patched.setattr(module, "BUSY_SECONDS", 0.1)
            for _ in range(20):  # stopped at a random moment: usually while it holds the turn
                os.kill(process.pid, signal.SIGSTOP)
                try:
                    with database.write():
                        pass
                except Unavailable:
                    refused += 1
                os.kill(process.pid, signal.SIGCONT)
                time.sleep(0.01)
        assert refused > 0
        os.kill(process.pid, signal.SIGSTOP)
        process.kill()
        with database.write():
            pass
    database.close()


def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)
