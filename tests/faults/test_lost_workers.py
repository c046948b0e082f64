"""Workers that are killed or paused in the middle of a fit."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext

import pytest
from helpers.both_backends import on_both
from helpers.live_service import wait_until
from helpers.sites import ENDLESS, QUICK, SOME_SECONDS, Site, Worker
from sqlalchemy.exc import DBAPIError

from service.errors import Unavailable
from service.storage.records import Fit, FitStatus

CREW = 4
AT_ONCE = 2
AGAIN_SECONDS = 15.0
TWO_SECONDS = 2.0


@on_both
def test_a_killed_workers_fit_runs_again_and_is_written_once(
    site: Site, note: Callable[..., None]
) -> None:
    count = 20 if site.is_fleet else 4
    seconds: list[float] = []
    for _ in range(count // AT_ONCE):
        site.staff(CREW)
        fits = [order_elsewhere(site) for _ in range(AT_ONCE)]
        with ThreadPoolExecutor(AT_ONCE) as threads:
            seconds += threads.map(lambda fit: kill_its_worker(site, fit), fits)
        for fit in fits:
            done = site.place.wait(fit, seconds=60)
            assert (done.status, done.attempt) == (FitStatus.SUCCEEDED, 2), done
            assert len(done.versions) == 1
            assert site.place.versions_of(fit) == done.versions
    assert max(seconds) < AGAIN_SECONDS, seconds
    note(f"kill -9 a worker in mid-fit ({site.kind})", count, longest_until_again=max(seconds))


def order_elsewhere(site: Site) -> Fit:
    """Start a fit in a new workspace, which has not lost a worker yet."""
    site.place.enter_new_workspace()
    return site.place.start_fit(site.place.dataset(), SOME_SECONDS)


def kill_its_worker(site: Site, fit: Fit) -> float:
    """Kill the worker of a fit; return the seconds until the fit runs again."""
    victim = site.under_way(fit)
    killed_at = time.monotonic()
    site.dismiss(victim)
    site.hire()
    wait_until(lambda: runs_for_the_second_time(site, fit), seconds=60)
    return time.monotonic() - killed_at


def runs_for_the_second_time(site: Site, fit: Fit) -> bool:
    found = site.place.fit(fit.id)
    return found.attempt == 2 and found.status is not FitStatus.QUEUED


@on_both
def test_a_paused_worker_changes_nothing_when_it_resumes(
    site: Site, note: Callable[..., None]
) -> None:
    count = 5 if site.is_fleet else 2
    site.staff(CREW)
    for number in range(count):
        fit = order_elsewhere(site)
        sleeper = site.under_way(fit)
        in_a_transaction = site.is_fleet and number == 0
        with row_held(site, fit) if in_a_transaction else nullcontext():
            site.place.put_to_sleep(sleeper.process)
            try:
                done = site.place.wait(fit, seconds=60)
            finally:
                sleeper.process.send_signal(signal.SIGCONT)
        assert (done.status, done.attempt) == (FitStatus.SUCCEEDED, 2), done
        assert not sleeper.runs(done)
        site.place.enter_new_workspace()
        give_it_work(site, sleeper)
        assert site.place.fit(fit.id) == done
        assert site.place.versions_of(fit) == done.versions
        assert len(done.versions) == 1
    note(f"SIGSTOP a worker until taken for dead ({site.kind})", count)


@contextmanager
def row_held(site: Site, fit: Fit) -> Iterator[None]:
    """Lock the fit's row, like a worker that is paused in the middle of a transaction.

    PostgreSQL ends such a transaction. SQLite has a single lock, so all others would have to wait.
    """
    lost = (DBAPIError, Unavailable)
    with pytest.raises(lost), site.place.database.write() as store:  # noqa: PT012
        assert store.fits.advance(fit.id, 1, {}) is False
        yield


def give_it_work(site: Site, worker: Worker) -> None:
    """Start fits until this worker has run one; its previous fit has then ended."""
    data = site.place.dataset()
    for _ in range(50):
        done = site.place.wait(site.place.start_fit(data, QUICK))
        assert done.status is FitStatus.SUCCEEDED, done
        if worker.runs(done):
            return
    raise AssertionError(f"the worker that woke takes no fits:\n{worker.log.read_text()}")


@on_both
def test_the_time_limit_reaches_a_running_fit(own_site: Site, note: Callable[..., None]) -> None:
    site, limit = own_site, 3.0
    site.hire(fit_seconds=limit)
    fit = site.place.start_fit(site.place.dataset(), ENDLESS)
    done = site.place.wait(fit)
    assert done.status is FitStatus.FAILED
    assert done.error is not None
    assert done.error["code"] == "time_limit"
    assert done.started_at is not None
    assert done.finished_at is not None
    late = done.finished_at - done.started_at - limit
    assert late < TWO_SECONDS
    cancelled = site.place.start_fit(site.place.dataset(), ENDLESS)
    site.under_way(cancelled)
    asked_at = time.monotonic()
    with site.place.database.write() as store:
        store.fits.cancel(cancelled.id)
    assert site.place.wait(cancelled).status is FitStatus.CANCELLED
    took = time.monotonic() - asked_at
    assert took < TWO_SECONDS
    note(f"time limit and cancel ({site.kind})", 2, limit_after=late, cancel_after=took)
