"""Worker processes beside the API: started, watched, started again, stopped."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from service.concurrency.backoff import Backoff
from service.settings import Settings

# -P: a folder called `service` in the working directory may be anybody's; the environment says
# where ours is
COMMAND = (sys.executable, "-P", "-m", "service", "worker")
OURS = str(Path(__file__).parents[2])
# a worker that finds another parent than this process id leaves: its supervisor has died
SUPERVISOR = "CALIBRD_SUPERVISOR"
# by which the workers of a machine with several GPUs take one each
SLOT = "CALIBRD_SLOT"
# the file that a worker makes when it takes a fit: its start has succeeded
FITTING = "CALIBRD_FITTING"
LOOK_SECONDS = 0.25
STOP_SECONDS = 10.0
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
HEALTHY_SECONDS = 60.0

logger = logging.getLogger(__name__)


class WorkerSupervisor:
    """A number of worker processes with the settings of this process."""

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
        """The process ids of the workers that live."""
        return [slot.process.pid for slot in self._slots if slot.lives]

    def stop(self) -> None:
        """Ask the workers to leave, and end those that do not."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        processes = [slot.process for slot in self._slots if slot.lives]
        for process in processes:
            process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        for process in processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                logger.warning("worker process %d does not leave: it is killed", process.pid)
                process.kill()
                process.wait()
        self._folder.cleanup()

    def _fitting(self, number: int) -> Path:
        return Path(self._folder.name, str(number))

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            for slot in self._slots:
                slot.look()


class _Slot:
    """The place of one worker process, filled again when it dies.

    At once if it had taken a fit, which may have killed it: others' fits must not wait for that.
    One that dies before cannot start, and pauses between further tries grow.
    """

    def __init__(
        self, command: tuple[str, ...], environment: dict[str, str], fitting: Path
    ) -> None:
        self._command = command
        self._environment = {**environment, FITTING: str(fitting)}
        self._fitting = fitting
        self._backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        self._started_at = 0.0
        self._start_at: float | None = None

    @property
    def lives(self) -> bool:
        """Whether its process runs."""
        return self.process.poll() is None

    def start(self) -> None:
        """Start a process; it gets no signals from our terminal, so that stopping is ours."""
        self._start_at = None
        self._started_at = time.monotonic()
        self._fitting.unlink(missing_ok=True)
        self.process = subprocess.Popen(  # noqa: S603
            self._command,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def look(self) -> None:
        """Plan another start if the process has died, and start when the pause is over."""
        now = time.monotonic()
        if self.lives:
            return
        if self._start_at is None:
            pause = self._next_pause(now - self._started_at)
            code, pid = self.process.returncode, self.process.pid
            logger.error("worker process %d ended (%d): another starts in %g s", pid, code, pause)
            self._start_at = now + pause
        if now >= self._start_at:
            self.start()

    def _next_pause(self, lived: float) -> float:
        """Return the seconds until the next start, after one whose process lived so long."""
        took_a_fit = self._fitting.exists()
        if took_a_fit or lived > HEALTHY_SECONDS:
            self._backoff.reset()
        return 0.0 if took_a_fit else self._backoff.pause()


def _environment(settings: Settings, slot: int) -> dict[str, str]:
    given = {
        f"CALIBRD_{name.upper()}": str(value)
        for name, value in settings.model_dump().items()
        if value is not None
    }
    return {
        **os.environ,
        **given,
        "PYTHONPATH": os.pathsep.join(filter(None, (OURS, os.environ.get("PYTHONPATH")))),
        SUPERVISOR: str(os.getpid()),
        SLOT: str(slot),
    }
