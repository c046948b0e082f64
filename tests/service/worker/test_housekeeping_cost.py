"""Housekeeping finds what to delete by index and without holding the write lock."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from helpers.fit_fixtures import Place
from sqlalchemy import event

from service.datasets.repository import Datasets
from service.fits.repository import Fits
from service.storage.database import BUSY_SECONDS, LOG_BYTES
from service.storage.records import Dataset, FitStatus
from service.storage.repository import new_id
from service.worker.housekeeping import Housekeeping, WorkerPace

pytestmark = pytest.mark.both_backends


def housekeeping(place: Place) -> Housekeeping:
    return Housekeeping(
        place.database,
        place.blobs,
        place.settings,
        WorkerPace(),
        worker="tests",
        queues=[],
        device="cpu",
        current_fits=set,
    )


def test_others_can_write_while_it_checks(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[bool] = []

    def spent_datasets(_: Fits) -> list[Dataset]:
        with place.database.write() as store:
            store.keys.add_workspace("meanwhile")
        looked.append(True)
        return []

    monkeypatch.setattr(Fits, "spent_datasets", spent_datasets)
    housekeeping(place).keep_house()
    assert looked


def test_a_spent_dataset_is_deleted_and_one_in_use_is_not(place: Place) -> None:
    spent, judge, used, unused = (place.dataset(delete_after_fit=True) for _ in range(4))
    done = place.start_fit(spent, ("temperature", {}), evaluation=judge)
    place.start_fit(used, ("temperature", {}))
    with place.database.write() as store:
        assert store.fits.cancel(done.id) is not None
    housekeeping(place).keep_house()
    with place.database.read() as store:
        found = store.datasets.page(place.workspace, 10, None)
    assert {one.id for one in found} == {used.id, unused.id}
    assert place.fit(done.id).status is FitStatus.CANCELLED


def test_datasets_and_their_fits_are_found_by_index(place: Place) -> None:
    if not place.database.is_sqlite:
        pytest.skip("a small table is scanned by PostgreSQL whatever its indexes")
    asked: list[tuple[str, tuple[object, ...]]] = []
    event.listen(
        place.database.engine,
        "before_cursor_execute",
        lambda _c, _cursor, statement, parameters, *_: asked.append((statement, parameters)),
    )
    with place.database.read() as store:
        store.fits.spent_datasets()
        store.datasets.expired()
        store.datasets.is_in_use("ds_1")
    statements = [one for one in asked if one[0].startswith("SELECT")]
    assert len(statements) == 3
    with place.database.engine.connect() as connection:
        for statement, parameters in statements:
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
            assert not [step for *_, step in plan if _reads_all(step)], statement


def _reads_all(step: str) -> bool:
    """Whether a step of a plan reads all rows of a table, directly or by an index of all."""
    few = ("ix_datasets_delete_after_fit", "ix_datasets_open")
    return step.startswith(("SCAN fits", "SCAN datasets")) and not step.endswith(few)


def lengthen_log(place: Place) -> Path:
    """Write a log that is too long during a read, and return its path."""
    assert place.database.url.database is not None
    log = Path(f"{place.database.url.database}-wal")
    for number in range(3):
        with place.database.write() as store:
            store.chores.set_note(f"long {number}", "x" * LOG_BYTES)
    assert log.stat().st_size > 2 * LOG_BYTES
    return log


def test_a_log_that_overlapping_reads_made_long_is_emptied(place: Place) -> None:
    if not place.database.is_sqlite:
        place.database.shorten_log()  # there is none
        return
    with place.database.read() as reader:
        reader.chores.note("any")
        log = lengthen_log(place)
    place.database.shorten_log()
    assert log.stat().st_size == 0
    with place.database.write() as store:
        store.chores.set_note("long 0", "")
    with place.database.engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA quick_check").scalar() == "ok"


def test_a_long_read_delays_writers_little_while_the_log_is_emptied(place: Place) -> None:
    if not place.database.is_sqlite:
        pytest.skip("PostgreSQL has its own log")
    with place.database.read() as reader:
        reader.chores.note("any")
        log = lengthen_log(place)
        begun = time.monotonic()
        place.database.shorten_log()
        assert time.monotonic() - begun < BUSY_SECONDS / 2  # it was at least BUSY_SECONDS
        assert log.stat().st_size > 2 * LOG_BYTES
    place.database.shorten_log()
    assert log.stat().st_size == 0


def add_expired(place: Place, workspace: str, count: int) -> list[str]:
    ids = sorted(new_id("ds") for _ in range(count))  # of equal age, the smallest id is first
    for id in ids:
        with place.database.write() as store:
            made = store.datasets.add(
                workspace, id, kind="logits", delete_after_fit=False, keep_seconds=-1.0
            )
            assert made is not None
    return ids


def test_workspaces_take_turns_and_nothing_is_left(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with place.database.write() as store:
        other = store.keys.add_workspace("other").id
    many, few = add_expired(place, place.workspace, 120), add_expired(place, other, 2)
    with place.database.read() as store:
        first = [one.id for one in store.datasets.expired(5)]
    assert first == [many[0], few[0], many[1], few[1], many[2]]
    assert Datasets.expired.__defaults__ is not None
    monkeypatch.setattr(Datasets.expired, "__defaults__", (50,))
    housekeeping(place).keep_house()
    with place.database.read() as store:
        assert store.datasets.expired() == []
