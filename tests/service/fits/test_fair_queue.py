"""Each fit is claimed once, workspaces take turns, and claims are cheap even in long queues."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from helpers.fit_fixtures import Place
from sqlalchemy import event, insert, select, text

from service.access.permissions import Principal, Scope
from service.errors import TooMany
from service.fits import service as fits
from service.fits.queue import claim
from service.fits.service import CPU, GPU, QUEUES, FitRequest, FitSpec, MethodSpec
from service.storage import tables
from service.storage.records import Fit, FitStatus

pytestmark = pytest.mark.both_backends

MANY = 10_000
QUICK = ("temperature", {})


@pytest.fixture
def place(place: Place) -> Iterator[Place]:
    """Return a place with a worker that sends heartbeats."""
    with place.database.write() as store:
        store.workers.beat("w", queues=list(QUEUES), device="cpu")
    return place


def claimed(place: Place, *queues: str, most_running: int | None = None) -> Fit | None:
    found = claim(
        place.database, queues or [CPU], worker="w", device="cpu", most_running=most_running
    ).attempt
    return None if found is None else found.fit


def caller(place: Place) -> Principal:
    return Principal(place.workspace, "tests", frozenset({Scope.FIT}))


def orders(place: Place, count: int) -> list[str]:
    data = place.dataset()
    return [place.start_fit(data, QUICK).id for _ in range(count)]


def in_turn(place: Place, count: int) -> list[str]:
    """Claim this many fits, one after the other."""
    found = [claimed(place) for _ in range(count)]
    return [one.id for one in found if one is not None]


def test_workspaces_take_turns_and_the_fits_of_each_are_in_order(place: Place) -> None:
    first = orders(place, 4)
    assert in_turn(place, 1) == first[:1]
    place.enter_new_workspace()
    second = orders(place, 2)
    assert in_turn(place, 3) == [second[0], first[1], second[1]]
    place.enter_new_workspace()
    third = orders(place, 1)
    assert in_turn(place, 4) == [third[0], first[2], first[3]]


def test_a_workspace_with_enough_running_fits_leaves_workers_to_others(place: Place) -> None:
    first = orders(place, 3)
    for id in first[:2]:
        found = claimed(place, most_running=2)
        assert found is not None
        assert found.id == id
    assert claimed(place, most_running=2) is None
    place.enter_new_workspace()
    (other,) = orders(place, 1)
    found = claimed(place, most_running=2)
    assert found is not None
    assert found.id == other
    with place.database.write() as store:
        assert store.fits.finish(first[0], 1, FitStatus.SUCCEEDED)
    found = claimed(place, most_running=2)
    assert found is not None
    assert found.id == first[2]


def test_a_claim_without_a_fit_writes_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write to SQLite wakes all workers, which would claim again, fifty times a second."""
    orders(place, 2)
    assert claimed(place, most_running=1) is not None
    with monkeypatch.context() as patched:
        patched.setattr(place.database, "write", lambda: pytest.fail("it wrote"))
        assert claimed(place, most_running=1) is None
    assert claimed(place, most_running=2) is not None


def test_a_worker_takes_from_its_own_queues(place: Place) -> None:
    data = place.dataset()
    gpu = place.start_fit(data, QUICK, queue=GPU)
    assert claimed(place, CPU) is None
    cpu = place.start_fit(data, QUICK)
    assert claimed(place, CPU, GPU) == place.fit(gpu.id)
    assert claimed(place, CPU, GPU) == place.fit(cpu.id)


def test_many_workers_claim_each_fit_once(place: Place) -> None:
    waiting = orders(place, 30)
    place.enter_new_workspace()
    waiting += orders(place, 10)

    def take_all(_: int) -> list[str]:
        found, last = [], time.monotonic()
        while time.monotonic() - last < 1.0:
            fit = claimed(place)
            if fit is not None:
                found.append(fit.id)
                last = time.monotonic()
        return found

    with ThreadPoolExecutor(6) as threads:
        taken = [id for share in threads.map(take_all, range(6)) for id in share]
    assert sorted(taken) == sorted(waiting)
    assert {place.fit(id).attempt for id in taken} == {1}


def test_a_cancelled_fit_is_not_claimed(place: Place) -> None:
    first, second = orders(place, 2)
    with place.database.write() as store:
        assert fits.cancel(store, caller(place), first).status is FitStatus.CANCELLED
    assert in_turn(place, 2) == [second]
    assert place.fit(first).attempt == 0


def test_open_fits_of_a_workspace_are_bounded(place: Place) -> None:
    dataset = place.dataset()
    request = FitRequest("digits", FitSpec([MethodSpec("temperature")]), dataset.id)

    def submit() -> str:
        with place.database.write() as store:
            asked = fits.submit(store, caller(place), request, dataset=dataset.id, most_open=2)
        return asked.id

    first, _ = submit(), submit()
    with pytest.raises(TooMany) as refused:
        submit()
    assert refused.value.code == "too_many_fits"
    with place.database.write() as store:
        fits.cancel(store, caller(place), first)
    submit()


def fill(place: Place, status: str, **facts: object) -> None:
    """Add many fits to a workspace that has one."""
    with place.database.write() as store:
        row = dict(store.session.execute(select(tables.fits).limit(1)).mappings().one())
        rows = [{**row, "status": status, **facts, "id": f"fit_{status}{n}"} for n in range(MANY)]
        store.session.execute(insert(tables.fits), rows)


def plans(place: Place, asked: list[tuple[str, Any]]) -> Iterator[str]:
    """Return the query plans of statements on fits, for any values of their parameters."""
    with place.database.engine.connect() as connection:
        if not place.database.is_sqlite:
            connection.exec_driver_sql("SET plan_cache_mode = force_generic_plan")
        for number, (statement, parameters) in enumerate(asked):
            if place.database.is_sqlite:
                found = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
                yield "\n".join(row[3] for row in found)
                continue
            with connection.connection.cursor() as cursor:
                numbered = statement
                for place_of, name in enumerate(parameters, 1):
                    numbered = numbered.replace(f"%({name})s", f"${place_of}")
                cursor.execute(f"PREPARE plan_{number} AS {numbered}")
                values = ", ".join("NULL" for _ in parameters)
                cursor.execute(f"EXPLAIN EXECUTE plan_{number} ({values})")
                yield "\n".join(row[0] for row in cursor.fetchall())


def test_a_claim_among_many_fits_uses_the_index(place: Place) -> None:
    orders(place, 1)
    fill(place, "queued")
    fill(place, "succeeded", started_at=5.0)
    place.enter_new_workspace()
    orders(place, 1)
    with place.database.write() as store:
        store.session.execute(text("ANALYZE"))
    asked: list[tuple[str, Any]] = []

    def note(_c: object, _cursor: object, statement: str, parameters: Any, *_: object) -> None:
        asked.append((statement, parameters))

    event.listen(place.database.engine, "before_cursor_execute", note)
    began = time.perf_counter()
    assert claimed(place) is not None
    assert time.perf_counter() - began < 0.5
    event.remove(place.database.engine, "before_cursor_execute", note)
    on_fits = [one for one in asked if "fits" in one[0] and not one[0].startswith("PRAGMA")]
    assert 3 <= len(on_fits) < 8
    for plan in plans(place, on_fits):
        assert not re.search(r"SCAN fits|Seq Scan on fits", plan), plan
    with place.database.read() as store:
        assert len(store.fits.turns([CPU])) == 1  # the other workspace's only fit was claimed first
