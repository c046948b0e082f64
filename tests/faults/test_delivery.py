"""Workers may be woken repeatedly, late, or for nothing: every fit still runs exactly once."""

from __future__ import annotations

import random
from collections.abc import Callable

from helpers.both_backends import on_both
from helpers.live_service import wait_until
from helpers.sites import QUICK, Site

from service.storage.notifications import FITS, announce
from service.storage.records import Fit, FitStatus

CREW = 3
COPIES = 4
TOGETHER = 5


def wake_all(site: Site, times: int = COPIES) -> None:
    """Make all workers look for fits, as any notification does."""
    for _ in range(times):
        with site.place.database.write() as store:
            store.chores.claim("nothing", 0.0)
            announce(store.session, FITS)


def check_once(site: Site, fit: Fit) -> Fit:
    """Check that the fit was started once and created one version; return it."""
    done = site.place.wait(fit)
    assert (done.status, done.attempt) == (FitStatus.SUCCEEDED, 1), done
    assert len(done.versions) == 1
    assert site.place.versions_of(fit) == done.versions
    return done


def all_is_done(site: Site) -> None:
    wait_until(lambda: site.open_fits() == 0, seconds=60)


@on_both
def test_a_fit_announced_many_times_runs_once(site: Site, note: Callable[..., None]) -> None:
    count = 10
    site.staff(CREW)
    for _ in range(count):
        all_is_done(site)  # so that idle workers try to claim it at the same time
        fit = site.place.start_fit(site.place.dataset(), QUICK)
        wake_all(site)
        check_once(site, fit)
        all_is_done(site)
        check_once(site, fit)
    note(f"many wake-ups for one fit ({site.kind})", count, copies=str(1 + COPIES))


@on_both
def test_requeued_fits_announced_late_run_once(site: Site, note: Callable[..., None]) -> None:
    count = 10
    dice = random.Random(5)  # noqa: S311
    site.staff(CREW)
    for _ in range(count):
        fits = [site.place.start_fit(site.place.dataset(), QUICK) for _ in range(TOGETHER)]
        dice.shuffle(fits)
        for fit in fits:  # a message to repeat an attempt that never took place
            with site.place.database.write() as store:
                assert not store.fits.hand_back(fit.id, 7)
        done = [check_once(site, fit) for fit in fits]
        for fit in fits:  # after their end
            with site.place.database.write() as store:
                assert not store.fits.hand_back(fit.id, 1)
                assert not store.fits.requeue(fit.id, 1)
        wake_all(site)
        all_is_done(site)
        assert [site.place.fit(one.id) for one in done] == done
        for fit in fits:
            check_once(site, fit)
    note(f"late and false hand-backs ({site.kind})", count, fits_each=str(TOGETHER))


@on_both
def test_a_cancelled_fit_that_workers_are_woken_for_stays_cancelled(site: Site) -> None:
    site.staff(CREW)
    with site.place.database.write() as store:
        fit = store.fits.add(
            site.place.workspace,
            calibrator=site.place.calibrator.id,
            calibrator_name=site.place.calibrator.name,
            order={},
            dataset="ds_none",
            evaluation=None,
            queue="fit.cpu",
            created_by="tests",
        )
        store.fits.cancel(fit.id)
    wake_all(site)
    all_is_done(site)
    found = site.place.fit(fit.id)
    assert (found.status, found.attempt) == (FitStatus.CANCELLED, 0)
    assert site.place.versions_of(fit) == []
