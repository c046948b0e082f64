"""Fits in real worker processes: completed, cancelled, killed, handed back."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest
from helpers.backends import Backend
from helpers.fit_fixtures import Place
from helpers.live_service import by_the_clock, wait_until, within
from helpers.workers import RUNNING, Crew

from calibrators import archive
from service.fits.service import GPU
from service.storage.blob_keys import map_key, onnx_key
from service.storage.records import FitStatus

pytestmark = pytest.mark.both_backends

ENDLESS = ("smart", {"steps": 100_000})
SOME_SECONDS = ("smart", {"steps": 1200})


@pytest.fixture(scope="module")
def place(backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(**backend.settings(tmp_path_factory.mktemp("jobs")))
    yield made
    made.close()


@pytest.fixture(scope="module")
def crew(place: Place) -> Iterator[Crew]:
    """Start two workers of both queues for all tests of this file."""
    made = Crew(place)
    made.add(2)
    yield made
    made.end()


def test_two_methods_give_two_versions_with_maps_reports_and_onnx(place: Place, crew: Crew) -> None:
    fit = place.start_fit(place.dataset(), ("temperature", {}), ("smart", {"steps": 100}))
    done = place.wait(fit)
    assert (done.status, done.attempt, done.device) == (FitStatus.SUCCEEDED, 1, "cpu")
    assert done.versions == place.versions_of(fit)
    for number, method in zip(done.versions, ("temperature", "smart"), strict=True):
        with place.database.read() as store:
            version = store.calibrators.version(place.calibrator.id, number)
            assert store.calibrators.report(place.calibrator.id, number)
        assert version is not None
        assert version.method == method
        key = map_key(place.workspace, version.id, version.map_sha256)
        content = place.blobs.get(key, version.map_sha256)
        assert archive.load(content).k == 5
        assert version.onnx_sha256 is not None
        key = onnx_key(place.workspace, version.id, version.onnx_sha256)
        assert place.blobs.get(key, version.onnx_sha256)


def test_a_fit_starts_soon_after_submission(place: Place, crew: Crew) -> None:
    data = place.dataset()

    def started_after() -> float:
        done = place.wait(place.start_fit(data, ("temperature", {})))
        assert done.started_at is not None
        return done.started_at - done.created_at

    started_after()
    within(2, started_after)


def test_a_failure_has_its_code_and_no_version(place: Place, crew: Crew) -> None:
    fit = place.start_fit(place.dataset(), ("temperature", {}), ("smart", {"hidden": 0}))
    done = place.wait(fit)
    assert done.status is FitStatus.FAILED
    assert done.error is not None
    assert done.error["code"] == "bad_parameter"
    assert place.versions_of(fit) == []


def test_a_running_fit_reports_progress_and_is_cancelled_within_two_seconds(
    place: Place, crew: Crew
) -> None:
    def cancelled_after() -> float:
        fit = place.start_fit(place.dataset(), ENDLESS)
        crew.running(fit)
        progress = place.fit(fit.id).progress
        assert progress is not None
        assert progress["method"] == "smart"
        assert 0 < progress["step"] < progress["total"]
        asked = time.monotonic()
        with place.database.write() as store:
            store.fits.cancel(fit.id)
        done = place.wait(fit)
        took = time.monotonic() - asked
        assert done.status is FitStatus.CANCELLED
        assert place.versions_of(fit) == []
        return took

    within(2, cancelled_after)


def test_a_waiting_fit_is_cancelled_at_once_and_never_starts(place: Place, crew: Crew) -> None:
    data = place.dataset()
    busy = [place.start_fit(data, ENDLESS) for _ in crew.processes]
    for fit in busy:
        place.wait(fit, RUNNING)
    waiting = place.start_fit(data, ("temperature", {}))
    with place.database.write() as store:
        cancelled = store.fits.cancel(waiting.id)
        assert cancelled is not None
        assert cancelled.status is FitStatus.CANCELLED
        for fit in busy:
            store.fits.cancel(fit.id)
    place.wait(place.start_fit(data, ("temperature", {})))
    found = place.fit(waiting.id)
    assert (found.status, found.attempt, found.started_at) == (FitStatus.CANCELLED, 0, None)


def test_a_worker_of_two_queues_runs_one_fit_at_a_time(place: Place, crew: Crew) -> None:
    data = place.dataset()
    busy = [place.start_fit(data, ENDLESS) for _ in crew.processes]
    runs_on = {place.wait(fit, RUNNING).worker or "": fit for fit in busy}
    other = place.start_fit(data, ("temperature", {}), queue=GPU)
    time.sleep(1.0)
    assert place.fit(other.id).status is FitStatus.QUEUED
    with place.database.write() as store:
        for fit in busy:
            store.fits.cancel(fit.id)
    after = place.wait(other)
    assert after.status is FitStatus.SUCCEEDED
    before = place.wait(runs_on[after.worker or ""])
    assert before.finished_at is not None
    assert after.started_at is not None
    assert after.started_at >= before.finished_at


def test_a_dataset_for_one_fit_is_deleted_after_it(place: Place, crew: Crew) -> None:
    data = place.dataset(delete_after_fit=True)
    place.wait(place.start_fit(data, ("temperature", {})))
    wait_until(lambda: not place.has_bytes_of(data), 5)


def test_housekeeping_deletes_datasets_of_fits_cancelled_before_they_ran(
    place: Place, crew: Crew
) -> None:
    spent, kept = place.dataset(delete_after_fit=True), place.dataset()
    with place.database.write() as store:
        for data in (spent, kept):
            values = {"calibrator": place.calibrator.id, "calibrator_name": "digits", "order": {}}
            fit = store.fits.add(
                place.workspace, dataset=data.id, queue="fit.cpu", created_by="tests", **values
            )
            store.fits.cancel(fit.id)
        store.idempotency.keep(place.workspace, "k", "0" * 64, {})
    wait_until(lambda: not place.has_bytes_of(spent), 10)
    with place.database.read() as store:
        assert store.datasets.get(place.workspace, spent.id) is None
        assert store.datasets.get(place.workspace, kept.id) is not None
        assert store.idempotency.find(place.workspace, "k") is not None


@by_the_clock
def test_a_stopping_worker_requeues_its_fit(place: Place, crew: Crew) -> None:
    fit = place.start_fit(place.dataset(), SOME_SECONDS)
    leaver = crew.running(fit)
    left_at = time.monotonic()
    leaver.send_signal(signal.SIGTERM)
    assert leaver.wait(timeout=5) == 0
    assert time.monotonic() - left_at < 5
    crew.replace(leaver)
    assert "Traceback" not in crew.log()
    with place.database.read() as store:
        assert not [one for one in store.workers.alive(60) if f"-{leaver.pid}-" in one.id]
    done = place.wait(fit)
    assert (done.status, done.attempt) == (FitStatus.SUCCEEDED, 1)
    assert f"-{leaver.pid}-" not in (done.worker or "")
    assert len(place.versions_of(fit)) == 1


def test_a_killed_workers_fit_is_run_by_another_and_written_once(place: Place, crew: Crew) -> None:
    fit = place.start_fit(place.dataset(), SOME_SECONDS)
    victim = crew.running(fit)
    victim.kill()
    crew.replace(victim)
    done = place.wait(fit)
    assert (done.status, done.attempt) == (FitStatus.SUCCEEDED, 2)
    assert done.versions == place.versions_of(fit)
    assert len(done.versions) == 1


def test_a_suspended_worker_changes_nothing_when_it_resumes(place: Place, crew: Crew) -> None:
    place.enter_new_workspace()
    fit = place.start_fit(place.dataset(), SOME_SECONDS)
    sleeper = crew.running(fit)
    place.put_to_sleep(sleeper)
    done = place.wait(fit)
    sleeper.send_signal(signal.SIGCONT)
    assert (done.status, done.attempt) == (FitStatus.SUCCEEDED, 2)
    versions = place.versions_of(fit)
    place.enter_new_workspace()
    again = [place.start_fit(place.dataset(), ("temperature", {})) for _ in range(3)]
    assert {place.wait(one).status for one in again} == {FitStatus.SUCCEEDED}
    assert sleeper.poll() is None
    assert place.fit(fit.id) == done
    assert place.versions_of(fit) == versions == done.versions
