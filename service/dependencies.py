"""The parts of a running service, as dependencies of its routes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import structlog
from fastapi import Depends, Request

from service.access.keys import KeyRing
from service.access.quota import Quota
from service.access.sessions import Sessions
from service.comparisons.service import Comparisons
from service.concurrency.memory_budget import CallMemory
from service.concurrency.thread_pools import Executors
from service.datasets.part_uploads import PartUploads
from service.datasets.service import Datasets
from service.datasets.spool import Spool
from service.fits.service import FitWatcher
from service.http.metrics import Metrics
from service.maintenance.readiness import Probe
from service.registry.reports.renderer import Renderer
from service.runs.watcher import RunWatcher
from service.serving.map_cache import Maps
from service.settings import Settings
from service.storage.blobs import Blobs
from service.storage.database import Database

_log = structlog.get_logger("calibrd.service")


@dataclass(frozen=True)
class Parts:
    """The parts of a service, joined by ``service.app``."""

    settings: Settings
    database: Database
    blobs: Blobs
    keys: KeyRing
    sessions: Sessions
    maps: Maps
    comparisons: Comparisons
    watcher: FitWatcher
    run_watcher: RunWatcher
    datasets: Datasets
    part_uploads: PartUploads
    executors: Executors
    spool: Spool
    quota: Quota
    call_memory: CallMemory
    renderer: Renderer
    metrics: Metrics
    probe: Probe

    def refresh(self) -> None:
        """See which keys and aliases have changed."""
        self.keys.refresh()
        self.maps.refresh()

    def refresh_if_possible(self) -> None:
        """The same; while the database is away, go on with what is known until the next look."""
        try:
            self.refresh()
        except Exception as error:  # noqa: BLE001 - what was committed is not undone by this
            _log.warning("refresh_failed", error=type(error).__name__)

    def end_waiting(self) -> None:
        """Answer all who wait for something, because the service ends."""
        self.watcher.stop()
        self.run_watcher.stop()


def _parts(request: Request) -> Parts:
    parts: Parts = request.app.state.parts
    return parts


Joined = Annotated[Parts, Depends(_parts)]
