"""Workspaces whose fits lose workers wait before their next fit starts, and others do not.

A fit that needs more memory than there is takes its worker with it, and starting another takes
seconds. So the pause of its workspace doubles with every worker lost in the last hour.
"""

from __future__ import annotations

from service.fits.queue import DbosQueue
from service.settings import HOUR
from service.storage.database import Database
from service.storage.records import FitStatus
from service.storage.store import Store

FIRST_PAUSE, LONGEST_PAUSE = 5.0, 600.0


def pause_after(losses: int) -> float:
    """Return the seconds that a workspace waits after so many lost workers.

    >>> [pause_after(losses) for losses in (0, 1, 2, 3, 50)]
    [0.0, 5.0, 10.0, 20.0, 600.0]
    """
    return min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(losses - 1, 30)) if losses else 0.0


def seconds_to_wait(store: Store, workspace: str) -> float:
    """Return how long no fit of a workspace may start."""
    losses = store.fits.losses(workspace, HOUR)
    return max(0.0, pause_after(losses.attempts) - losses.seconds_ago)


def postpone(database: Database, queue: DbosQueue, id: str) -> bool:
    """Put a fit that was taken from its queue back for later if its workspace has to wait."""
    with database.read() as store:
        fit = store.fits.get(id)
        seconds = 0.0 if fit is None else seconds_to_wait(store, fit.workspace)
    if fit is None or fit.status is not FitStatus.QUEUED or not seconds:
        return False
    with database.write() as store:
        queue.enqueue_again(store, fit, seconds)
    return True
