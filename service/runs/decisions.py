"""Decide the steps of runs: merge the statistics of all ranks, then write the decision once.

Merging thousands of ranks takes seconds, so it happens outside of any transaction: statistics are
read a few at a time, and the write lock is taken only to check that no other rank has
posted since, and to write the decision. Two processes may merge the same step; only one writes it.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import structlog

from calibrators.adafocal import AdaFocalState, BinStatistics
from calibrators.adafocal.statistics import WIDTHS
from calibrators.metrics import BinTable
from service.errors import Unavailable
from service.runs.repository import AT_ONCE, Head, SessionKey, Standing, State
from service.storage.database import DATABASE_DOWN, Database
from service.storage.records import RunSession
from service.storage.store import Store

# steps decided per call, so that the caller does not wait long
MAX_AT_ONCE = 50
# beyond this many ranks, a worker's housekeeping deletes the statistics later
RELEASED_AT_ONCE = 4 * AT_ONCE
TURN_SECONDS = 30.0

_log = structlog.get_logger("calibrd.runs")


class _Pending(NamedTuple):
    """The next step of a session as it was read: the ranks that posted, and the state before it."""

    session: RunSession
    head: Head
    ranks: list[int]
    standing: Standing
    claimed: State

    @property
    def step(self) -> int:
        """The number of the step."""
        return self.head.step + 1


class _Turns:
    """Locks per session, so that no two threads of this process merge the same step."""

    def __init__(self) -> None:
        self._busy: set[SessionKey] = set()
        self._changed = threading.Condition()

    @contextmanager
    def take(self, key: SessionKey, wait: float) -> Iterator[bool]:
        """Wait for the lock of a session; yield whether it was acquired."""
        with self._changed:
            is_mine = self._changed.wait_for(lambda: key not in self._busy, wait)
            if is_mine:
                self._busy.add(key)
        try:
            yield is_mine
        finally:
            if is_mine:
                with self._changed:
                    self._busy.discard(key)
                    self._changed.notify_all()


_turns = _Turns()


def decide_due(
    database: Database, keys: Collection[SessionKey] | None = None, limit: int = 100
) -> int:
    """Decide the due steps of these or all sessions; return the number of sessions.

    Sessions that another thread of this process is deciding are skipped.
    """
    with database.read() as store:
        due = store.run_steps.due(keys, limit)
    return sum(decide(database, key, wait=0.0) for key in due)


def decide(database: Database, key: SessionKey, *, wait: float = TURN_SECONDS) -> bool:
    """Decide the steps of a session that are due; return False if that failed or was skipped.

    A failure is logged rather than raised, because it must not hold up other sessions.
    """
    try:
        with _turns.take(key, wait) as is_mine:
            if is_mine:
                advance(database, key)
            return is_mine
    except (*DATABASE_DOWN, Unavailable):
        raise
    except Exception as error:  # noqa: BLE001
        facts = {"run": key.run, "session": key.number, "error": type(error).__name__}
        _log.warning("step_not_decided", **facts, detail=str(error))
        return False


def advance(database: Database, key: SessionKey) -> None:
    """Decide the next steps of a session that are due."""
    for _ in range(MAX_AT_ONCE):
        if not _decide_next(database, key):
            return


def is_due(session: RunSession, standing: Standing) -> bool:
    """Return whether the next step of a session can be decided."""
    if standing.ranks == 0:
        return False
    is_all = session.decides == "trainer" or standing.ranks == session.world_size
    return is_all or standing.seconds >= session.merge_timeout


def release_merged(database: Database, limit: int = 100) -> int:
    """Delete the statistics of decided steps, in short transactions; return how many steps.

    After each transaction it sleeps for as long as that took, so that other writers get a turn:
    SQLite does not queue waiting writers.
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


class _Merge:
    """The sum of the statistics of one step over the ranks read so far."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.ranks: set[int] = set()
        self.total = BinStatistics.empty()

    def add(self, database: Database, pending: _Pending) -> bool:
        """Merge the missing ranks; return False if their statistics are gone."""
        missing = [rank for rank in pending.ranks if rank not in self.ranks]
        for some in _batches(missing, AT_ONCE):
            with database.read() as store:
                found = store.run_steps.contents(pending.session, self.step, some)
            if len(found) < len(some):
                return False  # another process decided the step first
            # sum the small ones first: adding to the large total takes longer
            self.total += sum(map(BinStatistics.from_bytes, found), BinStatistics.empty())
            self.ranks.update(some)
        return True


def _decide_next(database: Database, key: SessionKey) -> bool:
    """Decide the next step of a session; return False if it is not due.

    A rank that posts while others are being merged is either merged as well, or its statistics
    arrive after the decision was written and are late.
    """
    merge: _Merge | None = None
    lost: int | None = None
    while True:
        with database.read() as store:
            pending = _pending(store, key)
        if not is_due(pending.session, pending.standing):
            return False
        if merge is None or merge.step != pending.step:
            merge = _Merge(pending.step)
        if not merge.add(database, pending):
            if lost == pending.step:
                raise RuntimeError(f"statistics of step {lost}, which is not decided, are gone")
            lost = pending.step
            continue
        decision = _decision(pending, merge.total)
        with database.write() as store:
            if _write(store, key, pending, merge, decision):
                return True


def _pending(store: Store, key: SessionKey) -> _Pending:
    session = store.runs.session_numbered(*key)
    assert session is not None  # noqa: S101 - sessions are never deleted
    head = store.run_steps.head(session)
    step = head.step + 1
    return _Pending(
        session,
        head,
        store.run_steps.ranks(session, step),
        store.run_steps.standing(session, step),
        store.run_steps.claimed(session, step),
    )


def _write(
    store: Store, key: SessionKey, pending: _Pending, merge: _Merge, decision: dict[str, Any]
) -> bool:
    """Write a decision unless its ranks or its session changed; return whether it was written."""
    store.runs.lock(key.run)
    if store.run_steps.head(pending.session).step != pending.head.step:
        return False
    ranks = store.run_steps.ranks(pending.session, merge.step)
    if set(ranks) != merge.ranks:
        return False
    store.run_steps.add(pending.session, merge.step, ranks=ranks, **decision)
    if len(ranks) <= RELEASED_AT_ONCE:
        store.run_steps.release(key, merge.step, RELEASED_AT_ONCE)
    store.runs.touch(key.run)
    return True


def _decision(pending: _Pending, merged: BinStatistics) -> dict[str, Any]:
    """Return the columns of a step, except its ranks."""
    bins = WIDTHS
    after: AdaFocalState | None = None
    verified: bool | None = None
    switched: list[int] = []
    if pending.head.state is not None:
        before = AdaFocalState.from_dict(pending.head.state)
        after, bins = updated(before, merged), before.settings.bins
        if pending.claimed is not None:
            claimed = AdaFocalState.from_dict(pending.claimed)
            verified, after = after.is_near(claimed), claimed
        switched = after.switches(before)
    session = pending.session
    return {
        "state": None if after is None else after.to_dict(),
        "partial": session.decides == "service" and len(pending.ranks) < session.world_size,
        "verified": verified,
        "metrics": _metrics(merged),
        "bins": _equal_mass(merged, bins) if merged.rows else None,
        "reliability": _bars(merged.equal_width()) if merged.rows else None,
        "switched": switched,
    }


def updated(before: AdaFocalState, merged: BinStatistics) -> AdaFocalState:
    """Return the state after one more step; without rows, only the step number changes."""
    if not merged.rows:
        return dataclasses.replace(before, step=before.step + 1)
    return before.update(merged)


def _batches(ranks: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    for first in range(0, len(ranks), size):
        yield ranks[first : first + size]


def _metrics(merged: BinStatistics) -> dict[str, Any]:
    if merged.rows:
        return dataclasses.asdict(merged.summary())
    nothing = dict.fromkeys(("accuracy", "confidence", "ece", "ada_ece", "nll"))
    return {"rows": 0, **nothing}


def _equal_mass(merged: BinStatistics, bins: int) -> dict[str, Any]:
    table = merged.equal_mass(bins)
    return {"edges": [*table.lower.tolist(), 1.0], **_bars(table)}


def _bars(table: BinTable) -> dict[str, Any]:
    """Return count, confidence and accuracy of bins, null for empty ones."""
    return {
        "count": table.count.tolist(),
        "confidence": _plain(table.mean_confidence),
        "accuracy": _plain(table.accuracy),
    }


def _plain(values: np.ndarray[Any, np.dtype[np.float64]]) -> list[float | None]:
    return [None if np.isnan(value) else value for value in values.tolist()]
