"""Periodic refresh in a thread that stops when its owner is deleted; after-fork hooks."""

from __future__ import annotations

import contextlib
import os
import queue
import random
import threading
import traceback
import weakref
from typing import Protocol

# random share added to each interval, so that processes started together do not poll in step
JITTER = 0.2


class Refreshable(Protocol):
    """An object that can be refreshed."""

    def refresh(self) -> bool:
        """Refresh the object once; return whether it has changed."""


class ForkAware(Protocol):
    """An object with locks, threads or connections that a forked process must not share."""

    def after_fork(self) -> None:
        """Replace the locks, threads and connections inherited from the parent process."""


class Refresher:
    """Thread that calls ``refresh`` every ``seconds`` until it is stopped or its owner is gone."""

    def __init__(self, owner: Refreshable, seconds: float) -> None:
        self.seconds = seconds
        # a queue, because its put is safe to call from the garbage collector, unlike Event.set
        self._stop: queue.SimpleQueue[None] = queue.SimpleQueue()
        stop = self._stop
        watched = weakref.ref(owner, lambda _: stop.put(None))
        threading.Thread(
            target=_refresh_often,
            args=(watched, stop, seconds),
            name="calibrd-refresh",
            daemon=True,
        ).start()

    def stop(self) -> None:
        """Stop the thread; a refresh in progress is completed first."""
        self._stop.put(None)


def _refresh_often(
    watched: weakref.ref[Refreshable], stop: queue.SimpleQueue[None], seconds: float
) -> None:
    while True:
        with contextlib.suppress(queue.Empty):
            stop.get(timeout=seconds * random.uniform(1 - JITTER, 1 + JITTER))  # noqa: S311
            return
        _refresh_once(watched)


def _refresh_once(watched: weakref.ref[Refreshable]) -> None:
    owner = watched()
    if owner is None:
        return
    try:
        owner.refresh()
    except Exception as error:  # noqa: BLE001 - the owner has stored and logged it
        # the frames of the traceback refer to the owner and would keep it alive
        traceback.clear_frames(error.__traceback__)


_fork_aware: weakref.WeakSet[ForkAware] = weakref.WeakSet()


def reset_after_fork(owner: ForkAware) -> None:
    """Arrange for the owner's ``after_fork`` to be called in every forked process."""
    _fork_aware.add(owner)


def _after_fork() -> None:
    for owner in list(_fork_aware):
        owner.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
