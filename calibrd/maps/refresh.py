"""A thread that looks again and again, for as long as somebody holds what it looks for."""

from __future__ import annotations

import contextlib
import os
import queue
import random
import threading
import traceback
import weakref
from typing import Protocol

# processes that were started together shall not ask together
SPREAD = 0.2


class Followed(Protocol):
    """What can look for news."""

    def refresh(self) -> bool:
        """Look once."""


class Forked(Protocol):
    """What must begin anew in a forked process."""

    def after_fork(self) -> None:
        """Do without the locks, threads and connections of the process it was forked from."""


class Follower:
    """Calls ``refresh`` about every so many seconds, until it is stopped or its owner is gone."""

    def __init__(self, owner: Followed, seconds: float) -> None:
        self.seconds = seconds
        # its put, unlike an Event's set, may be called by the garbage collector at any point
        self._stop: queue.SimpleQueue[None] = queue.SimpleQueue()
        stop = self._stop
        watched = weakref.ref(owner, lambda _: stop.put(None))
        threading.Thread(
            target=_follow, args=(watched, stop, seconds), name="calibrd-refresh", daemon=True
        ).start()

    def stop(self) -> None:
        """Look no more; what is under way comes to its end."""
        self._stop.put(None)


def _follow(watched: weakref.ref[Followed], stop: queue.SimpleQueue[None], seconds: float) -> None:
    while True:
        with contextlib.suppress(queue.Empty):
            stop.get(timeout=seconds * random.uniform(1 - SPREAD, 1 + SPREAD))  # noqa: S311
            return
        _look(watched)


def _look(watched: weakref.ref[Followed]) -> None:
    owner = watched()
    if owner is None:
        return
    try:
        owner.refresh()
    except Exception as error:  # noqa: BLE001 - the owner has noted and logged it
        # its frames, in a circle with itself, would keep the owner from going
        traceback.clear_frames(error.__traceback__)


_of_this_process: weakref.WeakSet[Forked] = weakref.WeakSet()


def begin_anew_after_fork(owner: Forked) -> None:
    """Call its ``after_fork`` in every process that is forked from this one."""
    _of_this_process.add(owner)


def _after_fork() -> None:
    for owner in list(_of_this_process):
        owner.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
