"""Preparation of the database and of worker processes."""

from __future__ import annotations

import resource
from pathlib import Path

import structlog

from calibrators import CalibrationSet, ExportError, FitError
from calibrators.export.onnx import export
from calibrators.methods.smart import Smart
from service.access.keys import DEFAULT_WORKSPACE, workspace_named
from service.storage.blobs import Blobs
from service.storage.database import Database
from service.storage.store_identity import bind, check_unused
from service.storage.upgrade import migration_lock, revision_of, upgrade

# estimates of a fit's memory may be too low
MEMORY_MARGIN = 2
KILOBYTE = 1024

_log = structlog.get_logger("calibrd.worker")


def limit_memory(fit_bytes: int) -> None:
    """Limit the further memory allocation of this process to twice ``fit_bytes``.

    A fit that needs far more memory than estimated then fails on its own, before the machine runs
    out of memory. This does nothing on systems without /proc.
    """
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return
    in_use = int(status.partition("VmData:")[2].split()[0]) * KILOBYTE
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = in_use + MEMORY_MARGIN * fit_bytes
    if most == resource.RLIM_INFINITY or wanted < most:
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, most))


def prepare_database(
    database: Database, blobs: Blobs | None = None, *, adopt: bool = False
) -> None:
    """Create or upgrade the tables and add the first workspace; safe to run concurrently.

    Given ``blobs``, raise Conflict unless they belong to the database or, if the database is new,
    are unused. ``adopt`` binds them to the database in any case.
    """
    with migration_lock(database):
        if blobs is not None and not adopt and revision_of(database) is None:
            check_unused(blobs)
        upgrade(database)
        with database.write() as store:
            workspace_named(store, DEFAULT_WORKSPACE, make=True)
    if blobs is not None:
        bind(database, blobs, adopt=adopt)


def warm_up(device: str) -> None:
    """Trigger the lazy loading of libraries, so that the first fit does not wait for it."""
    data = CalibrationSet([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]] * 2, [0, 1, 1, 0, 0, 1])
    try:
        export(Smart(steps=1).fit(data, device=device))
    except (FitError, ExportError) as error:
        _log.warning("warm_up_failed", detail=str(error))
