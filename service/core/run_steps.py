"""Steps of runs: statistics are posted by ranks, merged, and decided once."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np
import structlog

from calibrators.adafocal import AdaFocalState, BinStatistics
from calibrators.adafocal.statistics import MOST_NUMBER, MOST_ROWS, WIDTHS
from calibrators.metrics import BinTable
from service.core.access import Principal
from service.core.runs import Head, State, check_state, head_of, run_named, session_of
from service.errors import Conflict, Invalid, TooLarge
from service.storage.database import AWAY, Database
from service.storage.records import Run, RunSession, RunStatistics, RunStep
from service.storage.run_steps import SessionKey, Standing
from service.storage.store import Store

# steps that one transaction decides: who waits for the database must not wait long
MOST_AT_ONCE = 50
# steps whose statistics are kept while one before them is missing
MOST_AHEAD = 10_000

_log = structlog.get_logger("calibrd.runs")


@dataclasses.dataclass(frozen=True)
class Sent:
    """What a rank sends after a validation pass."""

    session: str
    step: int
    rank: int
    statistics: BinStatistics
    state: AdaFocalState | None
    content: bytes = dataclasses.field(init=False)
    sha256: str = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        """Pack and hash, which is not for a transaction; the hash is of what is said."""
        state = None if self.state is None else self.state.to_dict()
        said = self.statistics.fingerprint() + json.dumps(state, sort_keys=True)
        object.__setattr__(self, "content", self.statistics.to_bytes())
        object.__setattr__(self, "sha256", hashlib.sha256(said.encode()).hexdigest())


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
    head = head_of(store, session)
    if sent.step > head.step + MOST_AHEAD:
        raise Invalid(
            "bad_step",
            f"the session {session.id!r} is at step {head.step}, and statistics wait at most "
            f"{MOST_AHEAD} steps ahead, got step {sent.step}",
        )
    posted = {one.rank: one for one in store.run_steps.posted(session, sent.step)}
    mine = posted.get(sent.rank)
    if mine is None:
        is_late = sent.step <= head.step
        mine = posted[sent.rank] = _recorded(store, session, sent, is_late)
        store.runs.touch(run.id)
    elif mine.sha256 != sent.sha256:
        raise Conflict(
            "statistics_differ",
            f"rank {sent.rank} has sent other statistics for step {sent.step} of the session "
            f"{session.id!r}",
        )
    _advance(store, run, session, head)
    return Posted(sorted(posted), mine.late, store.run_steps.get(session, sent.step))


def _advance(store: Store, run: Run, session: RunSession, head: Head) -> None:
    """Decide the next steps of a session of a locked run, as far as they can be."""
    step, state = head.step, head.state
    for _ in range(MOST_AT_ONCE):
        step += 1
        if not _is_complete(session, store.run_steps.standing(session, step)):
            return
        decided = _decide(store, session, step, state)
        store.run_steps.merged(session, step)
        store.runs.touch(run.id)
        state = decided.state


def decide_due(
    database: Database, keys: Collection[SessionKey] | None = None, limit: int = 100
) -> int:
    """Decide steps that have waited long enough, of these sessions or of all; of how many."""
    with database.read() as store:
        due = store.run_steps.due(keys, limit)
    return sum(_is_decided(database, key) for key in due)


def _is_decided(database: Database, key: SessionKey) -> bool:
    """Decide what is due in a session; one that cannot go on must not hold up the others."""
    try:
        with database.write() as store:
            run = store.runs.lock(key.run)
            session = store.runs.session_numbered(*key)
            assert session is not None  # noqa: S101 - sessions are never deleted
            _advance(store, run, session, head_of(store, session))
    except AWAY:
        raise
    except Exception as error:  # noqa: BLE001
        facts = {"run": key.run, "session": key.number, "error": type(error).__name__}
        _log.warning("step_not_decided", **facts, detail=str(error))
        return False
    return True


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
    if not by_trainer:
        _check_share(session, sent.statistics)
    _check_claim(run, sent, needed=by_trainer and run.settings is not None)


def _check_share(session: RunSession, statistics: BinStatistics) -> None:
    """Whatever the other ranks send, all of it can be merged."""
    share = f"statistics of one of {session.world_size} ranks hold at most"
    most = MOST_ROWS // session.world_size
    if statistics.rows > most:
        raise TooLarge("too_many_rows", f"{share} {most} rows, got {statistics.rows}")
    most = MOST_NUMBER // session.world_size
    if statistics.nll_sum > most:
        raise TooLarge(
            "too_many_rows", f"{share} a sum of nll of {most} * 2^-24, got {statistics.nll_sum}"
        )


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


def _recorded(store: Store, session: RunSession, sent: Sent, is_late: bool) -> RunStatistics:
    """A rank that comes after the decision is noted, and its numbers are not kept."""
    return store.run_steps.post(
        session,
        sent.step,
        sent.rank,
        sha256=sent.sha256,
        statistics=None if is_late else sent.content,
        claimed=None if sent.state is None else sent.state.to_dict(),
        late=is_late,
    )


def _is_complete(session: RunSession, standing: Standing) -> bool:
    if standing.ranks == 0:
        return False
    is_all = session.decides == "trainer" or standing.ranks == session.world_size
    return is_all or standing.seconds >= session.merge_timeout


def _decide(store: Store, session: RunSession, step: int, state: State) -> RunStep:
    merged = BinStatistics.empty()
    for some in store.run_steps.parts(session, step):
        # small ones among themselves first: adding to what is large takes longer
        merged += sum(map(BinStatistics.from_bytes, some), BinStatistics.empty())
    ranks = [one.rank for one in store.run_steps.posted(session, step)]
    bins = WIDTHS
    after: AdaFocalState | None = None
    verified: bool | None = None
    switched: list[int] = []
    if state is not None:
        before = AdaFocalState.from_dict(state)
        after, bins = updated(before, merged), before.settings.bins
        claimed = store.run_steps.claimed(session, step)
        if claimed is not None:
            verified = after.is_near(AdaFocalState.from_dict(claimed))
            after = AdaFocalState.from_dict(claimed)
        switched = after.switches(before)
    return store.run_steps.add(
        session,
        step,
        state=None if after is None else after.to_dict(),
        ranks=ranks,
        partial=session.decides == "service" and len(ranks) < session.world_size,
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
