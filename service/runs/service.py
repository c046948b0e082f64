"""Record the statistics that ranks post, and decide the steps of runs.

Merging thousands of ranks takes seconds, so it happens outside of any transaction. Statistics are
read a few at a time. The write lock is only taken to check that no more ranks have posted since the
merge, and to write the decision. Two processes may merge the same step, but only one writes it.
"""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import structlog

from calibrators.adafocal import AdaFocalState, BinStatistics, Summary
from calibrators.adafocal.statistics import MAX_NUMBER, MAX_ROWS, WIDTHS
from service.access.permissions import Principal
from service.access.quota import Quota
from service.errors import Conflict, Invalid, NotFound, TooLarge, Unavailable
from service.names import NAME
from service.runs.repository import AT_ONCE, Head, State, bytes_until_decided
from service.storage.database import DATABASE_DOWN, Database
from service.storage.records import Run, RunSession, RunStatistics, RunStep, SessionKey
from service.storage.repository import ROW_BYTES
from service.storage.store import Store

# how many steps statistics may be ahead of the last decided step
MAX_AHEAD = 10_000
# steps decided per call, so that the caller does not wait long
MAX_AT_ONCE = 50
# with more ranks, a worker's housekeeping deletes the statistics later
RELEASED_AT_ONCE = 4 * AT_ONCE
TURN_SECONDS = 30.0
# the bytes of a decision are reserved when the first statistics of its step arrive
DECISION_BYTES, BIN_BYTES, RANK_BYTES = 6_000, 200, 6

_log = structlog.get_logger("calibrd.runs")
# no two threads of this process merge the same step
_locks: WeakValueDictionary[SessionKey, threading.Lock] = WeakValueDictionary()
_locks_guard = threading.Lock()


@dataclass
class SentStatistics:
    """The statistics that a rank sends after a validation pass."""

    session: str
    step: int
    rank: int
    statistics: BinStatistics
    state: AdaFocalState | None
    claimed: dict[str, Any] | None = field(init=False)
    content: bytes = field(init=False)
    sha256: str = field(init=False)
    size: int = field(init=False)

    def __post_init__(self) -> None:
        """Serialise and hash outside of the transaction; the hash covers statistics and state."""
        self.claimed = None if self.state is None else self.state.to_dict()
        self.content = self.statistics.to_bytes()
        self.size = ROW_BYTES + bytes_until_decided(len(self.content), self.claimed)
        hashed = self.statistics.fingerprint() + json.dumps(self.claimed, sort_keys=True)
        self.sha256 = hashlib.sha256(hashed.encode()).hexdigest()


class Posted(NamedTuple):
    """The status of a step after statistics were posted."""

    ranks: list[int]
    late: bool
    decided: RunStep | None


class Recorded(NamedTuple):
    """Recorded statistics, and whether the next step of their session can be decided."""

    session: RunSession
    step: int
    late: bool
    is_due: bool


class _Pending(NamedTuple):
    """The next step of a session, as last read: the step's ranks, and the ``head`` before it."""

    session: RunSession
    head: Head
    ranks: list[int]
    claimed: State

    @property
    def step(self) -> int:
        """The number of the step."""
        return self.head.step + 1


def run_named(store: Store, principal: Principal, name: str) -> Run:
    """Return the caller's run with this name."""
    found = store.runs.named(principal.workspace, name) if NAME.fullmatch(name) else None
    if found is None:
        raise NotFound("no_such_run", f"there is no run {name[:64]!r}")
    return found


def session_of(store: Store, run: Run, id: str | None) -> RunSession:
    """Return a session of a run by its id, or the newest one if ``id`` is None."""
    if id is None:
        return store.runs.sessions(run.id, 1)[0]
    found = store.runs.session_named(run.id, id)
    if found is None:
        raise NotFound("no_such_session", f"the run {run.name!r} has no session {id[:100]!r}")
    return found


def record(
    database: Database, quota: Quota, principal: Principal, name: str, sent: SentStatistics
) -> Recorded:
    """Record a rank's statistics; raise TooLarge if the workspace would exceed its quota.

    While the write lock is held, only the statistics of this rank are read, because there may be
    thousands of ranks.
    """
    with database.read() as store:
        run = run_named(store, principal, name)
        session = session_of(store, run, sent.session)
        if store.run_steps.posted(session, sent.step, sent.rank) is None:
            reserved = _decision_bytes(session, run.settings)
            quota.check(store, principal.workspace, sent.size + reserved)
    _check(run, session, sent)
    with database.write() as store:
        mine = _recorded(store, store.runs.lock(run.id), session, sent)
    with database.read() as store:
        return Recorded(session, sent.step, mine.late, bool(store.run_steps.due([session.key], 1)))


def outcome(database: Database, recorded: Recorded) -> Posted:
    """Return the status of a step after statistics were posted."""
    session, step = recorded.session, recorded.step
    with database.read() as store:
        ranks = store.run_steps.ranks(session, step)
        return Posted(ranks, recorded.late, store.run_steps.get(session, step))


def decide(database: Database, key: SessionKey, *, wait: float = TURN_SECONDS) -> bool:
    """Decide the due steps of a session; return False if this failed or was skipped.

    The steps are skipped if another thread of this process is still deciding them after ``wait``
    seconds. Unless the database is unavailable, a failure is logged rather than raised, so that it
    does not delay other sessions.
    """
    with _locks_guard:
        lock = _locks.setdefault(key, threading.Lock())
    if not lock.acquire(timeout=wait):
        return False
    try:
        advance(database, key)
    except (*DATABASE_DOWN, Unavailable):
        raise
    except Exception as error:  # noqa: BLE001
        facts = {"run": key.run, "session": key.number, "error": type(error).__name__}
        _log.warning("step_not_decided", **facts, detail=str(error))
        return False
    finally:
        lock.release()
    return True


def advance(database: Database, key: SessionKey) -> None:
    """Decide the next due steps of a session."""
    for _ in range(MAX_AT_ONCE):
        if not _decide_next(database, key):
            return


class _Merge:
    """The statistics of one step, summed over the ranks read so far."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.ranks: set[int] = set()
        self.total = BinStatistics.empty()

    def add(self, database: Database, pending: _Pending) -> bool:
        """Merge the ranks that are still missing; return False if their statistics were deleted."""
        missing = [rank for rank in pending.ranks if rank not in self.ranks]
        for first in range(0, len(missing), AT_ONCE):
            some = missing[first : first + AT_ONCE]
            with database.read() as store:
                found = store.run_steps.contents(pending.session, self.step, some)
            if len(found) < len(some):
                return False  # another process decided the step first
            # sum the new ones first, because adding each to the large total takes longer
            self.total += sum(map(BinStatistics.from_bytes, found), BinStatistics.empty())
            self.ranks.update(some)
        return True


def _decide_next(database: Database, key: SessionKey) -> bool:
    """Decide the next step of a session; return False if it is not due.

    If a rank posts while others are being merged, its statistics are either merged as well, or
    arrive after the decision and are late.
    """
    merge: _Merge | None = None
    lost: int | None = None
    while True:
        with database.read() as store:
            pending = _pending(store, key)
        if pending is None:
            return False
        if merge is None or merge.step != pending.step:
            merge = _Merge(pending.step)
        if not merge.add(database, pending):
            if lost == pending.step:
                raise RuntimeError(f"statistics of the undecided step {lost} are missing")
            lost = pending.step
            continue
        decision = _decision(pending, merge.total)
        with database.write() as store:
            if _write(store, pending, merge, decision):
                return True


def _pending(store: Store, key: SessionKey) -> _Pending | None:
    """Return the next step of a session; None if it is not due."""
    session = store.runs.session_numbered(*key)
    assert session is not None  # noqa: S101 - sessions are never deleted
    head = store.run_steps.head(session)
    step = head.step + 1
    ranks = store.run_steps.ranks(session, step)
    if not store.run_steps.due([key], 1):
        return None
    return _Pending(session, head, ranks, store.run_steps.claimed(session, step))


def _write(store: Store, pending: _Pending, merge: _Merge, decision: dict[str, Any]) -> bool:
    """Write a decision; return False if its ranks or its session have changed in the meantime."""
    session = pending.session
    store.runs.lock(session.run)
    if store.run_steps.head(session).step != pending.head.step:
        return False
    ranks = store.run_steps.ranks(session, merge.step)
    if set(ranks) != merge.ranks:
        return False
    state = pending.head.state
    reserved = _decision_bytes(session, None if state is None else state["settings"])
    store.run_steps.add(session, merge.step, reserved, ranks=ranks, **decision)
    if len(ranks) <= RELEASED_AT_ONCE:
        store.run_steps.release(session.key, merge.step, RELEASED_AT_ONCE)
    store.runs.touch(session.run)
    return True


def _decision(pending: _Pending, merged: BinStatistics) -> dict[str, Any]:
    """Return the column values of a step, except its ranks."""
    bins = WIDTHS
    after: AdaFocalState | None = None
    verified: bool | None = None
    switched: list[int] = []
    if pending.head.state is not None:
        before = AdaFocalState.from_dict(pending.head.state)
        bins = before.settings.bins
        after = before.update(merged) if merged.rows else replace(before, step=before.step + 1)
        if pending.claimed is not None:
            claimed = AdaFocalState.from_dict(pending.claimed)
            verified, after = after.is_near(claimed), claimed
        switched = after.switches(before)
    session = pending.session
    facts: dict[str, Any] = {
        "state": None if after is None else after.to_dict(),
        "partial": session.decides == "service" and len(pending.ranks) < session.world_size,
        "verified": verified,
        "switched": switched,
    }
    if not merged.rows:
        nothing = dict.fromkeys(field.name for field in fields(Summary))
        return {**facts, "metrics": {**nothing, "rows": 0}, "bins": None, "reliability": None}
    table = merged.equal_mass(bins)
    return {
        **facts,
        "metrics": asdict(merged.summary()),
        "bins": {"edges": [*table.lower.tolist(), 1.0], **table.to_dict()},
        "reliability": merged.equal_width().to_dict(),
    }


def _decision_bytes(session: RunSession, settings: dict[str, Any] | None) -> int:
    """Return the maximum size of a decision of this session in bytes."""
    bins = WIDTHS if settings is None else settings["bins"]
    return DECISION_BYTES + BIN_BYTES * int(bins) + RANK_BYTES * session.world_size


def _recorded(store: Store, run: Run, session: RunSession, sent: SentStatistics) -> RunStatistics:
    """Record a rank's statistics once; mark them late if the step has been decided."""
    head = store.run_steps.head(session)
    if sent.step > head.step + MAX_AHEAD:
        raise Invalid(
            "bad_step",
            f"the session {session.id!r} is at step {head.step}, and statistics may be at most "
            f"{MAX_AHEAD} steps ahead, got statistics for step {sent.step}",
        )
    known = store.run_steps.posted(session, sent.step, sent.rank)
    if known is not None:
        if known.sha256 != sent.sha256:
            raise Conflict(
                "statistics_differ",
                f"rank {sent.rank} has already sent different statistics for step {sent.step} of "
                f"the session {session.id!r}",
            )
        return known
    is_late = sent.step <= head.step
    size = ROW_BYTES if is_late else sent.size
    if not is_late and not store.run_steps.is_expected(session, sent.step):
        size += _decision_bytes(session, run.settings)
    store.runs.touch(session.run, size)
    return store.run_steps.post(
        session,
        sent.step,
        sent.rank,
        sha256=sent.sha256,
        statistics=None if is_late else sent.content,
        claimed=None if is_late else sent.claimed,
        late=is_late,
    )


def _check(run: Run, session: RunSession, sent: SentStatistics) -> None:
    if sent.step <= session.base_step:
        raise Invalid(
            "bad_step",
            f"step must be greater than the base step {session.base_step} of the session "
            f"{session.id!r}, got {sent.step}",
        )
    by_trainer = session.decides == "trainer"
    if by_trainer and sent.rank != 0:
        raise Invalid(
            "bad_rank", f"rank must be 0 if the trainer decides and merges, got {sent.rank}"
        )
    if sent.rank >= session.world_size:
        raise Invalid(
            "bad_rank", f"rank must be less than world_size {session.world_size}, got {sent.rank}"
        )
    if not by_trainer:
        _check_share(session, sent.statistics)
    _check_claim(run, sent, needed=by_trainer and run.settings is not None)


def _check_share(session: RunSession, statistics: BinStatistics) -> None:
    """Raise TooLarge if a rank's share is so large that the sum over all ranks could overflow."""
    share = f"the statistics of each of {session.world_size} ranks may have"
    most = MAX_ROWS // session.world_size
    if statistics.rows > most:
        raise TooLarge("too_many_rows", f"{share} at most {most} rows, got {statistics.rows}")
    most = MAX_NUMBER // session.world_size
    if statistics.nll_sum > most:
        raise TooLarge(
            "too_many_rows",
            f"{share} an nll sum of at most {most} * 2^-24, got {statistics.nll_sum}",
        )


def _check_claim(run: Run, sent: SentStatistics, *, needed: bool) -> None:
    """Raise Invalid if the state is missing, unexpected or invalid for this step."""
    if sent.state is None:
        if needed:
            raise Invalid(
                "bad_state",
                "state is missing: the trainer decides steps, so it must send the state",
            )
        return
    check_state(run, sent.state)
    if not needed:
        raise Invalid("bad_state", "state must be null: the service decides in this session")
    if sent.state.step != sent.step:
        raise Invalid("bad_state", f"state must be for step {sent.step}, got {sent.state.step}")


def check_state(run: Run, state: AdaFocalState) -> None:
    """Raise Invalid if a state cannot belong to this run."""
    if run.settings is None:
        raise Invalid("bad_state", f"state must be null: the run {run.name!r} is a monitor")
    if asdict(state.settings) != run.settings:
        raise Invalid(
            "bad_state", f"the settings in state differ from those of the run {run.name!r}"
        )
