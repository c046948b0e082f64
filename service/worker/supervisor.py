"""Start, watch, restart and stop the worker processes alongside the API."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import structlog

from calibrators.backoff import Backoff
from service.settings import Settings

# with -P, a folder `service` in the working directory is not imported; PYTHONPATH has the right one
COMMAND = (sys.executable, "-P", "-m", "service", "worker")
OURS = str(Path(__file__).parents[2])
# process id of the supervisor; a worker with another parent exits, because its supervisor has died
SUPERVISOR = "CALIBRD_SUPERVISOR"
# number of the worker, which determines its GPU
SLOT = "CALIBRD_SLOT"
# file that a worker creates when it claims a fit, which shows that it has started successfully
FITTING = "CALIBRD_FITTING"
LOOK_SECONDS = 0.25
STOP_SECONDS = 10.0
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
HEALTHY_SECONDS = 60.0

_log = structlog.get_logger("calibrd.supervisor")


class WorkerSupervisor:
    """A supervisor of worker processes, which inherit the settings of this process."""

    def __init__(self, settings: Settings, count: int, command: Sequence[str] = COMMAND) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="calibrd-workers-")
        self._slots = [
            _Slot(tuple(command), _environment(settings, number), self._fitting(number))
            for number in range(count)
        ]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="supervisor", daemon=True)

    def start(self) -> None:
        """Start the workers and watch them."""
        for slot in self._slots:
            slot.start()
        self._thread.start()

    def pids(self) -> list[int]:
        """Return the process ids of the live workers."""
        return [slot.process.pid for slot in self._slots if slot.is_alive]

    def stop(self) -> None:
        """Terminate the workers, and kill any that do not exit in time."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        processes = [slot.process for slot in self._slots if slot.is_alive]
        for process in processes:
            process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        for process in processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                _log.warning("worker_killed", pid=process.pid)
                process.kill()
                process.wait()
        self._folder.cleanup()

    def _fitting(self, number: int) -> Path:
        return Path(self._folder.name, str(number))

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            for slot in self._slots:
                slot.check()


class _Slot:
    """One worker process, restarted when it dies.

    If the process had claimed a fit, the fit may have killed it, and the process is restarted at
    once so that other fits do not have to wait. If it died before claiming a fit, it probably
    cannot start, and the pauses between restarts grow.
    """

    def __init__(
        self, command: tuple[str, ...], environment: dict[str, str], fitting: Path
    ) -> None:
        self._command = command
        self._environment = {**environment, FITTING: str(fitting)}
        self._fitting = fitting
        self._backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE, jitter=0.0)
        self._started_at = 0.0
        self._start_at: float | None = None

    @property
    def is_alive(self) -> bool:
        """True if the process is running."""
        return self.process.poll() is None

    def start(self) -> None:
        """Start the process in a new session, so that Ctrl-C does not reach it."""
        self._start_at = None
        self._started_at = time.monotonic()
        self._fitting.unlink(missing_ok=True)
        self.process = subprocess.Popen(  # noqa: S603
            self._command,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def check(self) -> None:
        """Schedule a restart if the process has died, and start it when the pause is over."""
        now = time.monotonic()
        if self.is_alive:
            return
        if self._start_at is None:
            pause = self._next_pause(now - self._started_at)
            code, pid = self.process.returncode, self.process.pid
            _log.error("worker_exited", pid=pid, code=code, restart_seconds=pause)
            self._start_at = now + pause
        if now >= self._start_at:
            self.start()

    def _next_pause(self, lifetime: float) -> float:
        """Return the seconds until the next start, given the lifetime of the last process."""
        had_fit = self._fitting.exists()
        if had_fit or lifetime > HEALTHY_SECONDS:
            self._backoff.reset()
        return 0.0 if had_fit else self._backoff.pause()


def _environment(settings: Settings, slot: int) -> dict[str, str]:
    variables = {
        f"CALIBRD_{name.upper()}": str(value)
        for name, value in settings.model_dump().items()
        if value is not None
    }
    return {
        **os.environ,
        **variables,
        "PYTHONPATH": os.pathsep.join(filter(None, (OURS, os.environ.get("PYTHONPATH")))),
        SUPERVISOR: str(os.getpid()),
        SLOT: str(slot),
    }
