"""What workers do for each other: heartbeats, taking over from the dead, and housekeeping."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from service.datasets.service import forget_dataset
from service.errors import Conflict
from service.fits.execution import failed
from service.fits.service import WORKER_IS_ALIVE
from service.maintenance.sweep import CHORE, sweep
from service.runs.decisions import decide_due, release_merged
from service.settings import HOUR, Settings
from service.storage.blobs import Blobs
from service.storage.database import PASSING, Database
from service.storage.records import Fit
from service.storage.repository import AT_ONCE
from service.storage.store import Store

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkerPace:
    """How often things happen, in seconds."""

    heartbeat: float = 2.0
    silence: float = WORKER_IS_ALIVE  # after which a worker is taken for dead
    report: float = 0.25  # between two writes of a fit's progress
    poll: float = 0.02  # between two looks whether a SQLite file was written to
    housekeeping: float = 60.0
    merging: float = 5.0  # between two looks for steps of runs that have waited long enough
    grace: float = 5.0  # for a fit that was told to stop, until its process is replaced
    patience: float = 60.0  # how long a database may be away while an ending is written


class Housekeeping:
    """The heartbeat of a worker, and what it sees to on the way."""

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
        at_work: Callable[[], Collection[str] | None],
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._settings = settings
        self._pace = pace
        self._worker = worker
        self._queues = queues
        self._device = device
        self._at_work = at_work
        self._last_beat = self._steady_since = -math.inf
        self._ended = threading.Event()
        # housekeeping may take long, and a worker that does not beat is taken for dead
        self._threads = [
            self._thread("heartbeat", self.beat, pace.heartbeat),
            self._thread("housekeeping", self.keep_house, pace.housekeeping),
            self._thread("merging", self.decide_steps, pace.merging),
        ]

    def start(self) -> None:
        """Beat once, so that nobody can die unknown, then regularly, and keep house beside it."""
        self.beat()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Beat no more, and keep house no more."""
        self._ended.set()
        for thread in self._threads:
            thread.join(timeout=0.5)

    def beat(self) -> None:
        """Say that this worker lives, and take over from those that do not."""
        now = time.monotonic()
        if now - self._last_beat > self._pace.silence / 2:
            self._steady_since = now
        with self._database.write() as store:
            store.workers.beat(self._worker, queues=self._queues, device=self._device)
            silent = store.workers.silent(self._pace.silence)
            mine = store.fits.running_on(self._worker)
        self._last_beat = now
        # after a pause of the database all seem silent: let them beat before judging them
        for dead in silent if now - self._steady_since >= self._pace.silence else ():
            self._take_over(dead.id)
        # an answer of the database can get lost, and with it a fit that we have started
        at_work = self._at_work()
        unknown = [] if at_work is None else [fit for fit in mine if fit.id not in at_work]
        if unknown:
            with self._database.write() as store:
                self._start_again(store, unknown)

    def hand_back(self) -> None:
        """Let the fits of this worker wait for another one, and sign off."""
        with self._database.write() as store:
            store.workers.remove(self._worker)
            for fit in store.fits.running_on(self._worker):
                store.fits.hand_back(fit.id, fit.attempt)

    def decide_steps(self) -> None:
        """Decide steps of runs that are due, and delete the statistics of those decided."""
        with self._database.read() as store:  # one look, as nearly always there is nothing to do
            is_due, is_merged = store.run_steps.due(None, 1), store.run_steps.unreleased(1)
        if is_due:
            decide_due(self._database)
        if is_merged:
            release_merged(self._database)

    def keep_house(self) -> None:
        """Delete what has served its time."""
        grace = self._settings.sweep_hours * HOUR
        kept = self._settings.idempotency_hours * HOUR
        self._delete_all(lambda store: store.idempotency.forget(kept))
        self._delete_all(lambda store: store.web_sessions.forget_expired())
        with self._database.write() as store:
            self._start_again(store, store.fits.without_worker())
            sweeps = grace > 0 and store.chores.claim(CHORE, HOUR)
        self._forget_datasets()
        if sweeps and not self._ended.is_set():
            self._sweep(grace)

    def _delete_all(self, delete: Callable[[Store], int]) -> None:
        """Delete rows in transactions of at most ``AT_ONCE``, so that no writer waits long."""
        while not self._ended.is_set():
            with self._database.write() as store:
                if delete(store) < AT_ONCE:
                    return

    def _forget_datasets(self) -> None:
        """Delete datasets until none is left to delete, or the next housekeeping is due."""
        deadline = time.monotonic() + self._pace.housekeeping
        is_done = False
        while not is_done:
            with self._database.read() as store:  # looking may take long: nobody may wait for it
                old = store.datasets.expired() + store.fits.spent_datasets()
            is_done = True
            for dataset in old:
                began = time.monotonic()
                if self._ended.is_set() or began > deadline:
                    return
                if forget_dataset(self._database, self._blobs, dataset):
                    is_done = False
                self._ended.wait(time.monotonic() - began)  # other processes write as well

    def _sweep(self, grace: float) -> None:
        try:
            swept = sweep(self._database, self._blobs, older_than=grace, stop=self._ended.is_set)
        except Conflict as error:
            logger.error("blobs are not swept: %s", error.message)
        else:
            logger.info("blobs were swept: %s", swept.summary())

    def _thread(self, name: str, task: Callable[[], None], every: float) -> threading.Thread:
        return threading.Thread(
            target=self._repeat, args=(name, task, every), name=name, daemon=True
        )

    def _repeat(self, name: str, task: Callable[[], None], every: float) -> None:
        while not self._ended.wait(every):
            try:
                task()
            except PASSING as error:
                logger.warning("no %s at the moment (%s)", name, type(error).__name__)
            except Exception:
                logger.exception("%s failed; it goes on", name)

    def _take_over(self, dead: str) -> None:
        with self._database.write() as store:
            # first: a claim that is under way holds the row, and proves that the worker lives
            if not store.workers.remove_silent(dead, self._pace.silence):
                return
            logger.warning("worker %s is silent: its fits are taken over", dead)
            self._start_again(store, store.fits.running_on(dead))

    def _start_again(self, store: Store, lost: list[Fit]) -> None:
        """Fits whose attempt will never end: they wait again, or have failed too often."""
        for fit in lost:
            if fit.attempt >= self._settings.fit_attempts:
                ending = failed(
                    "worker_lost",
                    f"the fit was started {fit.attempt} times and its worker was lost every time; "
                    "it may need more memory than a worker has",
                )
                store.fits.give_up(fit.id, fit.attempt, ending.error)
            else:
                store.fits.requeue(fit.id, fit.attempt)
