"""The cost of a call on a run does not grow with its number of sessions and steps."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from helpers.backends import Embedded
from helpers.live_service import Local
from helpers.training_clients import SETTINGS, open_run, post, seen, state_of
from sqlalchemy import event, insert, select

from calibrators.adafocal import AdaFocalState
from service.access import keys
from service.access.permissions import Principal, Scope
from service.runs import history_repository, sessions
from service.runs.sessions import Opened, Opening, open_session
from service.settings import Settings
from service.storage.database import Database
from service.storage.run_tables import run_sessions, run_steps, runs

pytestmark = pytest.mark.both_backends

BARS = {name: [0.123456789] * 2000 for name in ("count", "confidence", "accuracy", "edges")}
NUMBERS = dict.fromkeys(("rows", "accuracy", "confidence", "ece", "ada_ece", "nll"), 1)
LARGE = {"bins": BARS, "metrics": NUMBERS, "ranks": list(range(4096))}


def opening(session: str, **facts: object) -> Opening:
    known = {"state": None, "from_step": None, "tags": {}, "description": ""}
    return Opening("job", "adafocal", SETTINGS, 1, "trainer", 60.0, session, **{**known, **facts})


def begin(database: Database, session: str, **facts: object) -> Opened:
    with database.write() as store:
        workspace = keys.workspace_named(store, "tests", make=True).id
        caller = Principal(workspace, "tests", frozenset(Scope))
        return open_session(store, caller, opening(session, **facts))


def add_sessions(
    database: Database, run: str, first: int, count: int, *, rising: bool = False
) -> None:
    """Add sessions as an older release would have accepted them.

    All start at step 0; if ``rising``, each has one step and continues from the one before.
    """
    facts = {
        "run": run,
        "base_state": AdaFocalState.begin(SETTINGS).to_dict(),
        "world_size": 1,
        "decides": "trainer",
        "merge_timeout": 60.0,
        "created_by": "tests",
    }
    rows = [
        {
            **facts,
            "number": n,
            "id": f"old-{n}",
            "base_step": n - first if rising else 0,
            "begun_at": 1e11 + n,
            "created_at": float(n),
        }
        for n in range(first, first + count)
    ]
    with database.write() as store:
        store.session.execute(insert(run_sessions), rows)
    for n in range(first, first + count) if rising else ():
        add_steps(database, run, n, [n - first + 1])


def add_steps(
    database: Database, run: str, session: int, steps: Iterable[int], **more: object
) -> None:
    facts = {"run": run, "session": session, "state": None, "ranks": [0], "partial": False}
    seen_in_it = {"metrics": {}, "switched": [], "decided_at": 1.0}
    with database.write() as store:
        rows = [{**facts, **seen_in_it, **more, "step": step} for step in steps]
        store.session.execute(insert(run_steps), rows)


def operations(database: Database, call: Callable[[], object]) -> int:
    """Return the number of operations of SQLite's virtual machine that a call takes."""
    count = 0

    def tick() -> int:
        nonlocal count
        count += 1
        return 0

    def watch(connection: object, *_: object) -> None:
        connection.set_progress_handler(tick, 1)

    event.listen(database.engine, "checkout", watch)
    try:
        call()
    finally:
        event.remove(database.engine, "checkout", watch)
    return count


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Database]:
    database = Database(Settings(**Embedded().settings(tmp_path)).database)
    yield database
    database.close()


@pytest.mark.parametrize("facts", [{}, {"from_step": 0}], ids=["newest", "from a step"])
def test_opening_a_session_costs_the_same_however_many_there_are(
    embedded: Database, monkeypatch: pytest.MonkeyPatch, facts: dict[str, object]
) -> None:
    monkeypatch.setattr(sessions, "MAX_SESSIONS", 10_000)
    run = begin(embedded, "a").run.id
    few = operations(embedded, lambda: begin(embedded, "b", **facts))
    add_sessions(embedded, run, 3, 3000)
    many = operations(embedded, lambda: begin(embedded, "c", **facts))
    assert many < 2 * few


def test_a_run_takes_a_limited_number_of_sessions(
    tenant: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "MAX_SESSIONS", 2)
    open_run(tenant, "job", session="a")
    open_run(tenant, "job", session="b")
    refused = tenant.post("/v1/runs", json={"name": "job", "kind": "adafocal", "session": "c"})
    assert (refused.status_code, refused.json()["code"]) == (409, "too_many_sessions")
    assert refused.json()["limit"] == 2
    assert open_run(tenant, "job", session="b")["session"]["number"] == 2
    post(tenant, "job", "b", 1, seen(1), state=AdaFocalState.begin(SETTINGS).update(seen(1)))
    assert state_of(tenant, "job")["step"] == 1


def test_the_history_costs_little_for_each_session(embedded: Database) -> None:
    """Every step has its own session, and none is compared with all other sessions."""
    run = begin(embedded, "a").run.id
    add_sessions(embedded, run, 2, 600, rising=True)
    with embedded.read() as store:
        newest = store.runs.sessions(run, 1)[0]
        shown = store.run_history.page(run, 50, 100, None)
        last = store.run_history.last_in_history(run, newest.base_step)
    assert [one.step.step for one in shown] == list(range(101, 151))
    assert last is not None
    assert last.step == newest.base_step == 599

    def look() -> None:
        with embedded.read() as store:
            store.run_history.page(run, 50, None, None)
            store.run_history.last_in_history(run, 600)

    assert operations(embedded, look) < 600 * 100


def test_a_page_of_the_history_reads_no_more_steps_than_it_shows(embedded: Database) -> None:
    run = begin(embedded, "a").run.id
    add_steps(embedded, run, 1, range(1, 3001))

    def look() -> None:
        with embedded.read() as store:
            assert len(store.run_history.page(run, 50, 1000, None)) == 50

    assert operations(embedded, look) < 10_000


@pytest.mark.parametrize("session", ["", "&session=a"], ids=["all sessions", "one session"])
def test_no_more_large_steps_are_read_than_a_page_holds(
    tenant: httpx.Client, shared_app: Local, monkeypatch: pytest.MonkeyPatch, session: str
) -> None:
    read: list[int] = []

    class Noted(history_repository.RunStep):
        def __init__(self, **facts: Any) -> None:
            read.append(facts["step"])
            super().__init__(**facts)

    monkeypatch.setattr(history_repository, "RunStep", Noted)
    open_run(tenant, "job", session="a")
    database = shared_app.app.state.parts.database
    with database.read() as store:
        run = store.session.scalar(select(runs.c.id).order_by(runs.c.created_at.desc()).limit(1))
    add_steps(database, run, 1, range(1, 61), **LARGE)
    shown: list[int] = []
    for _ in range(10):
        page = tenant.get(f"/v1/runs/job/history?limit=200&after={len(shown)}{session}").json()
        assert 1 < len(page["items"]) < 25
        assert len(read) == len(page["items"]) + (page["next"] is not None)
        shown += [one["step"] for one in page["items"]]
        read.clear()
        if page["next"] is None:
            break
    assert shown == list(range(1, 61))


def test_a_list_of_runs_reads_them_in_short_transactions(
    tenant: httpx.Client, shared_app: Local
) -> None:
    """A long one delays the writers of SQLite while its log is emptied."""
    for number in range(10):
        open_run(tenant, f"job-{number}", session="a")
    statements: Counter[int] = Counter()  # of the transactions by thread, and the most
    engine = shared_app.app.state.parts.database.engine

    def began(_: object) -> None:
        statements[threading.get_ident()] = 0

    def executed(*_: object) -> None:
        statements[threading.get_ident()] += 1
        statements[-1] = max(statements.values())

    event.listen(engine, "begin", began)
    event.listen(engine, "before_cursor_execute", executed)
    try:
        assert len(tenant.get("/v1/runs").json()["items"]) == 10
    finally:
        event.remove(engine, "begin", began)
        event.remove(engine, "before_cursor_execute", executed)
    assert 0 < statements[-1] < 10
