"""Claim fits and run them, through outages of the database and the blob store."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar

from service.access.quota import Quota
from service.concurrency.backoff import Backoff
from service.datasets.service import forget_spent_datasets
from service.errors import Damaged, Unavailable
from service.fits.execution import Ending, FitJob, NewVersion, Stop, conclude, ending_of, run
from service.fits.queue import Claim, claim
from service.fits.service import QUEUES
from service.settings import DAY, Settings
from service.storage.blobs import Blobs, Unnamed, log_damage
from service.storage.database import PASSING, Database
from service.storage.notifications import FITS, NotificationListener
from service.storage.records import Fit
from service.worker.housekeeping import Housekeeping, WorkerPace
from service.worker.identity import new_worker_id
from service.worker.startup import prepare_database, warm_up
from service.worker.supervisor import FITTING

Result = TypeVar("Result")

FOREVER = 10 * 365 * DAY
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
HEED_SECONDS = 1.0
# for a fit that was told to leave its worker, before it is handed back
STOP_SECONDS = 1.0

logger = logging.getLogger(__name__)


class QueueWorker:
    """Claims fits and runs them, one at a time however many its queues are."""

    def __init__(
        self,
        settings: Settings,
        queues: list[str],
        device: str,
        pace: WorkerPace,
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
        self._at_work: set[str] | None = set()
        self._database = Database(settings.database)
        self._blobs = PatientBlobs(settings.blobs, seconds=pace.patience, on_damage=log_damage)
        self._quota = Quota(settings.max_workspace_bytes, self._blobs.folder)
        self._news = threading.Event()
        self._thread = threading.Thread(target=self._work, name="fits", daemon=True)
        self._housekeeping = Housekeeping(
            self._database,
            self._blobs,
            settings,
            pace,
            worker=self.id,
            queues=queues,
            device=device,
            at_work=lambda: self._at_work,
        )

    def start(self) -> None:
        """Take fits from now on."""
        patiently(lambda: prepare_database(self._database), self._pace.patience)
        patiently(self._housekeeping.start, self._pace.patience)
        warm_up(self._device)
        self._thread.start()

    def stop(self) -> None:
        """Take no more fits, and give those at hand to other workers."""
        self._leaving.set()
        self._news.set()
        self._housekeeping.stop()
        if self._thread.ident is not None:
            self._thread.join(STOP_SECONDS)
        self._housekeeping.hand_back()

    def _work(self) -> None:
        calls = {FITS: self._news.set}
        poll = self._pace.poll
        with NotificationListener(self._database.unhurried, calls, poll_seconds=poll):
            while not self._leaving.is_set():
                self._news.clear()
                try:
                    seconds = self.work_once()
                except Exception:
                    logger.exception("a fit could not be taken or ended; others are taken")
                    seconds = LONGEST_PAUSE
                self._news.wait(seconds)

    def work_once(self) -> float:
        """Claim and run a fit if there is one; return the seconds until the next look."""
        self._at_work = None  # until it is known which
        try:
            claimed = patiently(self._claim, FOREVER)
            if claimed.job is None:
                return claimed.seconds
            self._at_work = {claimed.job.fit.id}
            note_fit()
            self._run(claimed.job)
        finally:
            if not self._leaving.is_set():  # else it is handed back, and must not count as lost
                self._at_work = set()
        return 0.0

    def _claim(self) -> Claim:
        if self._leaving.is_set():
            return Claim(None)
        return claim(self._database, self._queues, worker=self.id, device=self._device)

    def _run(self, job: FitJob) -> None:
        id = job.fit.id
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
                check_room=partial(self._check_room, job.fit.workspace),
            )
        if ending is None:
            logger.warning("fit %s, attempt %d, is left to others", id, job.fit.attempt)
            return
        told = hooks.told
        done = patiently(
            lambda: conclude(self._database, job.fit, ending, told), self._pace.patience
        )
        logger.info("fit %s ends: %s", id, done.status if done else "by another worker")
        self._tidy_up(job, ending, done)

    def _check_room(self, workspace: str, size: int) -> None:
        """Raise TooLarge unless a workspace may store maps of so many bytes."""
        with self._database.read() as store:
            self._quota.check(store, workspace, size)

    def _delete_unnamed(self, unnamed: Unnamed, versions: Sequence[NewVersion]) -> None:
        """Delete the blobs of versions, unless a commit whose answer was lost has made these."""
        with self._database.read() as store:
            is_named = bool(store.calibrators.hashes([one.id for one in versions]))
        if not is_named:
            unnamed.delete()

    def _give_up(self) -> None:
        """Let the process be replaced: a fit does not come back."""
        self.is_stuck = True

    def _tidy_up(self, job: FitJob, ending: Ending, done: Fit | None) -> None:
        try:
            if ending.unnamed is not None and not (done and done.versions):
                self._delete_unnamed(ending.unnamed, ending.versions)
            forget_spent_datasets(self._database, self._blobs, job.dataset, job.evaluation)
        except Exception:
            logger.exception("bytes of fit %s are left to the housekeeping", job.fit.id)


def note_fit() -> None:
    """Tell the supervisor of this process, if it has one, that a fit was taken."""
    path = os.environ.get(FITTING)
    if path:
        with suppress(OSError):
            Path(path).touch()


class RunningFit:
    """The hooks of a fit; a thread of its own speaks with the database, a few times a second.

    A fit that is told to stop and does not heed it, because it is in the middle of something long,
    is ended here: who waits for it hears so at once, and what it makes later is not written. If it
    has not come back after ``grace`` seconds, ``on_stuck`` is called: its thread cannot be ended,
    only its process can.
    """

    def __init__(
        self,
        database: Database,
        job: FitJob,
        *,
        every: float,
        leaving: threading.Event,
        time_limit: float,
        grace: float = math.inf,
        on_stuck: Callable[[], None] = lambda: None,
    ) -> None:
        self._grace = grace
        self._on_stuck = on_stuck
        self._database = database
        self._fit = job.fit
        self._every = every
        self._leaving = leaving
        self._time_limit = time_limit
        self._deadline = time.monotonic() + time_limit - job.seconds_running
        self.told: dict[str, Any] = job.fit.progress or {}
        self._stop: Stop | None = None
        self._stopped_at = 0.0
        self._ended = threading.Event()
        self._reporter = threading.Thread(
            target=self._report, name=f"report-{job.fit.id}", daemon=True
        )

    def __enter__(self) -> RunningFit:
        self._reporter.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._reporter.join(timeout=self._every)

    def progress(self, told: dict[str, Any]) -> None:
        """Keep the latest; the reporter writes it."""
        self.told = told

    def stop(self) -> Stop | None:
        """Whether the fit has to stop, as of the last time the database answered."""
        return Stop.ABANDON if self._leaving.is_set() else self._stop

    def _report(self) -> None:
        met: set[type[Exception]] = set()
        while not self._ended.wait(self._every):
            if self._stop is None and time.monotonic() > self._deadline:
                self._stop_for(Stop.TIME_LIMIT)
            try:
                self._look()
            except Exception as error:  # noqa: BLE001 - a fit whose reporter ended cannot be cancelled
                if type(error) not in met:
                    self._complain(error)
                met.add(type(error))
            if self._stop is not None and self._seconds_stopped() > self._grace:
                logger.warning("fit %s does not come back", self._fit.id)
                self._on_stuck()
                return

    def _look(self) -> None:
        """Write the progress, see whether the fit has to stop, and whether it heeds that."""
        if self._stop is Stop.ABANDON:
            return
        with self._database.write() as store:
            asked = store.fits.advance(self._fit.id, self._fit.attempt, self.told)
        if asked is None:
            self._stop_for(Stop.ABANDON)
        elif self._stop is None and asked:
            self._stop_for(Stop.CANCEL)
        elif self._stop is not None and self._seconds_stopped() > HEED_SECONDS:
            ending = ending_of(self._stop, self._time_limit)
            if ending is not None and conclude(self._database, self._fit, ending, self.told):
                logger.warning("fit %s is ended while it is still busy", self._fit.id)
            self._stop = Stop.ABANDON

    def _stop_for(self, reason: Stop) -> None:
        self._stop = reason
        self._stopped_at = time.monotonic()

    def _seconds_stopped(self) -> float:
        return time.monotonic() - self._stopped_at

    def _complain(self, error: Exception) -> None:
        logger.warning(
            "progress of fit %s cannot be written: %s",
            self._fit.id,
            type(error).__name__,
            exc_info=None if isinstance(error, PASSING) else error,
        )


def patiently(action: Callable[[], Result], seconds: float) -> Result:
    """The result of ``action``, which is tried again while it meets passing troubles."""
    deadline = time.monotonic() + seconds
    backoff: Backoff | None = None
    while True:
        try:
            return action()
        except PASSING as error:
            backoff = backoff or Backoff(FIRST_PAUSE, LONGEST_PAUSE)
            pause = backoff.pause()
            if time.monotonic() + pause > deadline:
                raise
            logger.warning("a store does not serve (%s): trying again", _name(error))
            time.sleep(pause)


def _name(error: Exception) -> str:
    return error.code if isinstance(error, Unavailable) else type(error).__name__


class PatientBlobs(Blobs):
    """For fits: an hour of work is not thrown away for a minute's outage of the store."""

    def __init__(
        self, url: str, *, seconds: float, on_damage: Callable[[str, Damaged], None] | None = None
    ) -> None:
        super().__init__(url, on_damage=on_damage)
        self._seconds = seconds

    def put(self, key: str, content: bytes | Path | IO[bytes]) -> None:
        """Write a blob; a stream, which cannot be read twice, is tried once."""
        put = super().put
        again = self._seconds if isinstance(content, bytes | Path) else 0.0
        patiently(lambda: put(key, content), again)

    @contextmanager
    def file(self, key: str, sha256: str) -> Iterator[Path]:
        """A blob as a file to read, which must have this SHA-256."""
        file = super().file
        with ExitStack() as opened:
            yield patiently(lambda: opened.enter_context(file(key, sha256)), self._seconds)
