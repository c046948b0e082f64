"""Duties of workers for each other and for the queue, without worker processes."""

from __future__ import annotations

import threading
import time

import pytest
from helpers.fit_fixtures import Place, begin
from helpers.live_service import by_the_clock, wait_until, within
from helpers.run_posts import post
from helpers.workers import housekeeping
from sqlalchemy import update
from sqlalchemy.exc import OperationalError
from structlog.testing import capture_logs

from calibrators.adafocal import BinStatistics
from service.access.permissions import Principal, Scope
from service.errors import NoSpace
from service.fits.execution import Ending, FitAttempt, Stop, conclude
from service.fits.queue import claim
from service.fits.service import CPU
from service.runs.service import SentStatistics
from service.runs.sessions import Opening, open_session
from service.storage.blobs import Blobs
from service.storage.records import FitStatus
from service.storage.tables import workers
from service.worker.queue_worker import RunningFit, retry

pytestmark = pytest.mark.both_backends


def test_three_lost_workers_are_enough(place: Place) -> None:
    fit = place.start_fit(place.dataset(), ("temperature", {}))
    alive = housekeeping(place, "alive", silence=0.4)
    for attempt in range(1, 4):
        with place.database.write() as store:
            store.workers.beat(f"dead-{attempt}", queues=["fit.cpu"], device="cpu")
            assert store.fits.start(fit.id, worker=f"dead-{attempt}", device="cpu") is not None
        deadline = time.monotonic() + 10
        while place.fit(fit.id).status is FitStatus.RUNNING:
            assert time.monotonic() < deadline
            alive.beat()
            time.sleep(0.02)
        assert place.fit(fit.id).status is (FitStatus.FAILED if attempt == 3 else FitStatus.QUEUED)
    found = place.fit(fit.id)
    assert found.error is not None
    assert found.error["code"] == "worker_lost"
    assert "3 times" in found.error["message"]
    with place.database.read() as store:
        assert [worker.id for worker in store.workers.alive(60)] == ["alive"]


@by_the_clock
def test_a_worker_that_was_silent_itself_declares_no_one_dead(place: Place) -> None:
    fit = place.start_fit(place.dataset(), ("temperature", {}))
    first = housekeeping(place, "first", silence=0.2)
    with place.database.write() as store:
        store.workers.beat("second", queues=["fit.cpu"], device="cpu")
        store.fits.start(fit.id, worker="second", device="cpu")
    first.beat()
    time.sleep(0.5)  # as if the database had been away for both
    first.beat()
    assert place.fit(fit.id).worker == "second"


class SlowBlobs(Blobs):
    """A store that deletes slowly."""

    def delete(self, key: str) -> None:
        time.sleep(3.0)
        super().delete(key)


@by_the_clock
def test_long_housekeeping_does_not_stop_heartbeats(place: Place) -> None:
    place.blobs = SlowBlobs(place.settings.blobs)
    spent = place.dataset(delete_after_fit=True)
    fit = place.start_fit(spent, ("temperature", {}))
    with place.database.write() as store:
        store.fits.cancel(fit.id)
    busy = housekeeping(place, "busy", silence=2.0, heartbeat=0.1, housekeeping=0.1)
    busy.start()
    beats = 0
    try:
        deadline = time.monotonic() + 20
        while place.has_bytes_of(spent):
            with place.database.read() as store:
                beats += [one.id for one in store.workers.alive(1.5)] == ["busy"]
                silent = store.workers.silent(2.0)
            assert silent == []
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        busy.stop()
    assert beats > 10


def begun(place: Place) -> FitAttempt:
    """Return a fit that a worker has claimed."""
    order = place.start_fit(place.dataset(), ("temperature", {}))
    job = begin(place.database, order.id, worker="w", device="cpu")
    assert job is not None
    return job


def hooks(place: Place, job: FitAttempt, time_limit: float = 60.0) -> RunningFit:
    return RunningFit(
        place.database, job, every=0.02, leaving=threading.Event(), time_limit=time_limit
    )


@pytest.mark.parametrize("why", ["cancel", "time limit"])
def test_a_fit_that_is_too_busy_to_stop_is_ended_within_two_seconds(place: Place, why: str) -> None:
    def ended_after() -> float:
        job = begun(place)
        with hooks(place, job, 60.0 if why == "cancel" else 0.0) as running:
            told = time.monotonic()
            if why == "cancel":
                with place.database.write() as store:
                    store.fits.cancel(job.fit.id)
            done = place.wait(job.fit)
            # its own notification arrives a little later
            wait_until(lambda: running.stop() is Stop.ABANDON, pause=0.01)
            took = time.monotonic() - told
        assert done.status is (FitStatus.CANCELLED if why == "cancel" else FitStatus.FAILED)
        assert (done.error or {}).get("code") == (None if why == "cancel" else "time_limit")
        assert conclude(place.database, job.fit, Ending(FitStatus.SUCCEEDED)) is None
        assert place.fit(job.fit.id) == done
        return took

    within(2, ended_after)


def test_a_fit_notices_its_cancellation_after_an_error(place: Place) -> None:
    job = begun(place)
    fit = job.fit
    with capture_logs() as logged, hooks(place, job) as running:
        running.progress({"loss": object()})  # this is not JSON
        time.sleep(0.3)
        assert place.fit(fit.id).progress is None
        running.progress({"step": 1})
        with place.database.write() as store:
            store.fits.cancel(fit.id)
        deadline = time.monotonic() + 5
        while running.stop() is None:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert running.stop() is Stop.CANCEL
    assert place.fit(fit.id).progress == {"step": 1}
    assert [one["exc_info"] is not None for one in logged] == [True]


def test_a_fit_unknown_to_its_worker_is_requeued(place: Place) -> None:
    fit = place.start_fit(place.dataset(), ("temperature", {}))
    with place.database.write() as store:
        store.fits.start(fit.id, worker="forgetful", device="cpu")
    housekeeping(place, "forgetful", silence=60).beat()
    assert (place.fit(fit.id).status, place.fit(fit.id).attempt) == (FitStatus.QUEUED, 1)


def test_a_fit_is_left_to_a_worker_that_is_taking_it(place: Place) -> None:
    fit = place.start_fit(place.dataset(), ("temperature", {}))
    with place.database.write() as store:
        store.fits.start(fit.id, worker="busy", device="cpu")
    housekeeping(place, "busy", silence=60, current_fits=lambda: None).beat()
    assert place.fit(fit.id).status is FitStatus.RUNNING


def test_a_fit_of_an_unknown_worker_is_requeued(place: Place) -> None:
    fit = place.start_fit(place.dataset(), ("temperature", {}))
    with place.database.write() as store:
        store.fits.start(fit.id, worker="unknown", device="cpu")
    housekeeping(place, "alive", silence=60).keep_house()
    assert (place.fit(fit.id).status, place.fit(fit.id).attempt) == (FitStatus.QUEUED, 1)


def test_a_worker_declared_dead_claims_nothing_before_its_next_heartbeat(place: Place) -> None:
    fit = place.start_fit(place.dataset(), ("temperature", {}))

    def claimed() -> bool:
        found = claim(place.database, [CPU], worker="woken", device="cpu")
        return found.attempt is not None

    assert not claimed()
    assert place.fit(fit.id).attempt == 0
    housekeeping(place, "woken", silence=60).beat()
    assert claimed()


def test_a_claiming_worker_is_not_declared_dead(place: Place) -> None:
    """A claim counts as a heartbeat, and a concurrent check of its worker leaves it alone."""
    with place.database.write() as store:
        store.workers.beat("slow", queues=[CPU], device="cpu")
        store.session.execute(update(workers).values(seen_at=1.0))
    with place.database.write() as store:
        assert store.workers.renew("slow")
        if not place.database.is_sqlite:  # on SQLite no other writer could proceed
            with place.database.write() as other:
                assert not other.workers.remove_silent("slow", 60)
    with place.database.write() as store:
        assert not store.workers.remove_silent("slow", 60)
        assert store.workers.remove_silent("slow", -60)


def test_retry_seconds_ends() -> None:
    tried = []

    def away() -> None:
        tried.append(1)
        raise OperationalError("SELECT 1", {}, ConnectionError())

    with pytest.raises(OperationalError):
        retry(away, 0.5)
    assert len(tried) == 3


def test_retry_seconds_waits_for_room() -> None:
    answers = iter([NoSpace("no_space", "full"), NoSpace("no_space", "full"), None])

    def write() -> str:
        if error := next(answers):
            raise error
        return "written"

    assert retry(write, 10) == "written"


def test_a_worker_decides_steps_of_runs_that_have_waited_long_enough(place: Place) -> None:
    asked = Opening("job", "monitor", None, 2, "service", 0.1, "a", None, None, {}, "")
    statistics = BinStatistics.from_confidences([0.9], [True])
    caller = Principal(place.workspace, "tests", frozenset({Scope.FIT}))
    with place.database.write() as store:
        opened = open_session(store, caller, asked)
    post(place.database, caller, "job", SentStatistics("a", 1, 1, statistics, None))
    alive = housekeeping(place, "alive", silence=10.0, merging=0.05)
    alive.start()
    try:
        deadline = time.monotonic() + 10
        found = None
        while found is None:
            assert time.monotonic() < deadline
            time.sleep(0.05)
            with place.database.read() as store:
                found = store.run_steps.last(opened.session)
    finally:
        alive.stop()
    assert (found.step, found.ranks, found.partial) == (1, [1], True)
