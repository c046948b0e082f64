"""Worker heartbeats, recovery of lost workers' fits, and housekeeping."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

import structlog

from service.datasets.service import forget_dataset
from service.errors import Conflict
from service.fits.execution import failed
from service.fits.service import WORKER_IS_ALIVE
from service.maintenance.sweep import CHORE, sweep
from service.runs.watcher import Merges, release_merged
from service.settings import HOUR, Settings
from service.storage.blobs import Blobs
from service.storage.database import TRANSIENT, Database
from service.storage.records import Fit
from service.storage.repository import DELETE_BATCH
from service.storage.store import Store

_log = structlog.get_logger("calibrd.worker")


@dataclass(frozen=True)
class WorkerPace:
    """Intervals and deadlines of a worker, in seconds."""

    heartbeat: float = 2.0
    silence: float = WORKER_IS_ALIVE  # without a heartbeat before a worker is declared lost
    report: float = 0.25  # between two writes of a fit's progress
    poll: float = 0.02  # between two polls for writes to a SQLite file
    housekeeping: float = 60.0
    merging: float = 5.0  # between two polls for steps of runs that are due
    grace: float = 5.0  # for a fit to stop before its process is replaced
    retry: float = 60.0  # during an outage of the database or the blob store


class Housekeeping:
    """The background threads of a worker: heartbeats, housekeeping and run steps."""

    def __init__(
        self,
        database: Database,
        blobs: Blobs,
        settings: Settings,
        pace: WorkerPace,
        *,
        worker: str,
        queues: list[str],
        device: str,
        current_fits: Callable[[], Collection[str] | None],
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._settings = settings
        self._pace = pace
        self._worker = worker
        self._queues = queues
        self._device = device
        self._current_fits = current_fits
        self._merges = Merges(database)
        self._last_beat = self._steady_since = -math.inf
        self._ended = threading.Event()
        # separate threads, because heartbeats must not wait for housekeeping, which may take long
        self._threads = [
            self._thread("heartbeat", self.beat, pace.heartbeat),
            self._thread("housekeeping", self.keep_house, pace.housekeeping),
            self._thread("merging", self.decide_steps, pace.merging),
            self._thread("releasing", self.release_statistics, pace.merging),
        ]

    def start(self) -> None:
        """Send the first heartbeat, so that other workers notice a crash, and start the threads."""
        self.beat()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop the threads."""
        self._ended.set()
        for thread in self._threads:
            thread.join(timeout=0.5)

    def beat(self) -> None:
        """Send a heartbeat, and requeue the fits of lost workers."""
        now = time.monotonic()
        if now - self._last_beat > self._pace.silence / 2:
            self._steady_since = now
        with self._database.write() as store:
            store.workers.beat(self._worker, queues=self._queues, device=self._device)
            silent = store.workers.silent(self._pace.silence)
            mine = store.fits.running_on(self._worker)
        self._last_beat = now
        # after a database outage, all workers seem silent: wait for new heartbeats first
        for lost in silent if now - self._steady_since >= self._pace.silence else ():
            self._take_over(lost.id)
        # if the response to a claim was lost, the database lists a fit that does not run here
        current = self._current_fits()
        unknown = [] if current is None else [fit for fit in mine if fit.id not in current]
        if unknown:
            with self._database.write() as store:
                self._requeue(store, unknown)

    def hand_back(self) -> None:
        """Requeue this worker's fits, and deregister the worker."""
        with self._database.write() as store:
            store.workers.remove(self._worker)
            for fit in store.fits.running_on(self._worker):
                store.fits.hand_back(fit.id, fit.attempt)

    def decide_steps(self) -> None:
        """Start deciding the run steps that are due."""
        with self._database.read() as store:  # a cheap query, because usually nothing is due
            is_due = store.run_steps.due(None, 1)
        if is_due:
            self._merges.start_due()

    def release_statistics(self) -> None:
        """Delete statistics that have been merged."""
        release_merged(self._database)

    def keep_house(self) -> None:
        """Delete expired rows and datasets, requeue orphaned fits, and sweep."""
        grace = self._settings.sweep_hours * HOUR
        max_age = self._settings.idempotency_hours * HOUR
        self._delete_all(lambda store: store.idempotency.forget(max_age))
        self._delete_all(lambda store: store.web_sessions.forget_expired())
        with self._database.write() as store:
            self._requeue(store, store.fits.without_worker())
            sweeps = grace > 0 and store.chores.claim(CHORE, HOUR)
        self._forget_datasets()
        self._database.shorten_log()
        if sweeps and not self._ended.is_set():
            self._sweep(grace)

    def _delete_all(self, delete: Callable[[Store], int]) -> None:
        """Delete rows in batches of ``DELETE_BATCH``, so that no other writer waits long."""
        while not self._ended.is_set():
            with self._database.write() as store:
                if delete(store) < DELETE_BATCH:
                    return

    def _forget_datasets(self) -> None:
        """Delete old datasets until none is left, or until the next housekeeping is due."""
        deadline = time.monotonic() + self._pace.housekeeping
        is_done = False
        while not is_done:
            with self._database.read() as store:  # a slow query: hold no write lock
                old = store.datasets.expired() + store.fits.spent_datasets()
            is_done = True
            for dataset in old:
                began = time.monotonic()
                if self._ended.is_set() or began > deadline:
                    return
                if forget_dataset(self._database, self._blobs, dataset):
                    is_done = False
                self._ended.wait(time.monotonic() - began)  # let other processes write

    def _sweep(self, grace: float) -> None:
        try:
            swept = sweep(self._database, self._blobs, older_than=grace, stop=self._ended.is_set)
        except Conflict as error:
            _log.error("sweep_refused", detail=error.message)
        else:
            _log.info(
                "blobs_swept",
                orphans=swept.orphans.total(),
                bytes=swept.bytes,
                kept=swept.kept,
                unknown=swept.unknown,
            )

    def _thread(self, name: str, task: Callable[[], None], every: float) -> threading.Thread:
        return threading.Thread(
            target=self._repeat, args=(name, task, every), name=name, daemon=True
        )

    def _repeat(self, name: str, task: Callable[[], None], every: float) -> None:
        while not self._ended.wait(every):
            try:
                task()
            except TRANSIENT as error:
                _log.warning("task_postponed", task=name, error=type(error).__name__)
            except Exception:  # noqa: BLE001 - the thread must continue
                _log.exception("task_failed", task=name)

    def _take_over(self, lost: str) -> None:
        with self._database.write() as store:
            # remove the worker first: a claim in progress locks its row, and shows that it is alive
            if not store.workers.remove_silent(lost, self._pace.silence):
                return
            fits = store.fits.running_on(lost)
            _log.warning("worker_lost", worker=lost, fits=[fit.id for fit in fits])
            self._requeue(store, fits)

    def _requeue(self, store: Store, fits: list[Fit]) -> None:
        """Requeue fits whose attempts were abandoned, or fail them after too many attempts."""
        for fit in fits:
            if fit.attempt >= self._settings.fit_attempts:
                ending = failed(
                    "worker_lost",
                    f"the fit was started {fit.attempt} times, and its worker was lost each time: "
                    "it may need more memory than a worker has",
                )
                store.fits.give_up(fit.id, fit.attempt, ending.error)
            else:
                store.fits.requeue(fit.id, fit.attempt)
