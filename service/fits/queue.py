"""The queue of fits: the rows of ``fits`` that wait. Workers claim them, workspaces in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import dropwhile, filterfalse
from typing import NamedTuple

from service.fits.execution import FitJob, job_of
from service.fits.repository import Turn
from service.settings import HOUR
from service.storage.database import Database
from service.storage.store import Store

# between two looks of an idle worker that hears nothing
LOOK_SECONDS = 15.0
# before the next fit of a workspace whose fits lose workers
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 600.0


class Claim(NamedTuple):
    """A fit that was taken, or the seconds until it is worth looking again."""

    job: FitJob | None
    seconds: float = LOOK_SECONDS


def claim(database: Database, queues: Sequence[str], *, worker: str, device: str) -> Claim:
    """Take the oldest fit of the workspace whose last fit started longest ago.

    A claim is a heartbeat: a worker that was taken for dead claims nothing before it has beaten
    again, so every running fit is of a worker that others watch.
    """
    pauses: list[float] = []
    with database.read() as store:
        turns = list(dropwhile(_pausing(store, pauses), store.fits.turns(queues)))
    if not turns:  # and nothing is written, which would wake workers
        return Claim(None, min([LOOK_SECONDS, *pauses]))
    with database.write() as store:
        if not store.workers.renew(worker):
            return Claim(None)
        for turn in filterfalse(_pausing(store, pauses), turns):
            fit = store.fits.start_next(turn, worker=worker, device=device)
            if fit is not None:
                return Claim(job_of(store, fit))
    return Claim(None, min([LOOK_SECONDS, *pauses]))


def _pausing(store: Store, pauses: list[float]) -> Callable[[Turn], bool]:
    """Return what tells whether a workspace has to wait, and adds to ``pauses`` for how long."""

    def is_pausing(turn: Turn) -> bool:
        seconds = seconds_to_wait(store, turn.workspace)
        if seconds:
            pauses.append(seconds)
        return seconds > 0

    return is_pausing


def pause_after(losses: int) -> float:
    """Return the seconds that a workspace waits after so many workers lost in the last hour.

    A fit that needs more memory than there is takes its worker with it, and starting another
    takes seconds: the fits of others must not wait for that again and again.

    >>> [pause_after(losses) for losses in (0, 1, 2, 3, 50)]
    [0.0, 5.0, 10.0, 20.0, 600.0]
    """
    return min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(losses - 1, 30)) if losses else 0.0


def seconds_to_wait(store: Store, workspace: str) -> float:
    """Return how long no fit of a workspace may start."""
    losses = store.fits.losses(workspace, HOUR)
    return max(0.0, pause_after(losses.attempts) - losses.seconds_ago)
