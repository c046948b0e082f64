"""A production-like service: API replicas and workers as processes on shared storage."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from helpers.backends import environment
from helpers.fit_fixtures import Place
from helpers.live_service import ROOT, Running, running
from service.storage.records import Fit, FitStatus

WORK = (sys.executable, "-m", "service", "worker")
START_SECONDS = 180.0
SOME_SECONDS = ("smart", {"steps": 1200})
QUICK = ("temperature", {})
ENDLESS = ("smart", {"steps": 100_000})
ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # many of them run on one machine


class Worker:
    """A worker process with production timing, and its log."""

    def __init__(self, log: Path, variables: dict[str, str]) -> None:
        self.log = log
        with log.open("w") as file:
            self.process = subprocess.Popen(
                WORK,
                cwd=ROOT,
                env={**os.environ, **ONE_THREAD, **variables},
                stdout=file,
                stderr=file,
            )
        self.mark = f"-{self.process.pid}-"

    @property
    def is_ready(self) -> bool:
        """Whether it has announced that it takes fits."""
        return "worker_started" in self.log.read_text()

    def runs(self, fit: Fit) -> bool:
        """Return whether a fit is assigned to it."""
        return self.mark in (fit.worker or "")

    def end(self) -> None:
        """Kill it if it is alive."""
        self.process.kill()
        self.process.wait()


class Site:
    """A database and blobs, with any number of API replicas and workers."""

    def __init__(self, settings: dict[str, Any], folder: Path) -> None:
        self.settings = settings
        self.folder = folder
        self.workers: list[Worker] = []
        self._started = 0
        self._replicas = ExitStack()
        self.place = Place(**settings)

    @property
    def kind(self) -> str:
        """The kind of storage."""
        return "Postgres, S3" if self.is_fleet else "SQLite, folder"

    @property
    def is_fleet(self) -> bool:
        """Whether data is stored on servers."""
        return "database_url" in self.settings

    def __enter__(self) -> Site:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.end()
        self._replicas.close()
        self.place.close()

    def replica(self, data_dir: Path | None = None) -> Running:
        """Start another API process, with shared storage optionally in its own data directory."""
        variables = environment(self.settings)
        variables.pop("CALIBRD_DATA_DIR")
        folder = data_dir or self.settings["data_dir"]
        made = running(folder, "--workers", "0", **variables)
        return self._replicas.enter_context(made)

    def staff(self, count: int) -> None:
        """Start workers until this many take fits."""
        self.hire(count - len(self.workers))
        deadline = time.monotonic() + START_SECONDS
        for worker in self.workers:
            while not worker.is_ready:
                assert worker.process.poll() is None, worker.log.read_text()
                assert time.monotonic() < deadline, worker.log.read_text()
                time.sleep(0.1)

    def hire(self, count: int = 1, **settings: Any) -> None:
        """Start workers."""
        variables = environment({**self.settings, **settings})
        for _ in range(count):
            self._started += 1
            self.workers.append(Worker(self.folder / f"worker-{self._started}.log", variables))

    def dismiss(self, worker: Worker) -> None:
        """Kill a worker with SIGKILL."""
        worker.end()
        self.workers.remove(worker)

    def under_way(self, fit: Fit) -> Worker:
        """Wait until a fit has made progress; return its worker."""
        found = self.place.wait(fit, [FitStatus.RUNNING])
        deadline = time.monotonic() + START_SECONDS
        while not (found.progress or {}).get("step"):
            assert time.monotonic() < deadline, found
            time.sleep(0.05)
            found = self.place.fit(fit.id)
        (worker,) = [one for one in self.workers if one.runs(found)]
        return worker

    def open_fits(self) -> int:
        """Return the fits that are queued or running."""
        with self.place.database.read() as store:
            return store.fits.count_open(self.place.workspace)
