"""Steps of many ranks: merging delays nobody, and races end in a single decision."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.backends import Embedded
from helpers.fit_fixtures import Place
from helpers.live_service import wait_until
from helpers.run_posts import post
from sqlalchemy import event, func, select

from calibrators.adafocal import BinStatistics
from calibrators.adafocal.statistics import EXACT_ROWS
from service.access.permissions import Principal, Scope
from service.errors import Unavailable
from service.runs import watcher as watcher_module
from service.runs.repository import AT_ONCE
from service.runs.service import RELEASED_AT_ONCE, SentStatistics, advance
from service.runs.sessions import Opening, open_session
from service.runs.watcher import Merges, RunWatcher, release_merged
from service.storage.database import Database
from service.storage.records import RunSession, RunStep, SessionKey
from service.storage.run_tables import run_statistics, run_steps

pytestmark = pytest.mark.both_backends

MANY_RANKS = 1700
# it was 14 s before; on an idle machine it is a few milliseconds
LONGEST_WAIT = 3.0


def rows(count: int) -> BinStatistics:
    """Return statistics of this many rows."""
    return BinStatistics.from_confidences(np.full(count, 0.9), np.ones(count, dtype=bool))


def caller(place: Place) -> Principal:
    return Principal(place.workspace, "tests", frozenset({Scope.FIT}))


def opened(
    place: Place,
    ranks: int,
    merge_timeout: float = 3600.0,
    *,
    name: str = "job",
    workspace: str | None = None,
) -> RunSession:
    """Open a monitor's session in which the service decides."""
    asked = Opening(name, "monitor", None, ranks, "service", merge_timeout, "a", None, None, {}, "")
    by = Principal(workspace or place.workspace, "tests", frozenset({Scope.FIT}))
    with place.database.write() as store:
        return open_session(store, by, asked).session


def record(database: Database, session: RunSession, ranks: range, content: bytes) -> None:
    """Write the statistics of ranks for step 1 without deciding anything."""
    for first in ranks[::AT_ONCE]:
        with database.write() as store:
            for rank in ranks[first - ranks[0] : first - ranks[0] + AT_ONCE]:
                facts = {"sha256": "0" * 64, "claimed": None, "late": False}
                store.run_steps.post(session, 1, rank, statistics=content, **facts)


def decided(place: Place, session: RunSession, step: int = 1) -> RunStep:
    with place.database.read() as store:
        found = store.run_steps.get(session, step)
    assert found is not None
    return found


class Writer:
    """A concurrent writer to the database that records how long each write waited."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.waits: list[float] = []
        self.errors: list[Exception] = []

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(0.02):
            began = time.monotonic()
            try:
                with self._database.write() as store:
                    store.chores.set_note("other", "x")
            except Exception as error:  # noqa: BLE001 - the test tells
                self.errors.append(error)
            self.waits.append(time.monotonic() - began)


def test_merging_many_ranks_delays_no_writer(tmp_path: Path) -> None:
    place = Place(**Embedded().settings(tmp_path))
    session = opened(place, MANY_RANKS)
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.0, 1.0, EXACT_ROWS)
    largest = BinStatistics.from_confidences(confidence, rng.uniform(size=EXACT_ROWS) < confidence)
    record(place.database, session, range(1, MANY_RANKS), largest.to_bytes())
    with Writer(place.database) as other:
        answer = post(
            place.database, caller(place), "job", SentStatistics("a", 1, 0, largest, None)
        )
        release_merged(place.database)
    assert other.errors == []
    assert max(other.waits) < LONGEST_WAIT
    assert answer.decided is not None
    assert answer.decided.ranks == list(range(MANY_RANKS))
    assert answer.decided.metrics["rows"] == MANY_RANKS * EXACT_ROWS
    assert kept(place) == 0
    place.close()


def test_due_steps_are_found_in_indexes(tmp_path: Path) -> None:
    """Rows of statistics take up to 500 kB; reading them delayed long polls of all workspaces."""
    place = Place(**Embedded().settings(tmp_path))
    sent: list[tuple[str, Any]] = []
    event.listen(
        place.database.engine,
        "before_cursor_execute",
        lambda _c, _cursor, statement, parameters, *_: sent.append((statement, parameters)),
    )
    keys = [SessionKey("run_1", 1), SessionKey("run_2", 1)]
    with place.database.read() as store:
        store.run_steps.due(None, 10)
        store.run_steps.due(keys, 10)
        store.run_steps.last_numbers(keys)
    statements = [one for one in sent if "run_st" in one[0]]
    assert len(statements) == 3
    with place.database.engine.connect() as connection:
        for statement, parameters in statements:
            rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
            plan = [step for *_, step in rows if "run_st" in step]
            # the first statement looks for sessions that have statistics at all
            assert all("SEARCH" in step or "ix_run_statistics_open" in step for step in plan), plan
            searches = [step for step in plan if "SEARCH" in step]
            assert searches
            assert all("COVERING INDEX" in step for step in searches), plan
    place.close()


def test_an_unreadable_workspace_delays_no_other(place: Place) -> None:
    """A failing read used to leave the long polls of all workspaces without a response."""
    session = opened(place, 1)
    post(place.database, caller(place), "job", SentStatistics("a", 1, 0, rows(3), None))
    mine, other = SessionKey(session.run, session.number), SessionKey("run_other", 1)
    watcher = RunWatcher(place.database)
    watcher._workspaces = {mine: place.workspace, other: "ws_other"}

    def fail(_connection, _cursor, _statement, parameters, *_rest) -> None:
        found = parameters.values() if isinstance(parameters, dict) else parameters
        if other.run in found:
            raise Unavailable("database_busy", "this statement takes too long")

    event.listen(place.database.engine, "before_cursor_execute", fail)
    try:
        assert watcher._read_steps([other, mine]) == {mine: 1}
        with pytest.raises(Unavailable):
            watcher._read_steps([other])
    finally:
        event.remove(place.database.engine, "before_cursor_execute", fail)


def test_sessions_that_take_long_or_fail_delay_no_other_workspace(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with place.database.write() as store:
        other = store.keys.add_workspace("other").id
    mine = [opened(place, 1, name=f"job{number}") for number in range(120)]
    for one in mine:
        record(place.database, one, range(1), rows(3).to_bytes())
    theirs = opened(place, 1, workspace=other)
    record(place.database, theirs, range(1), rows(3).to_bytes())
    done, ended = [], threading.Event()

    def slow(_: Database, key: SessionKey, **__: Any) -> bool:
        done.append(key.run)
        if key.run != theirs.run:
            ended.wait(60)
        return key.run == theirs.run

    monkeypatch.setattr(watcher_module, "decide", slow)
    merges = Merges(place.database)
    try:
        assert merges.start_due() == 2  # one of each workspace
        wait_until(lambda: theirs.run in done)
    finally:
        ended.set()
    wait_until(lambda: not merges._merging)
    assert merges.start_due() >= 2
    wait_until(lambda: not merges._merging)
    failed = [one for one in done if one != theirs.run]
    assert len(set(failed)) == len(failed) >= 2  # none is tried again at once


def kept(place: Place) -> int:
    """Return the number of statistics that still have their bytes."""
    with place.database.read() as store:
        chosen = select(func.count()).where(run_statistics.c.statistics.is_not(None))
        return store.session.scalar(chosen) or 0


def test_bytes_of_a_large_step_are_released_a_few_at_a_time(place: Place) -> None:
    ranks = RELEASED_AT_ONCE + AT_ONCE + 1
    session = opened(place, ranks)
    record(place.database, session, range(1, ranks), rows(3).to_bytes())
    post(place.database, caller(place), "job", SentStatistics("a", 1, 0, rows(3), None))
    assert kept(place) == ranks
    with place.database.read() as store:
        assert store.run_steps.waiting() == 0
        assert store.run_steps.due(None, 10) == []
    assert release_merged(place.database) == 1
    assert kept(place) == 0
    assert release_merged(place.database) == 0


def test_only_one_of_many_deciders_writes(place: Place) -> None:
    ranks, deciders = 40, 6
    session = opened(place, ranks)
    record(place.database, session, range(ranks), rows(5).to_bytes())
    key = SessionKey(session.run, session.number)
    together = threading.Barrier(deciders)

    def run(_: int) -> None:
        together.wait()
        advance(place.database, key)

    with ThreadPoolExecutor(deciders) as many:
        list(many.map(run, range(deciders)))
    with place.database.read() as store:
        assert store.session.scalar(select(func.count()).select_from(run_steps)) == 1
    assert decided(place, session).metrics["rows"] == 5 * ranks
    assert Merges(place.database).start_due() == 0


@contextmanager
def while_merging(database: Database, happens: Any) -> Iterator[list[int]]:
    """Call a function on another thread when the first statistics have been read."""
    times: list[int] = []

    def look(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
        columns = statement.partition("FROM")[0]
        if columns.startswith("SELECT") and "run_statistics.statistics" in columns and not times:
            times.append(1)
            thread = threading.Thread(target=happens)
            thread.start()
            thread.join()

    event.listen(database.engine, "after_cursor_execute", look)
    try:
        yield times
    finally:
        event.remove(database.engine, "after_cursor_execute", look)


def test_a_rank_that_arrives_while_others_are_merged_is_merged(place: Place) -> None:
    session = opened(place, 30, merge_timeout=0.0)
    record(place.database, session, range(20), rows(1).to_bytes())

    def come() -> None:
        record(place.database, session, range(25, 26), rows(1000).to_bytes())

    with while_merging(place.database, come) as times:
        advance(place.database, SessionKey(session.run, session.number))
    assert times
    found = decided(place, session)
    assert (found.ranks, found.partial) == ([*range(20), 25], True)
    assert found.metrics["rows"] == 1020


def test_a_step_decided_concurrently_is_decided_once(place: Place) -> None:
    session = opened(place, 20)
    record(place.database, session, range(20), rows(2).to_bytes())
    key = SessionKey(session.run, session.number)
    with while_merging(place.database, lambda: advance(place.database, key)) as times:
        advance(place.database, key)
    assert times
    assert decided(place, session).metrics["rows"] == 40


def test_a_rank_is_late_or_merged_and_never_half(place: Place) -> None:
    ranks, steps = 24, 4
    session = opened(place, ranks, merge_timeout=0.0)
    key = SessionKey(session.run, session.number)
    done = threading.Event()

    def decide_on_and_on() -> None:
        while not done.is_set():
            advance(place.database, key)

    def train(rank: int) -> dict[int, bool]:
        answers = {}
        for step in range(1, steps + 1):
            sent = SentStatistics("a", step, rank, rows(rank + 1), None)
            answers[step] = post(place.database, caller(place), "job", sent).late
        return answers

    deciders = [threading.Thread(target=decide_on_and_on) for _ in range(2)]
    for thread in deciders:
        thread.start()
    try:
        with ThreadPoolExecutor(6) as many:
            late = list(many.map(train, range(ranks)))
    finally:
        done.set()
        for thread in deciders:
            thread.join()
    advance(place.database, key)
    for step in range(1, steps + 1):
        found = decided(place, session, step)
        in_time = [rank for rank in range(ranks) if not late[rank][step]]
        assert found.ranks == in_time
        assert found.metrics["rows"] == sum(rank + 1 for rank in in_time)
        assert found.partial == (len(in_time) < ranks)
    assert kept(place) == 0
