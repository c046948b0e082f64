"""Fits in real worker processes on a real database file: run, cancelled, killed, handed back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fit_jobs import Place

from calibrators import archive
from service.core.blob_keys import map_key, onnx_key
from service.core.fits import GPU, QUEUES
from service.core.keys import workspace_named
from service.jobs.queue import Entry
from service.jobs.supervisor import SUPERVISOR
from service.storage.records import Fit, FitStatus

# as in service, but quicker to take a worker for dead
WORKER = """
from service.jobs.upkeep import Pace
from service.jobs.worker import run_worker
from service.settings import Settings
run_worker(Settings(), pace=Pace(heartbeat=0.5, silence=3.0, housekeeping=1.0))
"""
COMMAND = (sys.executable, "-c", WORKER)
RUNNING = (FitStatus.RUNNING,)
ENDLESS = ("smart", {"steps": 100_000})
SOME_SECONDS = ("smart", {"steps": 1000})


class Crew:
    """Worker processes, stopped by their process ids at the end."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.processes: list[subprocess.Popen[str]] = []

    def add(self, count: int = 1, command: tuple[str, ...] = COMMAND) -> None:
        """Start more of them."""
        environment = {
            **os.environ,
            "CALIBRD_DATA_DIR": str(self.place.settings.data_dir),
            "CALIBRD_LOG_FORMAT": "console",
        }
        for _ in range(count):
            self.processes.append(
                subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
            )

    def running(self, fit: Fit) -> subprocess.Popen[str]:
        """The process that a fit runs in, some way into it."""
        found = self.place.wait(fit, RUNNING)
        deadline = time.monotonic() + 20
        while not (found.progress or {}).get("step"):
            assert time.monotonic() < deadline
            time.sleep(0.05)
            found = self.place.fit(fit.id)
        (process,) = [one for one in self.processes if f"-{one.pid}-" in (found.worker or "")]
        return process

    def end(self) -> None:
        """Stop all."""
        for process in self.processes:
            process.kill()
            process.communicate()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("jobs"), fit_attempts=3)
    yield made
    made.close()


@pytest.fixture(scope="module")
def crew(place: Place) -> Iterator[Crew]:
    """Two workers, for all tests of this file."""
    made = Crew(place)
    made.add(2)
    yield made
    made.end()


def test_two_methods_give_two_versions_with_maps_reports_and_onnx(place: Place, crew: Crew) -> None:
    fit = place.order(place.dataset(), ("temperature", {}), ("smart", {"steps": 100}))
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


def test_a_fit_starts_soon_after_it_was_ordered(place: Place, crew: Crew) -> None:
    data = place.dataset()
    place.wait(place.order(data, ("temperature", {})))
    done = place.wait(place.order(data, ("temperature", {})))
    assert done.started_at is not None
    assert done.started_at - done.created_at < 2


def test_a_failure_has_its_code_and_no_version(place: Place, crew: Crew) -> None:
    fit = place.order(place.dataset(), ("temperature", {}), ("smart", {"hidden": 0}))
    done = place.wait(fit)
    assert done.status is FitStatus.FAILED
    assert done.error is not None
    assert done.error["code"] == "bad_parameter"
    assert place.versions_of(fit) == []


def test_a_running_fit_tells_its_progress_and_is_cancelled_within_two_seconds(
    place: Place, crew: Crew
) -> None:
    fit = place.order(place.dataset(), ENDLESS)
    crew.running(fit)
    progress = place.fit(fit.id).progress
    assert progress is not None
    assert progress["method"] == "smart"
    assert 0 < progress["step"] < progress["total"]
    asked = time.monotonic()
    with place.database.write() as store:
        store.fits.cancel(fit.id)
    done = place.wait(fit)
    assert time.monotonic() - asked < 2
    assert done.status is FitStatus.CANCELLED
    assert place.versions_of(fit) == []


def test_a_waiting_fit_is_cancelled_at_once_and_never_starts(place: Place, crew: Crew) -> None:
    data = place.dataset()
    busy = [place.order(data, ENDLESS) for _ in crew.processes]
    for fit in busy:
        place.wait(fit, RUNNING)
    waiting = place.order(data, ("temperature", {}))
    with place.database.write() as store:
        cancelled = store.fits.cancel(waiting.id)
        assert cancelled is not None
        assert cancelled.status is FitStatus.CANCELLED
        for fit in busy:
            store.fits.cancel(fit.id)
    place.wait(place.order(data, ("temperature", {})))
    found = place.fit(waiting.id)
    assert (found.status, found.attempt, found.started_at) == (FitStatus.CANCELLED, 0, None)


def test_a_dataset_for_one_fit_is_deleted_after_it(place: Place, crew: Crew) -> None:
    data = place.dataset(delete_after_fit=True)
    place.wait(place.order(data, ("temperature", {})))
    deadline = time.monotonic() + 5
    while place.bytes_of(data).exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_what_no_worker_saw_the_end_of_is_deleted_by_the_housekeeping(
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
    deadline = time.monotonic() + 10
    while place.bytes_of(spent).exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with place.database.read() as store:
        assert store.datasets.get(place.workspace, spent.id) is None
        assert store.datasets.get(place.workspace, kept.id) is not None
        assert store.idempotency.find(place.workspace, "k") is not None


def test_a_worker_that_leaves_hands_its_fit_back(place: Place, crew: Crew) -> None:
    fit = place.order(place.dataset(), SOME_SECONDS)
    leaver = crew.running(fit)
    left_at = time.monotonic()
    leaver.send_signal(signal.SIGTERM)
    assert leaver.wait(timeout=5) == 0
    assert time.monotonic() - left_at < 5
    crew.processes.remove(leaver)
    crew.add()
    assert leaver.stderr is not None
    with leaver.stderr:
        assert "Traceback" not in leaver.stderr.read()
    with place.database.read() as store:
        assert not [one for one in store.workers.alive(60) if f"-{leaver.pid}-" in one.id]
    done = place.wait(fit)
    assert (done.status, done.attempt) == (FitStatus.SUCCEEDED, 1)
    assert f"-{leaver.pid}-" not in (done.worker or "")
    assert len(place.versions_of(fit)) == 1


def test_a_killed_workers_fit_is_run_by_another_and_written_once(place: Place, crew: Crew) -> None:
    fit = place.order(place.dataset(), SOME_SECONDS)
    victim = crew.running(fit)
    victim.kill()
    victim.communicate()
    crew.processes.remove(victim)
    crew.add()
    done = place.wait(fit)
    assert (done.status, done.attempt) == (FitStatus.SUCCEEDED, 2)
    assert done.versions == place.versions_of(fit)
    assert len(done.versions) == 1


def test_a_worker_that_slept_changes_nothing_when_it_wakes(place: Place, crew: Crew) -> None:
    fit = place.order(place.dataset(), SOME_SECONDS)
    sleeper = crew.running(fit)
    sleeper.send_signal(signal.SIGSTOP)
    done = place.wait(fit)
    sleeper.send_signal(signal.SIGCONT)
    assert (done.status, done.attempt) == (FitStatus.SUCCEEDED, 2)
    again = [place.order(place.dataset(), ("temperature", {})) for _ in range(3)]
    assert {place.wait(one).status for one in again} == {FitStatus.SUCCEEDED}
    assert sleeper.poll() is None
    assert place.fit(fit.id) == done
    assert place.versions_of(fit) == done.versions


def test_a_worker_of_two_queues_runs_one_fit_at_a_time(tmp_path: Path) -> None:
    place = Place(tmp_path)
    crew = Crew(place)
    both = WORKER.replace("Settings(), ", f"Settings(), {QUEUES}, 'cpu', ")
    crew.add(command=(sys.executable, "-c", both))
    try:
        first = place.order(place.dataset(), SOME_SECONDS)
        crew.running(first)
        second = place.order(place.dataset(), ("temperature", {}), queue=GPU)
        worker = place.fit(first.id).worker
        assert worker is not None
        deadline = time.monotonic() + 10
        while Entry(second.id, second.id) not in place.queue.taken_by(worker):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert place.fit(second.id).status is FitStatus.QUEUED
        done, after = place.wait(first), place.wait(second)
    finally:
        crew.end()
    assert done.finished_at is not None
    assert after.started_at is not None
    assert after.started_at >= done.finished_at
    assert (done.status, after.status) == (FitStatus.SUCCEEDED, FitStatus.SUCCEEDED)
    place.close()


def test_two_starters_prepare_one_database(tmp_path: Path) -> None:
    code = """
from service.jobs.prepare import prepare_database
from service.settings import Settings
from service.storage.database import Database
prepare_database(Database(Settings().database))
"""
    environment = {**os.environ, "CALIBRD_DATA_DIR": str(tmp_path)}
    starters = [
        subprocess.Popen((sys.executable, "-c", code), env=environment, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    said = [starter.communicate(timeout=30)[1] for starter in starters]
    assert [starter.returncode for starter in starters] == [0, 0], said
    place = Place(tmp_path)
    with place.database.write() as store:
        assert workspace_named(store, "default").id == place.workspace
    place.close()


def test_the_api_side_does_not_load_torch() -> None:
    code = "import sys, service.jobs.prepare, service.jobs.supervisor; print(*sys.modules)"
    done = subprocess.run(
        (sys.executable, "-c", code), check=True, timeout=30, capture_output=True, text=True
    )
    assert "dbos" in done.stdout.split()
    assert "torch" not in done.stdout.split()


def test_a_worker_leaves_when_its_supervisor_is_gone(tmp_path: Path) -> None:
    environment = {**os.environ, "CALIBRD_DATA_DIR": str(tmp_path), SUPERVISOR: "1"}
    orphan = subprocess.Popen(COMMAND, env=environment, stderr=subprocess.PIPE)
    try:
        assert b"Traceback" not in orphan.communicate(timeout=40)[1]
    finally:
        orphan.kill()
    assert orphan.returncode == 0
