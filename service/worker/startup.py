"""Bring a database, and a worker process, to where they can start."""

from __future__ import annotations

import logging
import resource
from pathlib import Path

from calibrators import CalibrationSet, ExportError, FitError
from calibrators.export.onnx import export
from calibrators.methods.smart import Smart
from service.access.keys import DEFAULT_WORKSPACE, workspace_named
from service.storage.database import Database
from service.storage.upgrade import migration_lock, upgrade

# estimates of fits are no promises
MEMORY_MARGIN = 2
KILOBYTE = 1024

logger = logging.getLogger(__name__)


def limit_memory(fit_bytes: int) -> None:
    """Let allocations of this process fail beyond what a fit of ``fit_bytes`` can need.

    A fit that needs more than its estimate then fails alone, before the machine runs out of memory.
    Does nothing where the system does not tell how much is in use.
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


def prepare_database(database: Database) -> None:
    """All tables and the first workspace; many starters may do so at once."""
    with migration_lock(database):
        upgrade(database)
        with database.write() as store:
            workspace_named(store, DEFAULT_WORKSPACE, make=True)


def warm_up(device: str) -> None:
    """Let the libraries load what they load at first use, so that the first fit need not wait."""
    data = CalibrationSet([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]] * 2, [0, 1, 1, 0, 0, 1])
    try:
        export(Smart(steps=1).fit(data, device=device))
    except (FitError, ExportError) as error:
        logger.warning("not all that fits may need is there: %s", error)
