"""A running service for measurements: its API process, its workers, its storage counters."""

import contextlib
import io
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks import data

ROOT = Path(__file__).parents[1]
STATISTICS_SECONDS = 1.5  # wait until PostgreSQL's counters are up to date


class Site:
    """A service with an API process and any number of workers."""

    def __init__(self, running: Any, variables: dict[str, str], statistics: Any) -> None:
        self.running = running
        self.client = running.client()
        self.variables = variables
        self._statistics = statistics
        self._workers: list[subprocess.Popen[bytes]] = []

    @contextlib.contextmanager
    def workers(self, count: int) -> Iterator[list[int]]:
        """Start workers and warm them up; yield their process ids."""
        self._workers = [
            subprocess.Popen(
                [sys.executable, "-m", "service", "worker"],
                env={**os.environ, **self.variables},
                stderr=subprocess.DEVNULL,
                cwd=ROOT,
            )
            for _ in range(count)
        ]
        try:
            self._until(lambda: f"calibrd_workers {count}.0" in self.client.get("/metrics").text)
            yield [worker.pid for worker in self._workers]
        finally:
            for worker in self._workers:
                worker.terminate()
            for worker in self._workers:
                worker.wait()

    def upload(self, sample: data.Sample) -> str:
        """Upload a dataset; return its id."""
        file = io.BytesIO()
        np.savez(file, logits=sample.logits, labels=sample.labels)
        headers = {"Content-Type": "application/x-npz"}
        answer = self.client.post("/v1/datasets", content=file.getvalue(), headers=headers)
        answer.raise_for_status()
        return str(answer.json()["id"])

    def fits(self, dataset: str, method: str, clients: int, seconds: float) -> tuple[int, float]:
        """Return how many fits the waiting clients completed, and when the last one ended."""
        began = time.perf_counter()
        endings: list[float] = []

        def client(_number: int) -> None:
            while not endings or time.perf_counter() - began < seconds:
                self._fit(dataset, method)
                endings.append(time.perf_counter() - began)

        with ThreadPoolExecutor(clients) as threads:
            list(threads.map(client, range(clients)))
        return len(endings), endings[-1]

    def _fit(self, dataset: str, method: str) -> None:
        order, wait = {"dataset": dataset, "method": method}, {"Prefer": "wait=20"}
        fit = self.client.post("/v1/calibrators/bench/fits", json=order, headers=wait).json()
        while fit["status"] in ("queued", "running"):
            fit = self.client.get(f"/v1/fits/{fit['id']}", headers=wait).json()
        if fit["status"] != "succeeded":
            raise RuntimeError(f"a fit did not succeed: {fit['error']}")

    def counters(self) -> dict[str, float]:
        """Return the counters of the stores, which include all work so far."""
        time.sleep(STATISTICS_SECONDS)
        found: dict[str, float] = self._statistics()
        return found | {"time": time.perf_counter()}

    @staticmethod
    def _until(condition: Callable[[], bool]) -> None:
        while not condition():
            time.sleep(0.1)


def postgres_counters(settings: dict[str, Any]) -> dict[str, float]:
    """Return the transactions, rows and connections that PostgreSQL counts."""
    import psycopg

    query = (
        "SELECT xact_commit + xact_rollback, tup_inserted + tup_updated + tup_deleted, "
        "numbackends - 1, pg_database_size(datname) "
        "FROM pg_stat_database WHERE datname = current_database()"
    )
    with psycopg.connect(settings["database_url"]) as connection:
        found = connection.execute(query).fetchone()
    assert found is not None  # noqa: S101
    names = ("transactions", "rows", "connections", "database_bytes")
    return dict(zip(names, map(float, found), strict=True)) | _blob_counters(settings["blobs_url"])


def sqlite_counters(settings: dict[str, Any]) -> dict[str, float]:
    """Return the counters of the embedded database and its folder."""
    import sqlite3

    folder: Path = settings["data_dir"]
    with contextlib.closing(sqlite3.connect(folder / "calibrd.db")) as connection:
        query = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"
        (size,) = connection.execute(query).fetchone()
    return {"database_bytes": float(size)} | _blob_counters((folder / "blobs").as_uri())


def _blob_counters(url: str) -> dict[str, float]:
    from service.storage.blobs import Blobs

    found = [blob for blob in Blobs(url).list() if "/datasets/" not in blob.key]
    return {"blobs": float(len(found)), "blob_bytes": float(sum(blob.bytes for blob in found))}


def memory(pid: int) -> float:
    """Return the resident memory of a process in MB."""
    return float(psutil.Process(pid).memory_info().rss) / 1e6


@contextlib.contextmanager
def variables(given: dict[str, str]) -> Iterator[None]:
    """Set environment variables temporarily."""
    before = dict(os.environ)
    os.environ.update(given)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
