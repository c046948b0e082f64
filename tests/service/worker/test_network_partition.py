"""Workers cut off from a store, or whose store is down: nothing is lost or done twice."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.backends import Fleet
from helpers.fit_fixtures import Hooks, Place, begin
from helpers.live_service import wait_until
from helpers.tcp_proxy import Line, line
from helpers.workers import Crew
from sqlalchemy import make_url, text

from service.fits.execution import run
from service.storage.records import FitStatus
from service.worker.queue_worker import RetryingBlobs

LATE = re.compile("fit_taken_over|fit_abandoned")
SOME_SECONDS = ("smart", {"steps": 1200})


@pytest.fixture
def place(shared_fleet: Fleet, tmp_path: Path) -> Iterator[Place]:
    made = Place(**shared_fleet.settings(tmp_path))
    yield made
    made.close()


@pytest.fixture
def cut_off(place: Place) -> Iterator[tuple[Crew, Line]]:
    """Return a worker and its connection to the database."""
    url = make_url(place.settings.database)
    crew = Crew(place)
    with line(url.port or 0) as its_line:
        through = url.set(port=its_line.port).render_as_string(hide_password=False)
        crew.add(CALIBRD_DATABASE_URL=through)
        yield crew, its_line
        crew.end()


def names_of_connections(place: Place) -> set[str]:
    """Return the application names of the connections to the database."""
    query = "SELECT DISTINCT application_name FROM pg_stat_activity WHERE datname = :name"
    with place.database.read() as store:
        return set(store.session.scalars(text(query), {"name": place.database.url.database}))


def test_a_worker_cut_off_from_the_database(place: Place, cut_off: tuple[Crew, Line]) -> None:
    crew, its_line = cut_off
    fit = place.start_fit(place.dataset(), SOME_SECONDS)
    crew.running(fit)
    # otherwise a worker would wait for minutes on a cut connection
    assert names_of_connections(place) == {"calibrd"}
    lost = place.fit(fit.id).worker
    its_line.cut()
    crew.add()
    done = place.wait(fit)
    assert (done.status, done.attempt) == (FitStatus.SUCCEEDED, 2)
    assert done.worker != lost
    its_line.mend()

    def is_back() -> bool:
        with place.database.read() as store:
            return lost in [worker.id for worker in store.workers.alive(2)]

    wait_until(is_back, 30)
    wait_until(lambda: LATE.search(crew.log()), 30)
    crew.end(1)
    again = place.wait(place.start_fit(place.dataset(), ("temperature", {})))
    assert (again.status, again.worker) == (FitStatus.SUCCEEDED, lost)
    assert place.fit(fit.id) == done
    assert place.versions_of(fit) == done.versions
    assert len(done.versions) == 1


def test_a_fit_outlasts_an_outage_of_the_blob_store(
    shared_fleet: Fleet, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit = place.start_fit(place.dataset(), ("temperature", {}))
    job = begin(place.database, fit.id, worker="w1", device="cpu")
    assert job is not None
    with line(make_url(shared_fleet.blobs.url).port or 0) as its_line:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{its_line.port}")
        its_line.hang_up()
        for seconds, mended_after, status in ((0, 60, "failed"), (30, 2, "succeeded")):
            blobs = RetryingBlobs(place.settings.blobs, seconds=seconds)
            timer = threading.Timer(mended_after, its_line.mend)
            timer.start()
            ending = run(job, blobs, Hooks(), device="cpu", time_limit=60)
            timer.cancel()
            assert ending is not None
            assert ending.status == status, ending.error
