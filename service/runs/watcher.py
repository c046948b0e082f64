"""Wait for run steps, decide those that are due, and delete merged statistics."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Collection

import structlog

from service.concurrency.long_poll import Watcher
from service.errors import ServiceError
from service.runs.repository import AT_ONCE, DueSession
from service.runs.service import decide
from service.storage.database import DATABASE_DOWN, Database
from service.storage.records import SessionKey

MERGE_THREADS = 3
MAX_DUE = 100
RETRY_SECONDS = 5.0  # before retrying a step that could not be merged

_log = structlog.get_logger("calibrd.runs")


class Merges:
    """Threads that decide due steps, for at most one session per workspace at a time.

    Deciding the steps of a session may take minutes. A step that failed is retried after
    RETRY_SECONDS.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._merging: set[str] = set()
        self._tried: dict[SessionKey, float] = {}

    def start_due(self) -> int:
        """Start deciding the due steps of all workspaces; return the number of sessions started."""
        with self._database.read() as store:
            return self.start(store.run_steps.due_in_turns(MAX_DUE))

    def start(self, due: Collection[DueSession]) -> int:
        """Start deciding the steps of these sessions, untried first; return the number started."""
        now, begun = time.monotonic(), 0
        keys = {one.key for one in due}
        self._tried = {key: when for key, when in list(self._tried.items()) if key in keys}
        for key, workspace in sorted(due, key=lambda one: self._tried.get(one.key, 0.0)):
            is_new = now - self._tried.get(key, -math.inf) >= RETRY_SECONDS
            if is_new and workspace not in self._merging and len(self._merging) < MERGE_THREADS:
                self._tried[key] = now
                self._merging.add(workspace)
                begun += 1
                # a daemon thread, so that the process can end without waiting for it
                threading.Thread(
                    target=self._merge, args=(key, workspace), name="merge", daemon=True
                ).start()
        return begun

    def _merge(self, key: SessionKey, workspace: str) -> None:
        try:
            if decide(self._database, key, wait=0.0):
                self._tried.pop(key, None)
        except (*DATABASE_DOWN, ServiceError) as error:
            _log.warning("step_not_merged", error=type(error).__name__)
        finally:
            self._merging.discard(workspace)


class RunWatcher(Watcher[SessionKey, int]):
    """Watcher for the last decided step of each session, which also starts due merges.

    Merging takes up to a minute, so it does not run on the polling thread.
    """

    def __init__(self, database: Database) -> None:
        super().__init__("runs", self._read_steps)
        self._database = database
        self._workspaces: dict[SessionKey, str] = {}
        self._merges = Merges(database)

    async def beyond(
        self, key: SessionKey, workspace: str, step: int, after: int, seconds: float
    ) -> int:
        """Return the last decided step; wait up to ``seconds`` until it exceeds ``after``."""
        self._workspaces[key] = workspace
        try:
            return await self.until(key, step, lambda current: current > after, seconds)
        finally:
            if key not in self._waiting:
                self._workspaces.pop(key, None)

    def _read_steps(self, keys: list[SessionKey]) -> dict[SessionKey, int]:
        """Return the last decided steps; a failure in one workspace does not affect others."""
        by_workspace: dict[str | None, list[SessionKey]] = {}
        for key in keys:
            by_workspace.setdefault(self._workspaces.get(key), []).append(key)
        due: list[DueSession] = []
        found: dict[SessionKey, int] = {}
        failure: Exception | None = None
        for workspace, mine in by_workspace.items():
            try:
                with self._database.read() as store:
                    if workspace is not None:
                        own = store.run_steps.due(mine, MAX_DUE)
                        due += (DueSession(key, workspace) for key in own)
                    found |= store.run_steps.last_numbers(mine)
            except (*DATABASE_DOWN, ServiceError) as error:
                failure = error
        if failure is not None and not found:
            raise failure
        self._merges.start(due)
        return found


def release_merged(database: Database, limit: int = 100) -> int:
    """Delete the statistics of decided steps, in short transactions; return the number of steps.

    Sleeps after each transaction for as long as the transaction took, so that other writers get a
    turn: SQLite does not queue waiting writers.
    """
    with database.read() as store:
        merged = store.run_steps.unreleased(limit)
    for key, step in merged:
        is_done = False
        while not is_done:
            began = time.monotonic()
            with database.write() as store:
                is_done = store.run_steps.release(key, step) < AT_ONCE
            time.sleep(time.monotonic() - began)
    return len(merged)
