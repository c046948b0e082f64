"""Find and annotate training runs, and record the statistics that ranks post."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from calibrators.adafocal import AdaFocalState, BinStatistics
from calibrators.adafocal.statistics import MAX_NUMBER, MAX_ROWS
from service.access.permissions import Principal
from service.access.quota import Quota
from service.errors import Conflict, Invalid, NotFound, TooLarge
from service.names import NAME
from service.registry.service import check_notes
from service.runs.decisions import is_due
from service.runs.repository import Head, SessionKey, bytes_until_decided
from service.storage.database import Database
from service.storage.records import Run, RunSession, RunStatistics, RunStep
from service.storage.repository import ROW_BYTES
from service.storage.store import Store

# how many steps statistics may be ahead of the last decided step
MAX_AHEAD = 10_000


@dataclass(frozen=True)
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
        """Serialize and hash outside of the transaction; the hash covers numbers and state."""
        claimed = None if self.state is None else self.state.to_dict()
        hashed = self.statistics.fingerprint() + json.dumps(claimed, sort_keys=True)
        content = self.statistics.to_bytes()
        object.__setattr__(self, "claimed", claimed)
        object.__setattr__(self, "content", content)
        object.__setattr__(self, "size", ROW_BYTES + bytes_until_decided(len(content), claimed))
        object.__setattr__(self, "sha256", hashlib.sha256(hashed.encode()).hexdigest())


class Posted(NamedTuple):
    """The status of a step after a post."""

    ranks: list[int]
    late: bool
    decided: RunStep | None


class Recorded(NamedTuple):
    """Recorded statistics, and whether the next step of their session can be decided."""

    session: RunSession
    step: int
    late: bool
    is_due: bool

    @property
    def key(self) -> SessionKey:
        """The key of their session."""
        return SessionKey(self.session.run, self.session.number)


def run_named(store: Store, principal: Principal, name: str) -> Run:
    """Return the caller's run with this name."""
    found = store.runs.named(principal.workspace, name) if NAME.fullmatch(name) else None
    if found is None:
        raise NotFound("no_such_run", f"there is no run {name[:64]!r}")
    return found


def session_of(store: Store, run: Run, id: str | None) -> RunSession:
    """Return a session of a run by its id, by default the newest."""
    if id is None:
        return store.runs.sessions(run.id, 1)[0]
    found = store.runs.session_named(run.id, id)
    if found is None:
        raise NotFound("no_such_session", f"the run {run.name!r} has no session {id[:100]!r}")
    return found


def last_step(store: Store, run: Run, head: Head) -> RunStep | None:
    """Return the last decided step of a session, or of the history that it continues."""
    return head.decided or store.run_history.last_in_history(run.id, head.step)


def annotate(
    store: Store,
    principal: Principal,
    name: str,
    *,
    tags: dict[str, str] | None,
    description: str | None,
    archived: bool | None,
) -> Run:
    """Change tags, description or archived state; None leaves a field unchanged."""
    run = run_named(store, principal, name)
    check_notes(tags or {}, description or "", "a run")
    notes = {"tags": tags, "description": description}
    changed: dict[str, Any] = {key: value for key, value in notes.items() if value is not None}
    if archived is False:
        changed["archived_at"] = None
    if changed:
        run = store.runs.change(run.id, **changed)
    return store.runs.archive(run.id) if archived else run


def record(
    database: Database, quota: Quota, principal: Principal, name: str, sent: SentStatistics
) -> Recorded:
    """Record a rank's statistics; raise TooLarge if the workspace would exceed its quota.

    Under the write lock only the rank's own statistics are read: there may be thousands of ranks.
    """
    with database.read() as store:
        session = session_of(store, run_named(store, principal, name), sent.session)
        if store.run_steps.posted(session, sent.step, sent.rank) is None:
            quota.check(store, principal.workspace, sent.size)
    with database.write() as store:
        run = store.runs.lock(run_named(store, principal, name).id)
        session = session_of(store, run, sent.session)
        _check(run, session, sent)
        head = store.run_steps.head(session)
        known = store.run_steps.posted(session, sent.step, sent.rank)
        mine = _recorded(store, run, session, head, sent, known)
    with database.read() as store:
        step = store.run_steps.head(session).step + 1
        standing = store.run_steps.standing(session, step)
    return Recorded(session, sent.step, mine.late, is_due(session, standing))


def outcome(database: Database, recorded: Recorded) -> Posted:
    """Return the status of a step after a post."""
    session, step = recorded.session, recorded.step
    with database.read() as store:
        ranks = store.run_steps.ranks(session, step)
        return Posted(ranks, recorded.late, store.run_steps.get(session, step))


def _recorded(
    store: Store,
    run: Run,
    session: RunSession,
    head: Head,
    sent: SentStatistics,
    known: RunStatistics | None,
) -> RunStatistics:
    """Record a rank's statistics unless they are known; after the decision they are late."""
    if sent.step > head.step + MAX_AHEAD:
        raise Invalid(
            "bad_step",
            f"the session {session.id!r} is at step {head.step}, and statistics may be at most "
            f"{MAX_AHEAD} steps ahead, got step {sent.step}",
        )
    if known is not None:
        if known.sha256 != sent.sha256:
            raise Conflict(
                "statistics_differ",
                f"rank {sent.rank} has already sent different statistics for step {sent.step} of "
                f"the session {session.id!r}",
            )
        return known
    is_late = sent.step <= head.step
    store.runs.touch(run.id, ROW_BYTES if is_late else sent.size)
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
            f"the session {session.id!r} starts after step {session.base_step}: "
            f"step must be greater, got {sent.step}",
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
    """Raise if a rank's share is so large that the sum over all ranks could overflow."""
    share = f"statistics of one of {session.world_size} ranks may hold at most"
    most = MAX_ROWS // session.world_size
    if statistics.rows > most:
        raise TooLarge("too_many_rows", f"{share} {most} rows, got {statistics.rows}")
    most = MAX_NUMBER // session.world_size
    if statistics.nll_sum > most:
        raise TooLarge(
            "too_many_rows", f"{share} an nll sum of {most} * 2^-24, got {statistics.nll_sum}"
        )


def _check_claim(run: Run, sent: SentStatistics, *, needed: bool) -> None:
    """Raise unless a state is sent if and only if the trainer decides."""
    if sent.state is None:
        if needed:
            raise Invalid("bad_state", "state is missing: the trainer decides and must send it")
        return
    check_state(run, sent.state)
    if not needed:
        raise Invalid("bad_state", "state must be null: the service decides in this session")
    if sent.state.step != sent.step:
        raise Invalid("bad_state", f"state must be of step {sent.step}, got step {sent.state.step}")


def check_state(run: Run, state: AdaFocalState) -> None:
    """Raise if a state cannot belong to this run."""
    if run.settings is None:
        raise Invalid("bad_state", f"state must be null: {run.name!r} is of kind 'monitor'")
    if asdict(state.settings) != run.settings:
        raise Invalid("bad_state", f"the settings in state differ from those of {run.name!r}")
