"""The queue may deliver a fit twice, late, or out of order: it is done once all the same."""

from __future__ import annotations

import random
from collections.abc import Callable

from helpers.both_backends import on_both
from helpers.live_service import wait_until
from helpers.sites import QUICK, Site

from service.storage.records import Fit, FitStatus

CREW = 3
COPIES = 4
TOGETHER = 5


def deliver_again(site: Site, *fits: Fit) -> None:
    """Put further entries for these fits on their queue, all at once."""
    with site.place.database.write() as store:
        for fit in fits:
            site.place.queue.enqueue_again(store, fit)


def check_once(site: Site, fit: Fit) -> Fit:
    """The fit, which was started once and has made one version."""
    done = site.place.wait(fit)
    assert (done.status, done.attempt) == (FitStatus.SUCCEEDED, 1), done
    assert len(done.versions) == 1
    assert site.place.versions_of(fit) == done.versions
    return done


def all_is_delivered(site: Site) -> None:
    wait_until(lambda: site.entries_left() == 0, seconds=60)


@on_both
def test_a_fit_delivered_many_times_is_done_once(site: Site, note: Callable[..., None]) -> None:
    count = 10
    site.staff(CREW)
    for _ in range(count):
        all_is_delivered(site)  # so that the workers are idle and take the copies at once
        fit = site.place.order(site.place.dataset(), QUICK)
        deliver_again(site, *[fit] * COPIES)
        check_once(site, fit)
        all_is_delivered(site)
        check_once(site, fit)
    note(f"duplicate delivery ({site.kind})", count, copies=str(1 + COPIES))


@on_both
def test_fits_delivered_out_of_order_and_late_are_done_once(
    site: Site, note: Callable[..., None]
) -> None:
    count = 10
    dice = random.Random(5)  # noqa: S311
    site.staff(CREW)
    for _ in range(count):
        fits = [site.place.order(site.place.dataset(), QUICK) for _ in range(TOGETHER)]
        copies = fits * 2
        dice.shuffle(copies)
        deliver_again(site, *copies)
        done = [check_once(site, fit) for fit in fits]
        dice.shuffle(fits)
        deliver_again(site, *fits)  # after their end
        all_is_delivered(site)
        assert [site.place.fit(one.id) for one in done] == done
        for fit in fits:
            check_once(site, fit)
    note(f"reordered and late delivery ({site.kind})", count, fits_each=str(TOGETHER))


@on_both
def test_a_cancelled_fit_delivered_again_stays_cancelled(site: Site) -> None:
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
        site.place.queue.enqueue(store, fit)
        site.place.queue.enqueue_again(store, fit)
    all_is_delivered(site)
    found = site.place.fit(fit.id)
    assert (found.status, found.attempt) == (FitStatus.CANCELLED, 0)
    assert site.place.versions_of(fit) == []
