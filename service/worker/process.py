"""The worker process: device, signals and restart."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import NoReturn

import structlog

from calibrators import CalibrationWarning, FitError
from calibrators.fitting.context import FitContext
from calibrators.fitting.devices import array_device
from service import logs
from service.concurrency.malloc import keep_freed_memory
from service.concurrency.temporary_files import downloads, remove_left_behind
from service.errors import Invalid
from service.fits.service import CPU, QUEUES
from service.settings import Settings
from service.worker.housekeeping import WorkerPace
from service.worker.queue_worker import QueueWorker
from service.worker.startup import limit_memory
from service.worker.supervisor import SLOT, SUPERVISOR

LOOK_SECONDS = 0.25
LEAVE_SECONDS = 4.0

_log = structlog.get_logger("calibrd.worker")


def run_worker(
    settings: Settings,
    queues: Sequence[str] | None = None,
    device: str | None = None,
    *,
    pace: WorkerPace | None = None,
) -> NoReturn:
    """Run fits until SIGTERM or SIGINT, or until the parent named by CALIBRD_SUPERVISOR has died.

    If a fit does not stop after its time limit or a cancel request, the worker restarts itself
    under the same process id, because nothing else frees the fit's resources.

    The default ``device`` is a GPU if there is one; a supervisor's workers are distributed over
    all GPUs. By default, a worker with a GPU serves both queues, and any other worker serves
    fit.cpu. On exit, the current fit is requeued. Raises Invalid if there is no such device.
    """
    device = _checked(device) if device else _best_device()
    leaving, exit_requested = threading.Event(), threading.Event()

    def leave(*_: object) -> None:
        exit_requested.set()
        leaving.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)
    logs.configure(settings.log_level, settings.log_format)
    # the warnings are in the maps' fit_info and in the reports
    warnings.simplefilter("ignore", CalibrationWarning)
    queues = list(queues or (QUEUES if device.startswith("cuda") else [CPU]))
    worker = QueueWorker(settings, queues, device, pace or WorkerPace(), leaving)
    keep_freed_memory()
    if device == "cpu":  # GPU drivers reserve address space that no memory backs
        limit_memory(settings.fit_memory_bytes)
    remove_left_behind(downloads())  # of an earlier process that was killed, or that restarted
    worker.start()
    _log.info("worker_started", worker=worker.id, queues=queues, device=device)
    supervisor = int(os.environ.get(SUPERVISOR, 0))
    while not (leaving.wait(LOOK_SECONDS) or worker.is_stuck):
        if supervisor and os.getppid() != supervisor:
            leave()
    _sign_off(worker)  # sets ``leaving`` as well
    if exit_requested.is_set():
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
        if metadata.version("torch").endswith("+cpu"):
            return "cpu"  # importing torch takes a second and 150 MB
        import torch
    except ModuleNotFoundError:
        return "cpu"
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return device_of_slot(int(os.environ.get(SLOT, 0)), count)


def device_of_slot(slot: int, gpus: int) -> str:
    """Return the device for a supervisor's worker slot; GPUs are assigned round-robin.

    >>> [device_of_slot(slot, gpus=2) for slot in range(3)], device_of_slot(1, gpus=0)
    (['cuda:0', 'cuda:1', 'cuda:0'], 'cpu')
    """
    return f"cuda:{slot % gpus}" if gpus else "cpu"


def _sign_off(worker: QueueWorker) -> None:
    """Requeue the current fit; give up after a few seconds if the fit or the database hangs."""
    _log.info("worker_restarting" if worker.is_stuck else "worker_leaving", worker=worker.id)
    thread = threading.Thread(target=_stop, args=(worker,), daemon=True)
    thread.start()
    thread.join(LEAVE_SECONDS)
    if thread.is_alive():
        _log.warning("sign_off_timed_out", worker=worker.id)
    logging.shutdown()
    sys.stderr.flush()


def _restart() -> NoReturn:
    """Replace this process with a new one that has the same command line and process id.

    This frees all memory, threads and GPU contexts. The supervisor does not see an exit, and a
    container keeps running.
    """
    try:
        for name in [one.name for one in Path("/proc/self/fd").iterdir()]:
            with suppress(OSError):  # the descriptor of the listing itself is closed by now
                if int(name) > 2:
                    os.set_inheritable(int(name), False)
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606
    finally:
        os._exit(1)  # the supervisor starts another process


def _stop(worker: QueueWorker) -> None:
    try:
        worker.stop()
    except Exception:  # noqa: BLE001 - the process exits anyway
        _log.exception("sign_off_failed", worker=worker.id)
