"""A workspace whose fits lose workers waits before its next fit; others do not."""

from __future__ import annotations

import pytest
from helpers.fit_fixtures import Place
from helpers.workers import housekeeping
from sqlalchemy import update

from service.fits.queue import FIRST_PAUSE, Claim, claim, seconds_to_wait
from service.fits.service import CPU
from service.storage.records import Fit, FitStatus
from service.storage.tables import fits

pytestmark = pytest.mark.both_backends


def lose(place: Place, fit: Fit) -> None:
    """Start a fit on a worker that is gone, and let another worker notice."""
    with place.database.write() as store:
        assert store.fits.start(fit.id, worker="alive", device="cpu") is not None
    housekeeping(place, "alive", silence=60).beat()
    assert place.fit(fit.id).status is not FitStatus.RUNNING


def to_wait(place: Place, workspace: str | None = None) -> float:
    with place.database.read() as store:
        return seconds_to_wait(store, workspace or place.workspace)


def claimed(place: Place) -> Claim:
    """Return the fit that a worker gets when it looks for one."""
    with place.database.write() as store:
        store.workers.beat("claimer", queues=[CPU], device="cpu")
    return claim(place.database, [CPU], worker="claimer", device="cpu")


def test_a_fit_that_lost_its_worker_waits_longer_each_time(place: Place) -> None:
    fit = place.start_fit(place.dataset(), ("temperature", {}))
    assert to_wait(place) == 0
    for losses in range(3):
        lose(place, fit)
        pause = FIRST_PAUSE * 2**losses
        assert pause - 2 < to_wait(place) <= pause
    assert place.fit(fit.id).status is FitStatus.FAILED


def test_other_fits_of_the_workspace_wait_as_well_and_those_of_others_do_not(place: Place) -> None:
    first, second = (place.start_fit(place.dataset(), ("temperature", {})) for _ in range(2))
    lose(place, first)
    assert to_wait(place, "ws_other") == 0
    found = claimed(place)
    assert found.attempt is None
    assert FIRST_PAUSE - 2 < found.seconds <= FIRST_PAUSE  # it looks again as soon as it may
    place.enter_new_workspace()
    other = place.start_fit(place.dataset(), ("temperature", {}))
    found = claimed(place)
    assert found.attempt is not None
    assert found.attempt.fit.id == other.id
    with place.database.write() as store:
        store.session.execute(update(fits).values(lost_at=fits.c.lost_at - FIRST_PAUSE))
    found = claimed(place)
    assert found.attempt is not None
    assert found.attempt.fit.id == first.id
    assert place.fit(second.id).status is FitStatus.QUEUED
