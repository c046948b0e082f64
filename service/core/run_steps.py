"""Steps of runs: statistics are posted by ranks, merged, and decided once."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np

from calibrators.adafocal import AdaFocalState, BinStatistics
from calibrators.adafocal.statistics import MOST_ROWS, WIDTHS
from calibrators.metrics import BinTable
from service.core.access import Principal
from service.core.runs import check_state, head_of, run_named, session_of
from service.errors import Conflict, Invalid, TooLarge
from service.storage.database import Database
from service.storage.records import Run, RunSession, RunStatistics, RunStep
from service.storage.run_steps import SessionKey
from service.storage.store import Store

# steps that one transaction decides: who waits for the database must not wait long
MOST_AT_ONCE = 50


@dataclasses.dataclass(frozen=True)
class Sent:
    """What a rank sends after a validation pass."""

    session: str
    step: int
    rank: int
    statistics: BinStatistics
    state: AdaFocalState | None

    def sha256(self) -> str:
        """The same for the same numbers, however they were compressed."""
        state = None if self.state is None else self.state.to_dict()
        written = json.dumps(state, sort_keys=True).encode()
        return hashlib.sha256(self.statistics.fingerprint().encode() + written).hexdigest()


class Posted(NamedTuple):
    """How a step stands after a post."""

    ranks: list[int]
    late: bool
    decided: RunStep | None


def post(store: Store, principal: Principal, name: str, sent: Sent) -> Posted:
    """Record a rank's statistics, and decide what can be decided."""
    run = store.runs.lock(run_named(store, principal, name).id)
    session = session_of(store, run, sent.session)
    _check(run, session, sent)
    posted = {one.rank: one for one in store.run_steps.posted(session, sent.step)}
    mine = posted.get(sent.rank)
    if mine is None:
        mine = posted[sent.rank] = _recorded(store, session, sent)
        store.runs.touch(run.id)
    elif mine.sha256 != sent.sha256():
        raise Conflict(
            "statistics_differ",
            f"rank {sent.rank} has sent other statistics for step {sent.step} of the session "
            f"{session.id!r}",
        )
    advance(store, run, session)
    return Posted(sorted(posted), mine.late, store.run_steps.get(session, sent.step))


def advance(store: Store, run: Run, session: RunSession) -> None:
    """Decide the next steps of a session of a locked run, as far as they can be."""
    head = head_of(store, session)
    step, state = head.step, head.state
    for _ in range(MOST_AT_ONCE):
        step += 1
        posted = store.run_steps.posted(session, step)
        if not posted or not _is_complete(store, session, posted):
            return
        decided = _decide(store, run, session, step, state, posted)
        store.run_steps.merged(session, step)
        store.runs.touch(run.id)
        state = decided.state


def decide_due(
    database: Database, keys: Collection[SessionKey] | None = None, limit: int = 100
) -> int:
    """Decide steps that have waited long enough, of these sessions or of all; of how many."""
    with database.read() as store:
        due = store.run_steps.due(keys, limit)
    for key in due:
        with database.write() as store:
            run = store.runs.lock(key.run)
            session = store.runs.session_numbered(*key)
            assert session is not None  # noqa: S101 - sessions are never deleted
            advance(store, run, session)
    return len(due)


def _check(run: Run, session: RunSession, sent: Sent) -> None:
    if sent.step <= session.base_step:
        raise Invalid(
            "bad_step",
            f"the session {session.id!r} goes on from step {session.base_step}: "
            f"a step must be greater, got {sent.step}",
        )
    by_trainer = session.decides == "trainer"
    if by_trainer and sent.rank != 0:
        raise Invalid(
            "bad_rank", f"rank must be 0 where the trainer decides and merges, got {sent.rank}"
        )
    if sent.rank >= session.world_size:
        raise Invalid(
            "bad_rank", f"rank must be less than world_size {session.world_size}, got {sent.rank}"
        )
    if sent.statistics.rows > MOST_ROWS // session.world_size and not by_trainer:
        raise TooLarge(
            "too_many_rows",
            f"statistics of one of {session.world_size} ranks hold at most "
            f"{MOST_ROWS // session.world_size} rows, got {sent.statistics.rows}",
        )
    _check_claim(run, sent, needed=by_trainer and run.settings is not None)


def _check_claim(run: Run, sent: Sent, *, needed: bool) -> None:
    """A trainer that decides says what it decided; nobody else has a state to send."""
    if sent.state is None:
        if needed:
            raise Invalid("bad_state", "state is missing: the trainer decides, and must say what")
        return
    check_state(run, sent.state)
    if not needed:
        raise Invalid("bad_state", "state must be null: the service decides in this session")
    if sent.state.step != sent.step:
        raise Invalid(
            "bad_state", f"state must be that after step {sent.step}, got step {sent.state.step}"
        )


def _recorded(store: Store, session: RunSession, sent: Sent) -> RunStatistics:
    """A rank that comes after the decision is noted, and its numbers are not kept."""
    is_late = store.run_steps.get(session, sent.step) is not None
    return store.run_steps.post(
        session,
        sent.step,
        sent.rank,
        sha256=sent.sha256(),
        statistics=None if is_late else sent.statistics.to_bytes(),
        claimed=None if sent.state is None else sent.state.to_dict(),
        late=is_late,
    )


def _is_complete(store: Store, session: RunSession, posted: list[RunStatistics]) -> bool:
    if session.decides == "trainer" or len(posted) == session.world_size:
        return True
    first = min(one.posted_at for one in posted)
    return store.run_steps.seconds_since(first) >= session.merge_timeout


def _decide(
    store: Store,
    run: Run,
    session: RunSession,
    step: int,
    state: dict[str, Any] | None,
    posted: list[RunStatistics],
) -> RunStep:
    parts = [BinStatistics.from_bytes(one.statistics or b"") for one in posted]
    merged = sum(parts, BinStatistics.empty())
    bins = WIDTHS
    after: AdaFocalState | None = None
    verified: bool | None = None
    switched: list[int] = []
    if state is not None:
        before = AdaFocalState.from_dict(state)
        after, bins = updated(before, merged), before.settings.bins
        claimed = posted[0].claimed
        if claimed is not None:
            verified = after.is_near(AdaFocalState.from_dict(claimed))
            after = AdaFocalState.from_dict(claimed)
        switched = after.switches(before)
    return store.run_steps.add(
        session,
        step,
        state=None if after is None else after.to_dict(),
        ranks=[one.rank for one in posted],
        partial=session.decides == "service" and len(posted) < session.world_size,
        verified=verified,
        metrics=_metrics(merged),
        bins=_equal_mass(merged, bins) if merged.rows else None,
        reliability=_bars(merged.equal_width()) if merged.rows else None,
        switched=switched,
    )


def updated(before: AdaFocalState, merged: BinStatistics) -> AdaFocalState:
    """One step on; where nobody has observed a row, nothing but the step changes."""
    if not merged.rows:
        return dataclasses.replace(before, step=before.step + 1)
    return before.update(merged)


def _metrics(merged: BinStatistics) -> dict[str, Any]:
    if merged.rows:
        return dataclasses.asdict(merged.summary())
    nothing = dict.fromkeys(("accuracy", "confidence", "ece", "ada_ece", "nll"))
    return {"rows": 0, **nothing}


def _equal_mass(merged: BinStatistics, bins: int) -> dict[str, Any]:
    table = merged.equal_mass(bins)
    return {"edges": [*table.lower.tolist(), 1.0], **_bars(table)}


def _bars(table: BinTable) -> dict[str, Any]:
    """Count, confidence and accuracy of bins, null where one is empty."""
    return {
        "count": table.count.tolist(),
        "confidence": _plain(table.mean_confidence),
        "accuracy": _plain(table.accuracy),
    }


def _plain(values: np.ndarray[Any, np.dtype[np.float64]]) -> list[float | None]:
    return [None if np.isnan(value) else value for value in values.tolist()]
