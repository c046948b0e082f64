"""The queue of fits: workers claim rows of the table ``fits``, round-robin over workspaces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import dropwhile, filterfalse
from typing import NamedTuple

from service.fits.execution import FitAttempt, attempt_of
from service.fits.repository import Turn
from service.settings import HOUR
from service.storage.database import Database
from service.storage.store import Store

# polling interval of an idle worker that receives no notifications
LOOK_SECONDS = 15.0
# pauses before the next fit of a workspace whose fits have lost workers
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 600.0


class Claim(NamedTuple):
    """A claimed fit, or None and the seconds until the next poll."""

    attempt: FitAttempt | None
    seconds: float = LOOK_SECONDS


def claim(
    database: Database,
    queues: Sequence[str],
    *,
    worker: str,
    device: str,
    most_running: int | None = None,
) -> Claim:
    """Claim the oldest fit of the workspace whose last fit started longest ago.

    Workspaces with ``most_running`` running fits are skipped: the worker that finishes one of these
    fits claims the next one. If there is no fit to claim, nothing is written, because a write to
    SQLite would wake all workers, including this one.

    A claim renews the heartbeat. A worker that was declared dead cannot claim a fit before its
    next heartbeat, so every running fit belongs to a worker that others monitor.
    """
    pauses: list[float] = []
    with database.read() as store:
        must_wait = _waiting(store, pauses, most_running)
        turns = list(dropwhile(must_wait, store.fits.turns(queues)))
    if not turns:
        return Claim(None, min([LOOK_SECONDS, *pauses]))
    with database.write() as store:
        if not store.workers.renew(worker):
            return Claim(None)
        for turn in filterfalse(_waiting(store, pauses, most_running), turns):
            if most_running is not None:
                store.keys.lock_workspace(turn.workspace)  # otherwise two workers could exceed it
                if _is_full(store, turn, most_running):
                    continue
            fit = store.fits.start_next(turn, worker=worker, device=device)
            if fit is not None:
                return Claim(attempt_of(store, fit))
    return Claim(None, min([LOOK_SECONDS, *pauses]))


def _waiting(store: Store, pauses: list[float], most_running: int | None) -> Callable[[Turn], bool]:
    """Return a predicate for workspaces that must wait; it appends their pauses to ``pauses``."""

    def must_wait(turn: Turn) -> bool:
        seconds = seconds_to_wait(store, turn.workspace)
        if seconds:
            pauses.append(seconds)
        return seconds > 0 or _is_full(store, turn, most_running)

    return must_wait


def _is_full(store: Store, turn: Turn, most_running: int | None) -> bool:
    """Return True if a workspace has reached its limit of running fits."""
    return most_running is not None and store.fits.count_running(turn.workspace) >= most_running


def pause_after(losses: int) -> float:
    """Return the seconds that a workspace waits after ``losses`` lost workers in the last hour.

    A fit that runs out of memory kills its worker, and starting a new one takes seconds. Other
    workspaces should not have to wait for that repeatedly.

    >>> [pause_after(losses) for losses in (0, 1, 2, 3, 50)]
    [0.0, 5.0, 10.0, 20.0, 600.0]
    """
    return min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(losses - 1, 30)) if losses else 0.0


def seconds_to_wait(store: Store, workspace: str) -> float:
    """Return the seconds until a fit of a workspace may start."""
    losses = store.fits.losses(workspace, HOUR)
    return max(0.0, pause_after(losses.attempts) - losses.seconds_ago)
