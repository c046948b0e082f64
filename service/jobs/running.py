"""A fit while it runs: its progress goes to the database, and requests to stop come back."""

from __future__ import annotations

import logging
import threading
from typing import Any

from service.core.fitting import Stop
from service.jobs.patience import PASSING
from service.storage.database import Database
from service.storage.records import Fit

logger = logging.getLogger(__name__)


class RunningFit:
    """The hooks of a fit; a thread of its own speaks with the database, a few times a second."""

    def __init__(
        self, database: Database, fit: Fit, *, every: float, leaving: threading.Event
    ) -> None:
        self._database = database
        self._fit = fit
        self._every = every
        self._leaving = leaving
        self.told: dict[str, Any] = fit.progress or {}
        self._stop: Stop | None = None
        self._ended = threading.Event()
        self._reporter = threading.Thread(target=self._report, name=f"report-{fit.id}", daemon=True)

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
            try:
                with self._database.write() as store:
                    asked = store.fits.advance(self._fit.id, self._fit.attempt, self.told)
            except Exception as error:  # noqa: BLE001 - a fit whose reporter ended cannot be cancelled
                if type(error) not in met:
                    self._complain(error)
                met.add(type(error))
                continue
            if asked is None:
                self._stop = Stop.ABANDON
                return
            if asked:
                self._stop = Stop.CANCEL

    def _complain(self, error: Exception) -> None:
        logger.warning(
            "progress of fit %s cannot be written: %s",
            self._fit.id,
            type(error).__name__,
            exc_info=None if isinstance(error, PASSING) else error,
        )
