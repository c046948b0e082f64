"""A process that takes fits from the queues and runs them."""

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

from dbos import DBOS, DBOSPortableJSONSerializer

from calibrators import CalibrationSet, CalibrationWarning, ExportError, FitError
from calibrators.export.onnx import export
from calibrators.fitting.context import FitContext
from calibrators.fitting.devices import array_device
from calibrators.methods.smart import Smart
from service import logs
from service.datasets.service import forget_spent_datasets
from service.errors import Invalid
from service.fits.execution import begin, conclude, run
from service.fits.queue import APPLICATION, VERSION, WORKFLOW, DbosQueue
from service.fits.service import CPU, QUEUES
from service.settings import DAY, Settings
from service.storage.blobs import log_damage
from service.storage.database import Database, connection_arguments
from service.storage.records import Fit
from service.worker.housekeeping import Housekeeping, Pace
from service.worker.identity import new_worker_id
from service.worker.lost_workers import postpone
from service.worker.monitor import RunningFit
from service.worker.retry import PASSING, PatientBlobs, patiently
from service.worker.startup import limit_memory, prepare_database
from service.worker.supervisor import SLOT, SUPERVISOR, note_fit

# while the database is away DBOS warns ten times a second; housekeeping does once a heartbeat
QUIET = "ERROR"
LOOK_SECONDS = 0.25
LEAVE_SECONDS = 4.0
FOREVER = 10 * 365 * DAY

logger = logging.getLogger(__name__)


def run_worker(
    settings: Settings,
    queues: Sequence[str] | None = None,
    device: str | None = None,
    *,
    pace: Pace | None = None,
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
    logging.getLogger("dbos").setLevel(QUIET)
    # the maps' fit_info and the reports have them
    warnings.simplefilter("ignore", CalibrationWarning)
    queues = list(queues or (QUEUES if device.startswith("cuda") else [CPU]))
    worker = Worker(settings, queues, device, pace or Pace(), leaving)
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


class Worker:
    """Takes fits through DBOS and runs them, one at a time however many its queues are.

    DBOS hands over one entry of each queue. While a fit of one queue runs, an entry of the other
    waits here for its turn: its fit is still queued, and can be cancelled at once. If the worker
    leaves or dies meanwhile, the entry goes back to its queue.
    """

    def __init__(
        self,
        settings: Settings,
        queues: list[str],
        device: str,
        pace: Pace,
        leaving: threading.Event,
    ) -> None:
        unknown = [name for name in queues if name not in QUEUES]
        if unknown:
            raise ValueError(f"a queue must be one of {', '.join(QUEUES)}, got {unknown[0]!r}")
        self.id = new_worker_id()
        self._settings = settings
        self._queues = queues
        self._device = device
        self._pace = pace
        self._leaving = leaving
        self.is_stuck = False
        self._at_work: set[str] = set()
        self._turn = threading.Lock()
        self._database = Database(settings.database)
        self._blobs = PatientBlobs(settings.blobs, seconds=pace.patience, on_damage=log_damage)
        self._queue = DbosQueue(self._database)
        self._housekeeping = Housekeeping(
            self._database,
            self._blobs,
            self._queue,
            settings,
            pace,
            worker=self.id,
            queues=queues,
            device=device,
            at_work=lambda: set(self._at_work),
        )

    def start(self) -> None:
        """Take fits from now on."""
        patiently(lambda: prepare_database(self._database), self._pace.patience)
        patiently(self._housekeeping.start, self._pace.patience)
        _warm_up(self._device)
        if self._leaving.is_set():
            return

        @DBOS.workflow(name=WORKFLOW)
        def work(id: str) -> None:
            self._work(id)

        patiently(self._launch, self._pace.patience)

    def _launch(self) -> None:
        url = self._database.url
        DBOS(
            config={
                "name": APPLICATION,
                "application_version": VERSION,
                "executor_id": self.id,
                "system_database_url": url.render_as_string(hide_password=False),
                "db_engine_kwargs": {}
                if self._database.is_sqlite
                else {"connect_args": connection_arguments(url)},
                "serializer": DBOSPortableJSONSerializer(),
                "run_migrations": False,
                "notification_listener_polling_interval_sec": 0.5,
                "log_level": QUIET,
            }
        )
        DBOS.listen_queues(self._queues)
        try:
            DBOS.launch()
        except PASSING:
            DBOS.destroy()  # what was launched by half cannot be launched again
            raise

    def stop(self) -> None:
        """Take no more fits, and give those at hand to other workers."""
        self._leaving.set()
        self._housekeeping.stop()
        DBOS.destroy()
        self._housekeeping.hand_back()
        self._queue.close()

    def _work(self, id: str) -> None:
        self._at_work.add(id)
        try:
            with self._turn:
                if not self._leaving.is_set():
                    self._run(id)
        finally:
            if not self._leaving.is_set():  # else it is handed back, and must not count as lost
                self._at_work.discard(id)
        if self._leaving.is_set():
            # DBOS must not note this entry as done: its fit may have to wait for another worker
            threading.Event().wait()

    def _run(self, id: str) -> None:
        if patiently(lambda: postpone(self._database, self._queue, id), FOREVER):
            return
        note_fit()
        job = patiently(
            lambda: begin(self._database, id, worker=self.id, device=self._device), FOREVER
        )
        if job is None:
            return
        logger.info("fit %s starts, attempt %d", id, job.fit.attempt)
        limit = self._settings.fit_seconds
        hooks = RunningFit(
            self._database,
            job,
            every=self._pace.report,
            leaving=self._leaving,
            time_limit=limit,
            grace=self._pace.grace,
            on_stuck=self._give_up,
        )
        with hooks:
            ending = run(
                job,
                self._blobs,
                hooks,
                device=self._device,
                time_limit=limit,
                memory_limit=self._settings.fit_memory_bytes,
            )
        if ending is None:
            logger.warning("fit %s, attempt %d, is left to others", id, job.fit.attempt)
            return
        told = hooks.told
        done = patiently(
            lambda: conclude(self._database, job.fit, ending, told), self._pace.patience
        )
        logger.info("fit %s ends: %s", id, done.status if done else "by another worker")
        self._tidy_up(job.fit)

    def _give_up(self) -> None:
        """Let the process be replaced: a fit does not come back."""
        self.is_stuck = True

    def _tidy_up(self, fit: Fit) -> None:
        try:
            forget_spent_datasets(self._database, self._blobs, fit)
        except Exception:
            logger.exception("datasets of fit %s are left to the housekeeping", fit.id)


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


def _warm_up(device: str) -> None:
    """Let the libraries load what they load at first use, so that the first fit need not wait."""
    data = CalibrationSet([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]] * 2, [0, 1, 1, 0, 0, 1])
    try:
        export(Smart(steps=1).fit(data, device=device))
    except (FitError, ExportError) as error:
        logger.warning("not all that fits may need is there: %s", error)


def _sign_off(worker: Worker) -> None:
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


def _stop(worker: Worker) -> None:
    try:
        worker.stop()
    except Exception:
        logger.exception("worker %s could not sign off", worker.id)
