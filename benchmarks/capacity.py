"""Topic 7: the cost of an API process, a worker and a fit, for docs/how-to/scale.md.

The real service runs on loopback: embedded, and on a PostgreSQL with fsync and moto's S3.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import data
from benchmarks.capacity_queue import VARIABLES, waits
from benchmarks.capacity_site import (
    ROOT,
    Site,
    memory,
    postgres_counters,
    sqlite_counters,
    variables,
)
from benchmarks.load import Call, requests_per_second
from benchmarks.output import Row, Topic

METHODS = ("temperature", "smart")
FIT_SECONDS = 5.0
CLIENTS = 2  # per worker, so that it never waits for a request
IDLE_SECONDS = 20.0
LOAD_SECONDS = 3.0
CLASSES = 1000


def run(sizes: Iterable[tuple[int, int]], quick: bool) -> Iterable[Topic]:
    """Yield a table for each kind of storage."""
    sys.path.insert(0, str(ROOT / "tests"))
    from helpers.backends import Embedded, Fleet
    from helpers.database_servers import postgres, s3

    samples = [data.draw(rows, classes) for rows, classes in sizes]
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        found["SQLite and a folder"] = _measure(Embedded(), Path(folder), samples, quick)
    with (
        tempfile.TemporaryDirectory() as folder,
        # autovacuum would count among the transactions of an idle worker
        postgres("max_wal_size=1GB", "autovacuum=off") as database,
        s3() as blobs,
        variables(blobs.environment),
    ):
        fleet = Fleet(database, blobs)
        found["PostgreSQL and S3"] = _measure(fleet, Path(folder), samples, quick)
    yield _fits(found)
    yield _costs(found)
    yield _predict(quick)


@dataclass
class Found:
    """Measurements with one kind of storage."""

    fits: list[Row]
    costs: Row


def _measure(backend: Any, folder: Path, samples: list[data.Sample], quick: bool) -> Found:
    from helpers.backends import environment
    from helpers.live_service import running

    settings = backend.settings(folder)
    counted = postgres_counters if backend.name == "fleet" else sqlite_counters
    with running(folder, "--workers", "0", **environment(settings), **VARIABLES) as started:
        site = Site(started, environment(settings), lambda: counted(settings))
        datasets = [site.upload(sample) for sample in samples]
        alone = _idle(site, quick)
        with site.workers(1) as (worker,):
            rows = _fit_rows(site, samples, datasets, 1, quick)
            with_worker = _idle(site, quick)
            costs = _costs_of_a_fit(site, datasets[0], with_worker, quick)
            rss = {"memory of a worker, MB": memory(worker)}
        with site.workers(2):
            rows += _fit_rows(site, samples, datasets, 2, quick)
        with site.workers(1):
            queue = waits(site, datasets[0], quick)
        rss["memory of an API process, MB"] = memory(started.process.pid)
        site.client.close()
    idle = {
        "transactions/s of an idle API process": alone.get("transactions"),
        "transactions/s of an idle worker": _less(with_worker, alone, "transactions"),
        "connections of an idle API process": alone.get("connections"),
        "connections of an idle worker": _less(with_worker, alone, "connections"),
    }
    return Found(rows, {**costs, **idle, **rss, **queue})


def _fit_rows(
    site: Site, samples: list[data.Sample], datasets: list[str], workers: int, quick: bool
) -> list[Row]:
    site.fits(datasets[0], "temperature", CLIENTS * workers, 1.0)  # warm up all workers
    rows = []
    for method in METHODS:
        for sample, dataset in zip(samples, datasets, strict=True):
            seconds = 0.5 if quick else FIT_SECONDS
            count, spent = site.fits(dataset, method, CLIENTS * workers, seconds)
            rows.append(
                {"method": method, "data": sample.size, "workers": workers, "rate": count / spent}
            )
    return rows


def _idle(site: Site, quick: bool) -> dict[str, float]:
    """Measure the work per second of an idle service."""
    before = site.counters()
    time.sleep(1.0 if quick else IDLE_SECONDS)
    after = site.counters()
    seconds = after["time"] - before["time"]
    rates = {
        name: (after[name] - before[name]) / seconds
        for name in ("transactions", "rows")
        if name in after
    }
    return rates | {name: after[name] for name in ("connections",) if name in after}


def _costs_of_a_fit(site: Site, dataset: str, idle: dict[str, float], quick: bool) -> Row:
    """Measure the cost of fits as the difference from an idle service."""
    before = site.counters()
    count, _ = site.fits(dataset, "temperature", CLIENTS, 0.5 if quick else FIT_SECONDS)
    after = site.counters()
    seconds = after["time"] - before["time"]

    def each(name: str) -> float | None:
        if name not in after:
            return None
        return (after[name] - before[name] - idle.get(name, 0.0) * seconds) / count

    return {
        "transactions per fit": each("transactions"),
        "rows written per fit": each("rows"),
        "bytes per version in the database": each("database_bytes"),
        "bytes per version in the blob store": each("blob_bytes"),
        "blobs per version": each("blobs"),
    }


def _fits(found: dict[str, Found]) -> Topic:
    table = []
    for rows in zip(*(one.fits for one in found.values()), strict=True):
        row: Row = {name: rows[0][name] for name in ("method", "data", "workers")}
        rates = {f"fits/s, {way}": one["rate"] for way, one in zip(found, rows, strict=True)}
        table.append(row | rates)
    return Topic(
        "fits per second",
        table,
        [],
        "requested over HTTP on loopback by two clients per worker, each of which waits for its "
        "fit; API, workers, database, S3 and clients share the cores of this machine; PostgreSQL "
        "counts as another process",
        markdown=True,
    )


def _costs(found: dict[str, Found]) -> Topic:
    names = next(iter(found.values())).costs
    return Topic(
        "cost of processes and fits",
        [
            {"what": name} | {way: _short(one.costs[name]) for way, one in found.items()}
            for name in names
        ],
        [],
        "transactions and rows are from pg_stat_database, minus those of an idle service; database "
        "sizes include indexes and rows not yet vacuumed; temperature fits on the first data",
        markdown=True,
    )


def _short(value: float | None) -> float | int | None:
    return value if value is None or value < 100 else round(value)


def _predict(quick: bool) -> Topic:
    """Measure predict calls per second of API processor time, and the map applied in process."""
    import psutil

    from benchmarks.serving import _npy, server
    from benchmarks.serving_ours import MAP

    seconds = 0.5 if quick else LOAD_SECONDS
    table: list[Row] = []
    with server("ours") as port:
        api = psutil.Process(_listener(port))
        for rows in (1, 100, 1000):
            logits = data.draw(rows, CLASSES).logits
            call = Call("/v1/calibrators/bench@1/predict", _npy(logits), "application/x-npy")
            requests_per_second(port, call, 16, seconds / 3)
            before = sum(api.cpu_times()[:2])
            rate = requests_per_second(port, call, 16, seconds)
            busy = sum(api.cpu_times()[:2]) - before
            local = statistics.median(_seconds(lambda z=logits: MAP.apply(z)) for _ in range(5))
            table.append(
                {
                    "rows x classes": f"{rows:,} x {CLASSES:,}",
                    "requests/s per process": round(rate),
                    "requests/s per core": round(rate * seconds / busy),
                    "calls/s per core, local": round(1 / local),
                    "ratio": busy / (rate * seconds) / local,
                }
            )
    return Topic(
        "predict over HTTP, and the map applied in the caller's program",
        table,
        [],
        "npy, 16 connections, with the load from another process; per core means per second of "
        "processor time of the API process or of the program",
        markdown=True,
    )


def _seconds(task: Callable[[], Any]) -> float:
    """Return the processor seconds of one call."""
    count, began = 0, time.process_time()
    while (spent := time.process_time() - began) < 0.2:
        task()
        count += 1
    return spent / count


def _listener(port: int) -> int:
    import psutil

    (pid,) = {
        one.pid
        for one in psutil.net_connections("tcp")
        if one.status == psutil.CONN_LISTEN and one.laddr.port == port and one.pid
    }
    return pid


def _less(whole: dict[str, float], part: dict[str, float], name: str) -> float | None:
    return whole[name] - part[name] if name in whole else None
