"""A fit while it runs: its progress goes to the database, and requests to stop come back."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Any

from service.fits.execution import Job, Stop, conclude, ending_of
from service.storage.database import Database
from service.worker.retry import PASSING

HEED_SECONDS = 1.0

logger = logging.getLogger(__name__)


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
        job: Job,
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
