"""Claim and run fits, and retry during outages of the database and the blob store."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar

import structlog

from calibrators.backoff import Backoff
from service.access.quota import Quota
from service.datasets.service import forget_spent_datasets
from service.errors import Damaged, Unavailable
from service.fits.execution import Ending, FitAttempt, NewVersion, Stop, conclude, ending_of, run
from service.fits.queue import Claim, claim
from service.fits.service import QUEUES
from service.settings import DAY, Settings
from service.storage.blobs import Blobs, PendingBlobs, log_damage
from service.storage.database import TRANSIENT, Database
from service.storage.notifications import FITS, NotificationListener
from service.storage.records import Fit
from service.worker.housekeeping import Housekeeping, WorkerPace
from service.worker.identity import new_worker_id
from service.worker.startup import warm_up
from service.worker.supervisor import FITTING

Result = TypeVar("Result")

FOREVER = 10 * 365 * DAY
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
# how long a running fit may take to notice that it has to stop
REACTION_SECONDS = 1.0
# how long a fit may take to end when its worker exits, before it is requeued
STOP_SECONDS = 1.0

_log = structlog.get_logger("calibrd.worker")


class QueueWorker:
    """A worker that claims and runs fits from its queues, one at a time."""

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
        self._current: set[str] | None = set()
        self._database = Database(settings.database)
        self._blobs = RetryingBlobs(settings.blobs, seconds=pace.retry, on_damage=log_damage)
        self._quota = Quota(settings.max_workspace_bytes, self._blobs.folder)
        self._notified = threading.Event()
        self._thread = threading.Thread(target=self._work, name="fits", daemon=True)
        self._housekeeping = Housekeeping(
            self._database,
            self._blobs,
            settings,
            pace,
            worker=self.id,
            queues=queues,
            device=device,
            current_fits=lambda: self._current,
        )

    def start(self) -> None:
        """Start claiming fits."""
        retry(self._housekeeping.start, self._pace.retry)
        warm_up(self._device)
        self._thread.start()

    def stop(self) -> None:
        """Stop claiming fits, and requeue the current one."""
        self._leaving.set()
        self._notified.set()
        self._housekeeping.stop()
        if self._thread.ident is not None:
            self._thread.join(STOP_SECONDS)
        self._housekeeping.hand_back()

    def _work(self) -> None:
        calls = {FITS: self._notified.set}
        poll = self._pace.poll
        with NotificationListener(self._database.unlimited, calls, poll_seconds=poll):
            while not self._leaving.is_set():
                self._notified.clear()
                try:
                    seconds = self.work_once()
                except Exception:  # noqa: BLE001 - other fits are waiting
                    _log.exception("fit_not_claimed_or_concluded")
                    seconds = LONGEST_PAUSE
                self._notified.wait(seconds)

    def work_once(self) -> float:
        """Claim and run a fit, if any; return the seconds until the next poll."""
        self._current = None  # unknown until the claim returns
        try:
            claimed = retry(self._claim, FOREVER)
            if claimed.attempt is None:
                return claimed.seconds
            self._current = {claimed.attempt.fit.id}
            note_fit()
            self._run(claimed.attempt)
        finally:
            if not self._leaving.is_set():  # else the fit is requeued, and must not count as lost
                self._current = set()
        return 0.0

    def _claim(self) -> Claim:
        if self._leaving.is_set():
            return Claim(None)
        return claim(
            self._database,
            self._queues,
            worker=self.id,
            device=self._device,
            most_running=self._settings.max_running_fits,
        )

    def _run(self, attempt: FitAttempt) -> None:
        fit = attempt.fit
        _log.info("fit_started", fit=fit.id, attempt=fit.attempt)
        limit = self._settings.fit_seconds
        hooks = RunningFit(
            self._database,
            attempt,
            every=self._pace.report,
            leaving=self._leaving,
            time_limit=limit,
            grace=self._pace.grace,
            on_stuck=self._note_stuck,
        )
        with hooks:
            ending = run(
                attempt,
                self._blobs,
                hooks,
                device=self._device,
                time_limit=limit,
                memory_limit=self._settings.fit_memory_bytes,
                check_room=partial(self._check_room, fit.workspace),
            )
        if ending is None:
            _log.warning("fit_abandoned", fit=fit.id, attempt=fit.attempt)
            return
        progress = hooks.latest
        done = retry(lambda: conclude(self._database, fit, ending, progress), self._pace.retry)
        if done is None:
            _log.info("fit_taken_over", fit=fit.id, attempt=fit.attempt)
        else:
            _log.info("fit_finished", fit=fit.id, status=done.status)
        self._clean_up(attempt, ending, done)

    def _check_room(self, workspace: str, size: int) -> None:
        """Raise TooLarge unless a workspace has room for maps of ``size`` bytes."""
        with self._database.read() as store:
            self._quota.check(store, workspace, size)

    def _delete_pending(self, pending: PendingBlobs, versions: Sequence[NewVersion]) -> None:
        """Delete the blobs of versions, unless their rows exist.

        The rows may exist because a commit can succeed even if its response is lost.
        """
        with self._database.read() as store:
            is_named = bool(store.calibrators.hashes([one.id for one in versions]))
        if not is_named:
            pending.delete()

    def _note_stuck(self) -> None:
        """Request a restart of the process to end a fit that does not stop."""
        self.is_stuck = True

    def _clean_up(self, attempt: FitAttempt, ending: Ending, done: Fit | None) -> None:
        try:
            if ending.pending is not None and not (done and done.versions):
                self._delete_pending(ending.pending, ending.versions)
            forget_spent_datasets(self._database, self._blobs, attempt.dataset, attempt.evaluation)
        except Exception:  # noqa: BLE001 - housekeeping will delete what is left
            _log.exception("clean_up_failed", fit=attempt.fit.id)


def note_fit() -> None:
    """Notify the supervisor, if there is one, that this process has claimed a fit."""
    path = os.environ.get(FITTING)
    if path:
        with suppress(OSError):
            Path(path).touch()


class RunningFit:
    """Hooks of a running fit; a thread writes progress and polls for stop requests.

    A fit in the middle of a long call cannot respond to a stop request, so it is concluded here:
    waiting callers are notified at once, and later results are discarded. If the fit has not
    returned after ``grace`` seconds, ``on_stuck`` is called, because a thread cannot be killed.
    """

    def __init__(
        self,
        database: Database,
        attempt: FitAttempt,
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
        self._fit = attempt.fit
        self._every = every
        self._leaving = leaving
        self._time_limit = time_limit
        self._deadline = time.monotonic() + time_limit - attempt.seconds_running
        self.latest: dict[str, Any] = attempt.fit.progress or {}
        self._stop: Stop | None = None
        self._stopped_at = 0.0
        self._ended = threading.Event()
        self._reporter = threading.Thread(
            target=self._report, name=f"report-{attempt.fit.id}", daemon=True
        )

    def __enter__(self) -> RunningFit:
        self._reporter.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._reporter.join(timeout=self._every)

    def progress(self, current: dict[str, Any]) -> None:
        """Store the latest progress for the reporter thread, which writes it."""
        self.latest = current

    def stop(self) -> Stop | None:
        """Return the reason for the fit to stop, or None, as of the last database poll."""
        return Stop.ABANDON if self._leaving.is_set() else self._stop

    def _report(self) -> None:
        logged: set[type[Exception]] = set()
        while not self._ended.wait(self._every):
            if self._stop is None and time.monotonic() > self._deadline:
                self._stop_for(Stop.TIME_LIMIT)
            try:
                self._poll()
            except Exception as error:  # noqa: BLE001 - a fit whose reporter ended cannot be cancelled
                if type(error) not in logged:
                    self._log_error(error)
                logged.add(type(error))
            if self._stop is not None and self._seconds_stopped() > self._grace:
                _log.warning("fit_stuck", fit=self._fit.id)
                self._on_stuck()
                return

    def _poll(self) -> None:
        """Write the progress, and conclude the fit if it does not respond to a stop request."""
        if self._stop is Stop.ABANDON:
            return
        with self._database.write() as store:
            cancelled = store.fits.advance(self._fit.id, self._fit.attempt, self.latest)
        if cancelled is None:
            self._stop_for(Stop.ABANDON)
        elif self._stop is None and cancelled:
            self._stop_for(Stop.CANCEL)
        elif self._stop is not None and self._seconds_stopped() > REACTION_SECONDS:
            ending = ending_of(self._stop, self._time_limit)
            if ending is not None and conclude(self._database, self._fit, ending, self.latest):
                _log.warning("fit_concluded_while_busy", fit=self._fit.id)
            self._stop = Stop.ABANDON

    def _stop_for(self, reason: Stop) -> None:
        self._stop = reason
        self._stopped_at = time.monotonic()

    def _seconds_stopped(self) -> float:
        return time.monotonic() - self._stopped_at

    def _log_error(self, error: Exception) -> None:
        _log.warning(
            "progress_not_written",
            fit=self._fit.id,
            error=type(error).__name__,
            exc_info=None if isinstance(error, TRANSIENT) else error,
        )


def retry(action: Callable[[], Result], seconds: float) -> Result:
    """Return the result of ``action``; retry it for ``seconds`` after transient errors."""
    deadline = time.monotonic() + seconds
    backoff: Backoff | None = None
    while True:
        try:
            return action()
        except TRANSIENT as error:
            backoff = backoff or Backoff(FIRST_PAUSE, LONGEST_PAUSE, jitter=0.0)
            pause = backoff.pause()
            if time.monotonic() + pause > deadline:
                raise
            _log.warning("store_unavailable", error=_name(error), retry_seconds=round(pause, 2))
            time.sleep(pause)


def _name(error: Exception) -> str:
    return error.code if isinstance(error, Unavailable) else type(error).__name__


class RetryingBlobs(Blobs):
    """A blob store with retries, so that a short outage does not destroy an hour of work."""

    def __init__(
        self, url: str, *, seconds: float, on_damage: Callable[[str, Damaged], None] | None = None
    ) -> None:
        super().__init__(url, on_damage=on_damage)
        self._seconds = seconds

    def put(self, key: str, content: bytes | Path | IO[bytes]) -> None:
        """Write a blob; a stream, which cannot be read twice, is not retried."""
        put = super().put
        seconds = self._seconds if isinstance(content, bytes | Path) else 0.0
        retry(lambda: put(key, content), seconds)

    @contextmanager
    def file(self, key: str, sha256: str) -> Iterator[Path]:
        """Provide a blob as a file; raise Damaged unless its SHA-256 matches."""
        file = super().file
        with ExitStack() as opened:
            yield retry(lambda: opened.enter_context(file(key, sha256)), self._seconds)
