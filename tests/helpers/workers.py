"""Worker processes for tests of fits, stopped by their process ids at the end."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Collection
from pathlib import Path

from helpers.fit_fixtures import Place
from helpers.live_service import wait_until
from service.storage.records import Fit, FitStatus
from service.worker.housekeeping import Housekeeping, WorkerPace

# as in production, but workers are considered dead sooner
WORKER = """
from service.fits.service import QUEUES
from service.worker.housekeeping import WorkerPace
from service.worker.process import run_worker
from service.settings import Settings
run_worker(Settings(), QUEUES, "cpu", pace=WorkerPace(heartbeat=0.5, silence=3.0, housekeeping=1.0))
"""
COMMAND = (sys.executable, "-c", WORKER)
RUNNING = (FitStatus.RUNNING,)


class Crew:
    """Workers in one place, each serving both queues."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.processes: list[subprocess.Popen[bytes]] = []

    def add(self, count: int = 1, **environment: str) -> None:
        """Start more workers."""
        for _ in range(count):
            with (self._folder / f"worker-{len(self.processes)}.log").open("ab") as log:
                process = subprocess.Popen(
                    COMMAND,
                    env={**os.environ, **self.place.environment, **environment},
                    stderr=log,
                )
            self.processes.append(process)

    def log(self) -> str:
        """Return the logs of all workers."""
        return "".join(path.read_text() for path in sorted(self._folder.glob("worker-*.log")))

    def running(self, fit: Fit) -> subprocess.Popen[bytes]:
        """Wait until a fit has made progress; return the process that runs it."""
        self.place.wait(fit, RUNNING)
        wait_until(lambda: (self.place.fit(fit.id).progress or {}).get("step"))
        worker = self.place.fit(fit.id).worker or ""
        (process,) = [one for one in self.processes if f"-{one.pid}-" in worker]
        return process

    def replace(self, gone: subprocess.Popen[bytes]) -> None:
        """Start a worker in place of one that has ended."""
        gone.wait(10)
        self.processes.remove(gone)
        self.add()

    def end(self, count: int | None = None) -> None:
        """Kill this many workers, the last first, or all."""
        for process in self.processes[-count:] if count else list(self.processes):
            process.kill()
            process.wait()
            self.processes.remove(process)

    @property
    def _folder(self) -> Path:
        return self.place.settings.data_dir


def housekeeping(
    place: Place,
    worker: str,
    silence: float,
    current_fits: Callable[[], Collection[str] | None] = set,
    **pace: float,
) -> Housekeeping:
    """Return the housekeeping of a worker that takes no fits."""
    return Housekeeping(
        place.database,
        place.blobs,
        place.settings,
        WorkerPace(silence=silence, **pace),
        worker=worker,
        queues=[],
        device="cpu",
        current_fits=current_fits,
    )
