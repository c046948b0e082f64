"""One workspace's fits hold up nobody else's, and cancelled ones leave the queue."""

from __future__ import annotations

import pytest
from helpers.fit_fixtures import Place
from sqlalchemy import TableClause, column, select, table, update

from service.access.permissions import Principal, Scope
from service.errors import TooMany
from service.fits import service as fits
from service.fits.service import FitOrder, FitRequest, MethodOrder
from service.storage.records import FitStatus
from service.worker.housekeeping import Housekeeping, WorkerPace

pytestmark = pytest.mark.both_backends


def workflows(place: Place) -> TableClause:
    """Return the table of queue entries, which DBOS owns."""
    schema = None if place.database.is_sqlite else "dbos"
    names = ("workflow_uuid", "status", "queue_partition_key")
    return table("workflow_status", *map(column, names), schema=schema)


def entries(place: Place) -> list[tuple[str, str, str]]:
    with place.database.read() as store:
        rows = store.session.execute(select(workflows(place))).all()
    return [tuple(row) for row in rows]


def caller(place: Place) -> Principal:
    return Principal(place.workspace, "tests", frozenset({Scope.FIT}))


def test_an_entry_belongs_to_its_workspace(place: Place) -> None:
    fit = place.order(place.dataset(), ("temperature", {}))
    assert entries(place) == [(fit.id, "ENQUEUED", place.workspace)]
    with place.database.write() as store:
        place.queue.enqueue_again(store, fit)
    assert {one[2] for one in entries(place)} == {place.workspace}


def test_a_cancelled_fit_leaves_the_queue(place: Place) -> None:
    dataset = place.dataset()
    fit, other = (place.order(dataset, ("temperature", {})) for _ in range(2))
    found = fits.cancel(place.database, place.queue, caller(place), fit.id)
    assert found.status is FitStatus.CANCELLED
    assert [id for id, *_ in entries(place)] == [other.id]


def test_open_fits_of_a_workspace_are_bounded(place: Place) -> None:
    dataset = place.dataset()
    request = FitRequest("digits", FitOrder([MethodOrder("temperature")]), dataset.id)

    def submit() -> str:
        with place.database.write() as store:
            asked = fits.submit(
                store, place.queue, caller(place), request, dataset=dataset.id, most_open=2
            )
        return asked.id

    first, _ = submit(), submit()
    with pytest.raises(TooMany) as refused:
        submit()
    assert refused.value.code == "too_many_fits"
    fits.cancel(place.database, place.queue, caller(place), first)
    submit()


def test_entries_without_a_workspace_are_put_back(place: Place) -> None:
    fit = place.order(place.dataset(), ("temperature", {}))
    with place.database.write() as store:
        store.session.execute(update(workflows(place)).values(queue_partition_key=None))
    housekeeping = Housekeeping(
        place.database,
        place.blobs,
        place.queue,
        place.settings,
        WorkerPace(),
        worker="tests",
        queues=[],
        device="cpu",
        at_work=set,
    )
    housekeeping.keep_house()
    ((id, status, workspace),) = entries(place)
    assert (id.partition(".")[0], status, workspace) == (fit.id, "ENQUEUED", place.workspace)
