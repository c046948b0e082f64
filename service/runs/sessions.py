"""Open sessions of training runs: begin a run, or go on with it."""

from __future__ import annotations

import secrets
from dataclasses import asdict, dataclass
from typing import NamedTuple

from calibrators.adafocal import AdaFocalState, Settings
from service.access.permissions import Principal
from service.errors import Conflict, Invalid
from service.names import check_name
from service.registry.service import check_notes
from service.runs.repository import Head, State
from service.runs.service import check_state, run_named
from service.storage.records import Decider, Run, RunKind, RunSession
from service.storage.store import Store

MOST_SESSIONS = 1000  # of a run


@dataclass(frozen=True)
class Opening:
    """What a training job asks for when it begins or goes on."""

    name: str
    kind: RunKind
    settings: Settings | None
    world_size: int
    decides: Decider
    merge_timeout: float
    session: str | None
    state: AdaFocalState | None
    from_step: int | None
    tags: dict[str, str]
    description: str
    begun: float | None = None


class Opened(NamedTuple):
    """A session of a run, and where it goes on."""

    run: Run
    session: RunSession
    head: Head
    is_new: bool


def open_session(store: Store, principal: Principal, asked: Opening) -> Opened:
    """Open a session of a run: a new one, or that of this id; add the run if there is none."""
    check_name(asked.name, "a run")
    check_notes(asked.tags, asked.description, "a run")
    if asked.kind == "monitor" and asked.settings is not None:
        raise Invalid("bad_settings", "settings are AdaFocal's: a run of kind 'monitor' has none")
    run, is_new = _found_or_made(store, principal, asked)
    _check_same(run, asked)
    known = None if asked.session is None else store.runs.session_named(run.id, asked.session)
    if known is not None:
        _check_same_session(run, known, asked)
        return Opened(run, known, store.run_steps.head(known), is_new)
    if run.archived_at is not None:
        raise Conflict("run_archived", f"the run {run.name!r} is archived: it takes no sessions")
    _check_count(store, run)
    step, state = _base(store, run, asked)
    session = store.runs.add_session(
        run.id,
        asked.begun,
        id=asked.session or f"session-{secrets.token_hex(8)}",
        base_step=step,
        base_state=state,
        world_size=asked.world_size,
        decides=asked.decides,
        merge_timeout=asked.merge_timeout,
        created_by=principal.actor,
    )
    if not is_new:
        run = _noted(store, run, asked)
    return Opened(run, session, Head(step, state, None), is_new)


def _found_or_made(store: Store, principal: Principal, asked: Opening) -> tuple[Run, bool]:
    """Return the run, locked, and whether it is new."""
    found = store.runs.named(principal.workspace, asked.name)
    if found is None:
        settings = None
        if asked.kind == "adafocal":
            settings = asdict(asked.settings or Settings())
        made = store.runs.add(
            principal.workspace,
            asked.name,
            kind=asked.kind,
            settings=settings,
            tags=asked.tags,
            description=asked.description,
            created_by=principal.actor,
        )
        if made is not None:
            return store.runs.lock(made.id), True
        found = run_named(store, principal, asked.name)  # somebody else was faster
    return store.runs.lock(found.id), False


def _check_same(run: Run, asked: Opening) -> None:
    """Raise if a run cannot be gone on with as is asked."""
    if run.kind != asked.kind:
        raise Conflict(
            "run_differs", f"the run {run.name!r} is of kind {run.kind!r}, not {asked.kind!r}"
        )
    if run.settings is None or asked.settings is None:
        return
    wanted = asdict(asked.settings)
    others = [name for name, value in run.settings.items() if wanted[name] != value]
    if others:
        told = ", ".join(f"{name} {run.settings[name]!r}, not {wanted[name]!r}" for name in others)
        raise Conflict("run_differs", f"the run {run.name!r} has {told}", settings=others)


def _check_count(store: Store, run: Run) -> None:
    """Raise Conflict if a run has as many sessions as it may."""
    if store.runs.session_count(run.id) >= MOST_SESSIONS:
        raise Conflict(
            "too_many_sessions",
            f"the run {run.name!r} has {MOST_SESSIONS:,} sessions, and no more are taken: go on "
            "under another name, with a state",
            limit=MOST_SESSIONS,
        )


def _check_same_session(run: Run, session: RunSession, asked: Opening) -> None:
    for name in ("world_size", "decides"):
        was, wanted = getattr(session, name), getattr(asked, name)
        if was != wanted:
            raise Conflict(
                "session_differs",
                f"the session {session.id!r} of {run.name!r} has {name} {was!r}, not {wanted!r}",
            )


def _base(store: Store, run: Run, asked: Opening) -> tuple[int, State]:
    """Return the step that a session goes on from, and the state after it."""
    if asked.state is not None:
        if asked.from_step is not None:
            raise Invalid("bad_step", "from_step and state are both given: give one of them")
        check_state(run, asked.state)
        return asked.state.step, asked.state.to_dict()
    step = asked.from_step
    if step is None:
        newest = store.runs.sessions(run.id, 1)
        if newest:
            head = store.run_steps.head(newest[0])
            return head.step, head.state
        step = 0
    if run.settings is None:
        return step, None
    if step == 0:
        return 0, AdaFocalState.begin(Settings(**run.settings)).to_dict()
    session = store.runs.session_at(run.id, step)
    if session is not None and session.base_step == step:
        return step, store.run_steps.base_state(session)
    found = None if session is None else store.run_steps.get(session, step)
    if found is None:
        raise Invalid(
            "bad_step",
            f"from_step must be 0 or a step of {run.name!r} that is decided, got {step}: "
            "without a state there is nothing to go on from",
        )
    return step, found.state


def _noted(store: Store, run: Run, asked: Opening) -> Run:
    """Add the tags of a job that goes on to those of the run; replace the description."""
    store.runs.touch(run.id)
    tags = {**run.tags, **asked.tags}
    description = asked.description or run.description
    check_notes(tags, description, "a run")
    return store.runs.change(run.id, tags=tags, description=description)
