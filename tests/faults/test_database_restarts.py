"""PostgreSQL crashes and recovers under load: no acknowledged write is lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from helpers.backends import Fleet, fleet
from helpers.live_service import every
from helpers.load_clients import ALIAS, CALIBRATOR, Acknowledged, Load
from helpers.sites import Site

from service.storage.blob_keys import dataset_key

LOAD_SECONDS = 2.0
BACK_SECONDS = 30.0
DRAIN_SECONDS = 120.0


@pytest.fixture
def durable_fleet() -> Iterator[Fleet]:
    """Yield a separate PostgreSQL that keeps committed data after a crash."""
    with fleet("fsync=on", "synchronous_commit=on", "full_page_writes=on") as started:
        yield started


def test_a_database_that_crashes_loses_nothing_acknowledged(
    durable_fleet: Fleet, tmp_path: Path, note: Callable[..., None]
) -> None:
    count = 5
    with Site(durable_fleet.settings(tmp_path), tmp_path) as site:
        replicas = [site.replica(), site.replica(tmp_path / "second")]
        site.staff(2)
        longest = 0.0
        with Load(replicas) as load:
            load.wait_for_more(BACK_SECONDS)
            for _ in range(count):
                time.sleep(LOAD_SECONDS)
                durable_fleet.database.restart_at_once()
                began = time.monotonic()
                load.wait_for_more(BACK_SECONDS)
                longest = max(longest, time.monotonic() - began)
        told = load.told
        assert set(told.predicted) == {200}
        with replicas[0].client() as client:
            check_kept(site, client, told)
            check_fits(client, told)
        assert all(worker.process.poll() is None for worker in site.workers)
        assert all(replica.process.poll() is None for replica in replicas)
    refused = sum(number for (_, status), number in told.statuses.items() if status == 503)
    note(
        "Postgres restart -m immediate under load",
        count,
        acknowledged=str(sum(told.statuses.values()) - refused),
        told_503=str(refused),
        predicts=str(len(told.predicted)),
        slowest_predict=told.slowest_predict,
        all_answer_again_after=longest,
    )


def check_kept(site: Site, client: httpx.Client, told: Acknowledged) -> None:
    """Check that everything acknowledged with a 2xx response is present and unchanged."""
    moves = {one["revision"]: one["to_version"] for one in every(client, f"{ALIAS}/history")}
    assert sorted(moves) == list(range(1, len(moves) + 1))
    assert told.moves.items() <= moves.items()
    versions = {one["number"]: one["map_sha256"] for one in every(client, f"{CALIBRATOR}/versions")}
    assert told.versions.items() <= versions.items()
    for number in told.versions:
        assert client.get(f"{CALIBRATOR}/versions/{number}/map").status_code == 200
    kept = {one["id"]: one["sha256"] for one in every(client, "/v1/datasets")}
    assert told.datasets.items() <= kept.items()
    for id, sha256 in kept.items():
        with site.place.blobs.file(dataset_key(site.place.workspace, id, sha256), sha256):
            pass


def check_fits(client: httpx.Client, told: Acknowledged) -> None:
    """Check that the queue drains and that every request created one fit with one version."""
    deadline = time.monotonic() + DRAIN_SECONDS
    while True:
        fits = every(client, "/v1/fits", calibrator="fitted")
        if all(one["status"] in ("succeeded", "failed", "cancelled") for one in fits):
            break
        assert time.monotonic() < deadline, [one for one in fits if one["status"] != "succeeded"]
        time.sleep(0.5)
    assert {one["status"] for one in fits} == {"succeeded"}
    assert sorted(one["id"] for one in fits) == sorted(told.fits.values())
    made = every(client, "/v1/calibrators/fitted/versions")
    assert sorted(one["fit"] for one in made) == sorted(told.fits.values())
