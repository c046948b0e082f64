"""The process of a worker: its device and its signals, until it leaves or is replaced."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from calibrators import CalibrationWarning, FitError
from calibrators.fitting.context import FitContext
from calibrators.fitting.devices import array_device
from service import logs
from service.concurrency.malloc import keep_freed_memory
from service.errors import Invalid
from service.fits.service import CPU, QUEUES
from service.settings import Settings
from service.worker.housekeeping import WorkerPace
from service.worker.queue_worker import QueueWorker
from service.worker.startup import limit_memory
from service.worker.supervisor import SLOT, SUPERVISOR

LOOK_SECONDS = 0.25
LEAVE_SECONDS = 4.0

logger = logging.getLogger(__name__)


def run_worker(
    settings: Settings,
    queues: Sequence[str] | None = None,
    device: str | None = None,
    *,
    pace: WorkerPace | None = None,
) -> NoReturn:
    """Work until SIGTERM or SIGINT, or until the process named by CALIBRD_SUPERVISOR is gone.

    A worker whose fit does not come back after its time limit or a cancel begins anew, under the
    same process id: that is the only way to free what the fit holds.

    Without ``device`` it is a GPU if there is one, and its own one if there are several and the
    supervisor has started several workers; without ``queues`` a worker with a GPU takes
    from both queues, one without from fit.cpu. The fit at hand is given back at the end.
    Raises Invalid if there is no such device.
    """
    device = _checked(device) if device else _best_device()
    leaving, told_to_leave = threading.Event(), threading.Event()

    def leave(*_: object) -> None:
        told_to_leave.set()
        leaving.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)
    logs.configure(settings.log_level, settings.log_format)
    # the maps' fit_info and the reports have them
    warnings.simplefilter("ignore", CalibrationWarning)
    queues = list(queues or (QUEUES if device.startswith("cuda") else [CPU]))
    worker = QueueWorker(settings, queues, device, pace or WorkerPace(), leaving)
    keep_freed_memory()
    if device == "cpu":  # GPU drivers reserve addresses that no memory stands behind
        limit_memory(settings.fit_memory_bytes)
    worker.start()
    logger.info("worker %s takes from %s on %s", worker.id, ", ".join(queues), device)
    supervisor = int(os.environ.get(SUPERVISOR, 0))
    while not (leaving.wait(LOOK_SECONDS) or worker.is_stuck):
        if supervisor and os.getppid() != supervisor:
            leave()
    _sign_off(worker)  # which sets ``leaving`` as well
    if told_to_leave.is_set():
        os._exit(0)
    _restart()


def _checked(device: str) -> str:
    try:
        array_device(FitContext(device).device)
    except FitError as error:
        raise Invalid(error.code, f"--device: {error}") from error
    return device


def _best_device() -> str:
    try:
        import torch
    except ModuleNotFoundError:
        return "cpu"
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return device_of_slot(int(os.environ.get(SLOT, 0)), count)


def device_of_slot(slot: int, gpus: int) -> str:
    """The device of the worker in a supervisor's slot: the GPUs are given out in turn.

    >>> [device_of_slot(slot, gpus=2) for slot in range(3)], device_of_slot(1, gpus=0)
    (['cuda:0', 'cuda:1', 'cuda:0'], 'cpu')
    """
    return f"cuda:{slot % gpus}" if gpus else "cpu"


def _sign_off(worker: QueueWorker) -> None:
    """Hand back what is at hand, in a few seconds, whatever a fit or the database does."""
    logger.info("worker %s %s", worker.id, "begins anew" if worker.is_stuck else "leaves")
    thread = threading.Thread(target=_stop, args=(worker,), daemon=True)
    thread.start()
    thread.join(LEAVE_SECONDS)
    if thread.is_alive():
        logger.warning("worker %s could not sign off in time", worker.id)
    logging.shutdown()
    sys.stderr.flush()


def _restart() -> NoReturn:
    """Replace this process by a new one with the same command line, environment and process id.

    All memory, threads and GPU contexts are freed. A supervisor sees no end, and a container
    stays up.
    """
    try:
        for name in [one.name for one in Path("/proc/self/fd").iterdir()]:
            with suppress(OSError):  # the descriptor of the listing itself is closed by now
                if int(name) > 2:
                    os.set_inheritable(int(name), False)
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606
    finally:
        os._exit(1)  # whoever watches over this process starts another


def _stop(worker: QueueWorker) -> None:
    try:
        worker.stop()
    except Exception:
        logger.exception("worker %s could not sign off", worker.id)
