"""The parts of a running service, as dependencies of its routes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import structlog
from fastapi import Depends, Request

from service.access.keys import KeyRing
from service.access.permissions import Principal
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
from service.storage.records import Alias

_log = structlog.get_logger("calibrd.service")


@dataclass(frozen=True)
class Parts:
    """The parts of a service, assembled by ``service.app``."""

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
        """Reload changed keys and aliases."""
        self.keys.refresh()
        self.maps.refresh()

    def refresh_keys_if_possible(self) -> None:
        """Reload changed keys, unless the database is unavailable."""
        _if_possible(self.keys.refresh)

    def refresh_maps_if_possible(self) -> None:
        """Reload the aliases that have moved, unless the database is unavailable."""
        _if_possible(self.maps.refresh)

    def follow_if_possible(self, caller: Principal, name: str, alias: Alias) -> None:
        """Serve the version that a moved alias points at; other aliases are not refreshed."""
        _if_possible(partial(self.maps.follow, caller, name, alias))

    def end_waiting(self) -> None:
        """Respond to all waiting requests, because the service is shutting down."""
        self.watcher.stop()
        self.run_watcher.stop()


def _if_possible(refresh: Callable[[], None]) -> None:
    try:
        refresh()
    except Exception as error:  # noqa: BLE001 - a failure here does not undo the commit
        _log.warning("refresh_failed", error=type(error).__name__)


def _parts(request: Request) -> Parts:
    parts: Parts = request.app.state.parts
    return parts


Joined = Annotated[Parts, Depends(_parts)]
