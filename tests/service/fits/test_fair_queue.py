"""Fits are claimed once each, workspaces in turn, and cheaply however many of them wait."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from helpers.fit_fixtures import Place
from sqlalchemy import event, insert, select, text, update

from service.access.permissions import Principal, Scope
from service.errors import TooMany
from service.fits import service as fits
from service.fits.queue import claim
from service.fits.service import CPU, GPU, QUEUES, FitOrder, FitRequest, MethodOrder
from service.storage import tables
from service.storage.records import Fit, FitStatus

pytestmark = pytest.mark.both_backends

MANY = 10_000
QUICK = ("temperature", {})


@pytest.fixture
def place(place: Place) -> Iterator[Place]:
    """A place with a worker that beats."""
    with place.database.write() as store:
        store.workers.beat("w", queues=list(QUEUES), device="cpu")
    return place


def claimed(place: Place, *queues: str) -> Fit | None:
    found = claim(place.database, queues or [CPU], worker="w", device="cpu").job
    return None if found is None else found.fit


def caller(place: Place) -> Principal:
    return Principal(place.workspace, "tests", frozenset({Scope.FIT}))


def orders(place: Place, count: int) -> list[str]:
    data = place.dataset()
    return [place.order(data, QUICK).id for _ in range(count)]


def in_turn(place: Place, count: int) -> list[str]:
    """Claim so many fits, one after the other."""
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


def test_a_worker_takes_from_its_own_queues(place: Place) -> None:
    data = place.dataset()
    gpu = place.order(data, QUICK, queue=GPU)
    assert claimed(place, CPU) is None
    cpu = place.order(data, QUICK)
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
    request = FitRequest("digits", FitOrder([MethodOrder("temperature")]), dataset.id)

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


def test_a_claim_among_many_fits_looks_by_index(place: Place) -> None:
    """Also after as many were done, and by plans that the server keeps for any value."""
    (id,) = orders(place, 1)
    statements: list[str] = []
    with place.database.write() as store:
        row = dict(store.session.execute(select(tables.fits)).mappings().one())
        for status in ("queued", "succeeded"):
            facts = {"status": status, "started_at": None if status == "queued" else 5.0}
            rows = [{**row, **facts, "id": f"fit_{status}{n}"} for n in range(MANY)]
            store.session.execute(insert(tables.fits), rows)
        store.session.execute(update(tables.fits).values(created_at=tables.fits.c.created_at))
    place.enter_new_workspace()
    orders(place, 1)
    with place.database.write() as store:
        store.session.execute(text("ANALYZE"))
    event.listen(place.database.engine, "before_cursor_execute", lambda *a: statements.append(a[2]))
    took = []
    for _ in range(20):  # psycopg prepares a statement at its sixth use
        began = time.perf_counter()
        assert claimed(place) is not None
        took.append(time.perf_counter() - began)
    assert len(statements) < 20 * 10
    assert sorted(took)[10] < 0.1
    assert place.fit(id) is not None
