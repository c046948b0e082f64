"""The sweeper deletes orphaned blobs, but none that a row refers to or will refer to."""

from __future__ import annotations

import hashlib
import os
import random
import threading
import time
from pathlib import Path

import pytest
from helpers import raw_blobs as stored
from helpers.fit_fixtures import Place
from helpers.live_service import npz, sample
from helpers.workers import housekeeping

from calibrators import archive
from calibrators.methods.temperature import TemperatureMap
from service.access.permissions import Principal, Scope
from service.access.quota import Quota
from service.datasets import service as datasets
from service.datasets.formats import Limits
from service.datasets.service import Datasets, Retention
from service.datasets.spool import Spool
from service.errors import Conflict, Unavailable
from service.maintenance.doctor import Doctor
from service.maintenance.sweep import CHORE, sweep
from service.registry import registration
from service.registry.registration import Registration, register
from service.storage.blob_keys import dataset_key, judged_key, map_key, onnx_key, part_key
from service.storage.blobs import Blobs, PendingBlobs
from service.storage.repository import new_id

pytestmark = pytest.mark.both_backends

ALL = -60.0  # of any age, and for any clock
MAP = archive.dump(TemperatureMap(k=3, temperature=2.0))
MAP_SHA256 = hashlib.sha256(MAP).hexdigest()
OTHER_SHA256 = hashlib.sha256(b"other").hexdigest()


def caller(place: Place) -> Principal:
    return Principal(place.workspace, "tests", frozenset(Scope))


def named_blobs(place: Place) -> set[str]:
    """Write a blob of each kind that a row refers to or that belongs to an upload."""
    made = register(place.database, place.blobs, caller(place), Registration("c", MAP))
    place.dataset()
    with place.database.write() as store:
        upload = store.datasets.add(
            place.workspace, new_id("ds"), delete_after_fit=False, keep_seconds=None
        )
        assert upload is not None
        id = new_id("ver")
        place.blobs.put(map_key(place.workspace, id, MAP_SHA256), MAP)
        place.blobs.put(onnx_key(place.workspace, id, OTHER_SHA256), b"other")
        facts = {name: value for name, value in vars(made).items() if name not in OF_ITS_ROW}
        facts["onnx_sha256"] = facts["judged_sha256"] = OTHER_SHA256
        place.blobs.put(judged_key(place.workspace, id, OTHER_SHA256), b"other")
        store.calibrators.add_version(made.calibrator, id, None, blob_bytes=1, **facts)
    # the row of a part may still come, and so may that of a commit
    place.blobs.put(part_key(place.workspace, upload.id, 1, OTHER_SHA256), b"other")
    place.blobs.put(dataset_key(place.workspace, upload.id, OTHER_SHA256), b"other")
    return set(stored.keys(place.blobs))


OF_ITS_ROW = ("calibrator", "number", "id", "created_at")


def orphans(place: Place) -> set[str]:
    """Write a blob of each kind whose writer has died."""
    complete = place.dataset()
    keys = {
        dataset_key(place.workspace, new_id("ds"), OTHER_SHA256),
        dataset_key(place.workspace, complete.id, OTHER_SHA256),
        part_key(place.workspace, new_id("ds"), 1, OTHER_SHA256),
        part_key(place.workspace, complete.id, 12, OTHER_SHA256),
        map_key(place.workspace, new_id("ver"), OTHER_SHA256),
        onnx_key(place.workspace, new_id("ver"), OTHER_SHA256),
        judged_key(place.workspace, new_id("ver"), OTHER_SHA256),
    }
    for key in keys:
        place.blobs.put(key, b"other")
    return keys


def left_alone(place: Place) -> set[str]:
    """Write blobs with unknown keys and blobs of other owners, which must be kept."""
    keys = {
        map_key(place.workspace, None, OTHER_SHA256),
        onnx_key(place.workspace, None, OTHER_SHA256),
        map_key(new_id("ws"), new_id("ver"), OTHER_SHA256),
        f"{place.workspace}/notes.txt",
        "readme",
    }
    for key in keys:
        place.blobs.put(key, b"other")
    return keys


def test_orphans_of_every_kind_go_after_the_grace_and_nothing_else(place: Place) -> None:
    named, alone, lost = named_blobs(place), left_alone(place), orphans(place)
    before = set(stored.keys(place.blobs))
    assert sweep(place.database, place.blobs, older_than=3600).orphans.total() == 0
    told: list[str] = []
    dry = sweep(place.database, place.blobs, older_than=ALL, dry_run=True, on_orphan=told.append)
    assert set(told) == lost
    assert set(stored.keys(place.blobs)) == before
    swept = sweep(place.database, place.blobs, older_than=ALL)
    assert swept == dry
    assert (swept.orphans.total(), swept.bytes, swept.unknown) == (7, 35, len(alone))
    assert set(stored.keys(place.blobs)) == before - lost
    assert named <= before - lost
    assert sweep(place.database, place.blobs, older_than=ALL).orphans.total() == 0


def test_files_of_writers_that_died_over_them_go_as_well(tmp_path: Path) -> None:
    place = Place(tmp_path)
    key = dataset_key(place.workspace, new_id("ds"), OTHER_SHA256)
    file = tmp_path / "blobs" / f"{key}#1"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"half")
    assert stored.keys(place.blobs) == []
    sweep(place.database, place.blobs, older_than=60)
    assert file.exists()
    os.utime(file, (1, 1))
    assert sweep(place.database, place.blobs, older_than=60).orphans == {"unfinished": 1}
    assert not file.exists()
    place.close()


def test_an_older_state_of_the_database_does_not_sweep_blobs_of_a_newer_one(
    place: Place,
) -> None:
    gone = orphans(place)
    sweep(place.database, place.blobs, older_than=3600)
    with place.database.read() as store:
        older = store.chores.note(CHORE)
    sweep(place.database, place.blobs, older_than=3600)
    with place.database.write() as store:
        newer = store.chores.note(CHORE)
        store.chores.set_note(CHORE, older)
    with pytest.raises(Conflict, match="--adopt"):
        sweep(place.database, place.blobs, older_than=ALL)
    assert gone <= set(stored.keys(place.blobs))
    assert sweep(place.database, place.blobs, older_than=ALL, dry_run=True).orphans.total()
    with place.database.write() as store:
        # simulates a sweep that died early
        store.chores.set_note(CHORE, f"lost {newer.split()[0]}")
    sweep(place.database, place.blobs, older_than=3600)
    with place.database.write() as store:
        store.chores.set_note(CHORE, "")
    sweep(place.database, place.blobs, older_than=ALL, adopt=True)
    assert not gone & set(stored.keys(place.blobs))
    sweep(place.database, place.blobs, older_than=ALL)


def test_parts_of_an_upload_stay_until_it_ends(place: Place) -> None:
    id = new_id("ds")
    key = part_key(place.workspace, id, 1, OTHER_SHA256)
    place.blobs.put(key, b"other")
    with place.database.write() as store:
        store.datasets.add(place.workspace, id, delete_after_fit=False, keep_seconds=None)
    sweep(place.database, place.blobs, older_than=ALL)
    assert stored.keys(place.blobs) == [key]
    with place.database.write() as store:
        store.datasets.remove(id)
    sweep(place.database, place.blobs, older_than=ALL)
    assert stored.keys(place.blobs) == []


def test_one_worker_of_many_sweeps_every_hour_unless_it_is_turned_off(place: Place) -> None:
    def keep_house(worker: str, **changed: float) -> None:
        place.settings = place.settings.model_copy(update=changed)
        housekeeping(place, worker, 60).keep_house()

    lost = orphans(place)
    keep_house("first", sweep_hours=0.0)
    assert lost < set(stored.keys(place.blobs))
    time.sleep(0.1)
    keep_house("second", sweep_hours=1e-6)
    assert not lost & set(stored.keys(place.blobs))
    lost = orphans(place)
    time.sleep(0.1)
    keep_house("third")
    assert lost < set(stored.keys(place.blobs))


class PausingBlobs(Blobs):
    """A store whose writers sometimes pause after writing."""

    def put(self, key: str, content: bytes | Path) -> None:
        super().put(key, content)
        time.sleep(random.choice([0, 0, 0.05, 0.2, 4.0]))  # noqa: S311


GRACE, WINDOW, SECONDS = 3.0, 0.5, 7.0


def test_sweeping_while_writers_write_resend_delete_and_pause(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (datasets, registration):
        monkeypatch.setattr(module, "PendingBlobs", lambda blobs: PendingBlobs(blobs, WINDOW))
    blobs, principal = PausingBlobs(place.settings.blobs), caller(place)
    kept = Datasets(place.database, blobs, Limits(1 << 20, 1 << 20, 10), Quota(0, None))
    bodies = [npz(*sample(20, 3, seed=seed)) for seed in range(3)]
    end = time.monotonic() + SECONDS
    late, swept = [], []

    def registering_maps() -> None:
        register(place.database, blobs, principal, Registration("c", MAP))

    def sending_datasets() -> None:
        with Spool(tmp_path).body("ws_1") as arrived:
            arrived.write(random.choice(bodies))  # noqa: S311
            kept.add(principal, arrived, "application/x-npz", None, Retention())

    def deleting_datasets() -> None:
        time.sleep(0.3)
        with place.database.read() as store:
            page = store.datasets.page(place.workspace, 10, None)
        if page:
            kept.remove(principal, page[-1].id)

    def sweeping() -> None:
        swept.append(sweep(place.database, place.blobs, older_than=GRACE).orphans.total())

    def again(task) -> None:
        while time.monotonic() < end:
            try:
                task()
            except Unavailable as error:
                late.append(error.code)
            except Conflict:
                pass  # it was sent again while it was deleted

    tasks = [registering_maps] * 4 + [sending_datasets] * 3 + [deleting_datasets, sweeping]
    threads = [threading.Thread(target=again, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(late) == {"paused_too_long"}
    assert sum(swept) > 0
    looking = Doctor(place.database, place.blobs, orphan_seconds=ALL)
    assert list(looking.findings()) == []
    assert looking.checked["versions"] > 0
