"""Fits that do not return: they end in time, and their worker takes the next one."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import psutil
import pytest
from helpers.backends import Embedded
from helpers.fit_fixtures import Place
from helpers.live_service import ROOT, wait_until
from helpers.workers import RUNNING

from service.storage.blob_keys import dataset_key
from service.storage.records import Fit, FitStatus

LIMIT = 3.0
# the limit, the second in which a fit may heed it, and what a busy machine takes
SOON = 25.0
# a single numpy call that takes minutes and hundreds of megabytes
COMPUTES = """
import os
from pathlib import Path
import numpy as np
from calibrators.methods.vector import VectorScaling

def fit_in(*_args, **_named):
    Path(os.environ["CALIBRD_TEST_MARK"]).touch()
    np.linalg.svd(np.random.default_rng(0).normal(size=(6000, 6000)))

VectorScaling.fit_in = fit_in
"""
WORK = """
from service.__main__ import main
main(["worker"])
"""
STUCK = ("vector", {})
QUICK = ("temperature", {})


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    limit = getattr(request, "param", LIMIT)
    made = Place(**Embedded().settings(tmp_path), fit_seconds=limit)
    yield made
    made.close()


@pytest.fixture
def worker(place: Place, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Return a worker whose vector scaling takes minutes."""
    with (tmp_path / "worker.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", COMPUTES + WORK],
            cwd=ROOT,
            env={
                **os.environ,
                **place.environment,
                "OMP_NUM_THREADS": "1",
                "CALIBRD_TEST_MARK": str(tmp_path / "mark"),
            },
            stderr=log,
        )
    yield process
    process.kill()
    process.wait()


def check_goes_on(place: Place, process: subprocess.Popen[bytes], stuck: Fit) -> None:
    """Check that the next fit succeeds in the same process, which holds nothing of the last one."""
    then = place.wait(place.start_fit(place.dataset(), QUICK), seconds=120)
    assert then.status is FitStatus.SUCCEEDED
    assert process.poll() is None
    assert f"-{process.pid}-" in (then.worker or "")
    assert then.worker != place.fit(stuck.id).worker
    assert psutil.Process(process.pid).memory_info().rss < 700 << 20
    with place.database.read() as store:
        assert [one.id for one in store.workers.alive(60)] == [then.worker]
        assert store.fits.running_on(place.fit(stuck.id).worker or "") == []


def test_a_fit_that_computes_beyond_its_limit_does_not_keep_its_worker(
    place: Place, worker: subprocess.Popen[bytes]
) -> None:
    fit = place.wait(place.start_fit(place.dataset(), STUCK), RUNNING, seconds=120)
    began = time.monotonic()
    done = place.wait(fit)
    assert time.monotonic() - began < SOON
    assert (done.status, (done.error or {})["code"]) == (FitStatus.FAILED, "time_limit")
    check_goes_on(place, worker, fit)
    assert place.fit(fit.id) == done


@pytest.mark.parametrize("place", [600.0], indirect=True)
def test_a_cancelled_fit_that_does_not_come_back_does_not_keep_its_worker(
    place: Place, worker: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    fit = place.start_fit(place.dataset(), STUCK)
    wait_until((tmp_path / "mark").exists, 120)
    with place.database.write() as store:
        store.fits.cancel(fit.id)
    assert place.wait(fit).status is FitStatus.CANCELLED
    check_goes_on(place, worker, fit)


def test_a_store_that_never_responds_does_not_block_a_worker(
    place: Place, worker: subprocess.Popen[bytes]
) -> None:
    place.dataset()  # else the store would seem to be another one, which is empty
    dataset = place.dataset()
    key = dataset_key(place.workspace, dataset.id, dataset.sha256 or "")
    file = Path(unquote(urlsplit(place.settings.blobs).path)) / key
    file.unlink()
    os.mkfifo(file)  # like a file on a hanging server: opening it does not return
    fit = place.start_fit(dataset, QUICK)
    done = place.wait(fit, seconds=120)
    assert (done.error or {})["code"] == "time_limit"
    check_goes_on(place, worker, fit)


def test_fits_that_wait_behind_a_stuck_one_lose_no_attempt(
    place: Place, worker: subprocess.Popen[Any]
) -> None:
    stuck = place.wait(place.start_fit(place.dataset(), STUCK), RUNNING, seconds=120)
    waiting = [place.start_fit(place.dataset(), QUICK) for _ in range(3)]
    assert place.wait(stuck).status is FitStatus.FAILED
    for fit in waiting:
        done = place.wait(fit, seconds=120)
        assert (done.status, done.attempt) == (FitStatus.SUCCEEDED, 1)
    wait_until(lambda: worker.poll() is None)
