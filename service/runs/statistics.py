"""Record the statistics that ranks post for the steps of runs."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import NamedTuple

from calibrators.adafocal import AdaFocalState, BinStatistics
from calibrators.adafocal.statistics import MOST_NUMBER, MOST_ROWS
from service.access.permissions import Principal
from service.errors import Conflict, Invalid, TooLarge
from service.runs.decisions import decide, is_due
from service.runs.service import Head, check_state, head_of, run_named, session_of
from service.runs.step_repository import SessionKey
from service.storage.database import Database
from service.storage.records import Run, RunSession, RunStatistics, RunStep
from service.storage.store import Store

# steps whose statistics are kept while one before them is missing
MOST_AHEAD = 10_000


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


class Recorded(NamedTuple):
    """Statistics that were recorded, and whether the next step of their session can be decided."""

    session: RunSession
    step: int
    late: bool
    is_due: bool

    @property
    def key(self) -> SessionKey:
        """Return the session that they belong to."""
        return SessionKey(self.session.run, self.session.number)


def post(database: Database, principal: Principal, name: str, sent: Sent) -> Posted:
    """Record a rank's statistics, then decide what is due.

    Both are transactions of their own: statistics that were recorded stay so, whatever becomes of
    the decision, and the same post again is answered alike.
    """
    recorded = record(database, principal, name, sent)
    if recorded.is_due:
        decide(database, recorded.key)
    return outcome(database, recorded)


def record(database: Database, principal: Principal, name: str, sent: Sent) -> Recorded:
    """Record a rank's statistics.

    Only what the rank itself has posted is read under the write lock: there may be thousands of
    others.
    """
    with database.write() as store:
        run = store.runs.lock(run_named(store, principal, name).id)
        session = session_of(store, run, sent.session)
        _check(run, session, sent)
        head = head_of(store, session)
        known = store.run_steps.posted(session, sent.step, sent.rank)
        mine = _recorded(store, run, session, head, sent, known)
    with database.read() as store:
        step = head_of(store, session).step + 1
        standing = store.run_steps.standing(session, step)
    return Recorded(session, sent.step, mine.late, is_due(session, standing))


def outcome(database: Database, recorded: Recorded) -> Posted:
    """Return how a step stands after a post."""
    session, step = recorded.session, recorded.step
    with database.read() as store:
        ranks = store.run_steps.ranks(session, step)
        return Posted(ranks, recorded.late, store.run_steps.get(session, step))


def _recorded(
    store: Store,
    run: Run,
    session: RunSession,
    head: Head,
    sent: Sent,
    known: RunStatistics | None,
) -> RunStatistics:
    """Record what a rank sent, unless it is known; one that comes after the decision is late."""
    if sent.step > head.step + MOST_AHEAD:
        raise Invalid(
            "bad_step",
            f"the session {session.id!r} is at step {head.step}, and statistics wait at most "
            f"{MOST_AHEAD} steps ahead, got step {sent.step}",
        )
    if known is not None:
        if known.sha256 != sent.sha256:
            raise Conflict(
                "statistics_differ",
                f"rank {sent.rank} has sent other statistics for step {sent.step} of the session "
                f"{session.id!r}",
            )
        return known
    is_late = sent.step <= head.step
    store.runs.touch(run.id)
    return store.run_steps.post(
        session,
        sent.step,
        sent.rank,
        sha256=sent.sha256,
        statistics=None if is_late else sent.content,
        claimed=None if sent.state is None else sent.state.to_dict(),
        late=is_late,
    )


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
