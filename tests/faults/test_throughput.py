"""Two API replicas, three workers and eight clients: every fit creates one version."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psycopg
from helpers.backends import Fleet
from helpers.live_service import NPZ, Running, every, npz, sample
from helpers.sites import Site

FITS = 500
CLIENTS = 8
WORKERS = 3
WAIT = {"Prefer": "wait=60"}
STATISTICS_SECONDS = 4.0  # delay after which PostgreSQL's statistics are complete
SIZES = """
SELECT sum(pg_column_size(v.*)), (SELECT sum(pg_column_size(r.*)) FROM reports r), count(*)
FROM versions v
"""


def test_every_fit_of_many_clients_is_one_version(
    shared_fleet: Fleet, tmp_path: Path, note: Callable[..., None]
) -> None:
    with Site(shared_fleet.settings(tmp_path), tmp_path) as site:
        replicas = [site.replica(), site.replica(tmp_path / "second")]
        site.staff(WORKERS)
        url = site.settings["database_url"]
        idle = transactions(url)
        commits = transactions(url)
        idle_rate = (commits - idle) / STATISTICS_SECONDS
        began = time.monotonic()
        with ThreadPoolExecutor(CLIENTS) as threads:
            shares = [range(first, FITS, CLIENTS) for first in range(CLIENTS)]
            sent = threads.map(order, [replicas[one % 2] for one in range(CLIENTS)], shares)
            fits = [id for share in sent for id in share]
        seconds = time.monotonic() - began
        commits = transactions(url) - commits
        assert len(set(fits)) == FITS
        with replicas[0].client() as client:
            made = every(client, "/v1/calibrators/many/versions")
            assert Counter(one["fit"] for one in made if one["fit"] in set(fits)) == Counter(fits)
            done = every(client, "/v1/fits", calibrator="many", status="succeeded")
        assert {one["id"] for one in done} >= set(fits)
        assert all(len(one["versions"]) == 1 for one in done)
        blobs = stored_bytes(site)
        rows, reports, versions = row_bytes(url)
    note(
        f"{CLIENTS} clients, 2 API replicas, {WORKERS} workers",
        FITS,
        fits_per_second=FITS / seconds,
        transactions_per_fit=(commits - idle_rate * (seconds + STATISTICS_SECONDS)) / FITS,
        idle_transactions_per_second=idle_rate,
        row_bytes_per_version=str((rows + reports) // versions),
        blob_bytes_per_version=str(blobs // versions),
    )


def order(replica: Running, numbers: range) -> list[str]:
    """Fit on new data, one fit after the other; return the ids of the fits."""
    ids = []
    with replica.client() as client:
        for number in numbers:
            ids.append(order_one(client, number))
    return ids


def order_one(client: httpx.Client, number: int) -> str:
    url = "/v1/calibrators/many/fits?method=temperature&delete_after_fit=true"
    body = npz(*sample(200, seed=number))
    said = client.post(url, content=body, headers={**NPZ, **WAIT}, timeout=90)
    assert said.status_code in (201, 202), said.text
    fit = said.json()
    while fit["status"] != "succeeded":
        assert fit["status"] in ("queued", "running"), fit
        fit = client.get(f"/v1/fits/{fit['id']}", headers=WAIT, timeout=90).json()
    id: str = fit["id"]
    return id


def transactions(url: str) -> int:
    """Return the number of commits in this database; sessions report theirs with a delay."""
    time.sleep(STATISTICS_SECONDS)
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
        ).fetchone()
    assert row is not None
    commits: int = row[0]
    return commits


def row_bytes(url: str) -> tuple[int, int, int]:
    """Return the number of versions, and the bytes of their rows and reports."""
    with psycopg.connect(url) as connection:
        row = connection.execute(SIZES).fetchone()
    assert row is not None
    return int(row[0]), int(row[1]), int(row[2])


def stored_bytes(site: Site) -> int:
    """Return the bytes of the blobs of versions; their datasets are deleted after the fit."""
    return sum(blob.bytes for blob in site.place.blobs.list() if "/datasets/" not in blob.key)
