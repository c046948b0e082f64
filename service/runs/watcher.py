"""Wait for run steps, decide those that are due, and delete merged statistics."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import structlog

from service.concurrency.long_poll import Watcher
from service.errors import ServiceError
from service.runs.repository import AT_ONCE
from service.runs.service import decide
from service.storage.database import DATABASE_DOWN, Database
from service.storage.records import SessionKey

MERGE_THREADS = 3
MAX_DUE = 100
RETRY_SECONDS = 5.0  # before a step that could not be merged is tried again

_log = structlog.get_logger("calibrd.runs")


class RunWatcher(Watcher[SessionKey, int]):
    """Watches the last decided step of each session, and starts merges for steps that are due.

    Merging takes up to a minute, so it does not run on the polling thread. At most one merge per
    workspace runs at a time.
    """

    def __init__(self, database: Database) -> None:
        super().__init__("runs", self._read_steps)
        self._database = database
        self._workspaces: dict[SessionKey, str] = {}
        self._merging: set[str] = set()
        self._tried: dict[SessionKey, float] = {}
        self._merges = ThreadPoolExecutor(MERGE_THREADS, thread_name_prefix="merge")

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

    async def close(self) -> None:
        """Stop polling and merging."""
        await super().close()
        self._merges.shutdown(wait=False, cancel_futures=True)

    def _read_steps(self, keys: list[SessionKey]) -> dict[SessionKey, int]:
        """Return the last decided steps; a workspace that takes too long does not delay others."""
        by_workspace: dict[str | None, list[SessionKey]] = {}
        for key in keys:
            by_workspace.setdefault(self._workspaces.get(key), []).append(key)
        due: list[SessionKey] = []
        found: dict[SessionKey, int] = {}
        failure: Exception | None = None
        for mine in by_workspace.values():
            try:
                with self._database.read() as store:
                    due += store.run_steps.due(mine, MAX_DUE)
                    found |= store.run_steps.last_numbers(mine)
            except (*DATABASE_DOWN, ServiceError) as error:
                failure = error
        if failure is not None and not found:
            raise failure
        self._tried = {key: when for key, when in self._tried.items() if key in due}
        now = time.monotonic()
        for key in sorted(due, key=lambda key: self._tried.get(key, 0.0)):
            workspace = self._workspaces.get(key)
            is_new = now - self._tried.get(key, -RETRY_SECONDS) >= RETRY_SECONDS
            if workspace is not None and workspace not in self._merging and is_new:
                self._tried[key] = now
                self._merging.add(workspace)
                self._merges.submit(self._merge, key, workspace)
        return found

    def _merge(self, key: SessionKey, workspace: str) -> None:
        try:
            decide(self._database, key, wait=0.0)
        except (*DATABASE_DOWN, ServiceError) as error:
            _log.warning("step_not_merged", error=type(error).__name__)
        finally:
            self._merging.discard(workspace)


def decide_due(database: Database) -> int:
    """Decide the due steps of all sessions; return the number of sessions.

    Sessions that another thread of this process is deciding are skipped.
    """
    with database.read() as store:
        due = store.run_steps.due(None, MAX_DUE)
    return sum(decide(database, key, wait=0.0) for key in due)


def release_merged(database: Database, limit: int = 100) -> int:
    """Delete the statistics of decided steps, in short transactions; return the number of steps.

    After each transaction this sleeps for as long as the transaction took, so that other writers
    get a turn: SQLite does not queue waiting writers.
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
