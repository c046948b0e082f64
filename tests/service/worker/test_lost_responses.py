"""A worker whose database commits without a response, or whose fit has ended meanwhile."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from helpers.fit_fixtures import Place
from helpers.raw_blobs import keys

from service.errors import Unavailable
from service.fits.execution import conclude
from service.fits.service import CPU
from service.storage.records import FitStatus
from service.worker import queue_worker
from service.worker.housekeeping import WorkerPace
from service.worker.queue_worker import QueueWorker


def worked_once(place: Place) -> None:
    """Let a worker in this process claim and run a fit."""
    worker = QueueWorker(place.settings, [CPU], "cpu", WorkerPace(), threading.Event())
    worker._housekeeping.beat()
    worker.work_once()


@pytest.fixture
def place(tmp_path: Path):
    made = Place(tmp_path)
    yield made
    made.close()


def test_blobs_of_a_version_stay_if_the_commit_response_is_lost(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[None] = []

    def losing_conclude(*arguments: Any) -> Any:
        done = conclude(*arguments)
        calls.append(None)
        if len(calls) == 1:
            raise Unavailable("database_unavailable", "the connection was lost")
        return done

    monkeypatch.setattr(queue_worker, "conclude", losing_conclude)
    fit = place.start_fit(place.dataset(), ("temperature", {}))
    worked_once(place)
    assert len(calls) == 2
    assert place.fit(fit.id).status is FitStatus.SUCCEEDED
    assert {key.split("/")[1] for key in keys(place.blobs)} >= {"maps", "judged"}


def test_blobs_of_a_fit_that_was_ended_meanwhile_are_deleted(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late_conclude(*arguments: Any) -> Any:
        with place.database.write() as store:
            store.fits.finish(fit.id, 1, FitStatus.CANCELLED)
        return conclude(*arguments)

    monkeypatch.setattr(queue_worker, "conclude", late_conclude)
    fit = place.start_fit(place.dataset(), ("temperature", {}))
    before = keys(place.blobs)
    worked_once(place)
    assert place.fit(fit.id).status is FitStatus.CANCELLED
    assert keys(place.blobs) == before
