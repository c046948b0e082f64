"""What a call on a run costs does not grow with the sessions and steps that the run has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from backends import Embedded
from sqlalchemy import event, insert
from training_jobs import SETTINGS, open_run, post, seen, state_of

from calibrators.adafocal import AdaFocalState
from service.core import keys, runs
from service.core.access import Principal, Scope
from service.settings import Settings
from service.storage.database import Database
from service.storage.run_tables import run_sessions

def opening(session: str, **facts: object) -> runs.Opening:
    known = {"state": None, "from_step": None, "tags": {}, "description": ""}
    return runs.Opening(
        "job", "adafocal", SETTINGS, 1, "trainer", 60.0, session, **{**known, **facts}
    )


def begin(database: Database, session: str, **facts: object) -> runs.Opened:
    with database.write() as store:
        workspace = keys.workspace_named(store, "tests", make=True).id
        caller = Principal(workspace, "tests", frozenset(Scope))
        return runs.open_run(store, caller, opening(session, **facts))


def add_sessions(database: Database, run: str, first: int, count: int) -> None:
    """Add sessions as an older release would have taken them, all from the beginning."""
    facts = {
        "run": run,
        "base_step": 0,
        "base_state": AdaFocalState.begin(SETTINGS).to_dict(),
        "world_size": 1,
        "decides": "trainer",
        "merge_timeout": 60.0,
        "created_by": "tests",
    }
    rows = [
        {**facts, "number": n, "id": f"old-{n}", "begun_at": float(n), "created_at": float(n)}
        for n in range(first, first + count)
    ]
    with database.write() as store:
        store.session.execute(insert(run_sessions), rows)


def operations(database: Database, call: Callable[[], object]) -> int:
    """Return how many operations of SQLite's virtual machine a call takes."""
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
    monkeypatch.setattr(runs, "MOST_SESSIONS", 10_000)
    run = begin(embedded, "a").run.id
    few = operations(embedded, lambda: begin(embedded, "b", **facts))
    add_sessions(embedded, run, 3, 3000)
    many = operations(embedded, lambda: begin(embedded, "c", **facts))
    assert many < 2 * few


def test_a_run_takes_a_limited_number_of_sessions(
    tenant: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "MOST_SESSIONS", 2)
    open_run(tenant, "job", session="a")
    open_run(tenant, "job", session="b")
    refused = tenant.post("/v1/runs", json={"name": "job", "kind": "adafocal", "session": "c"})
    assert (refused.status_code, refused.json()["code"]) == (409, "too_many_sessions")
    assert refused.json()["limit"] == 2
    assert open_run(tenant, "job", session="b")["session"]["number"] == 2
    post(tenant, "job", "b", 1, seen(1), state=AdaFocalState.begin(SETTINGS).update(seen(1)))
    assert state_of(tenant, "job")["step"] == 1
