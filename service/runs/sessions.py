"""Open sessions of training runs (to start or continue a run), and annotate runs."""

from __future__ import annotations

import secrets
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from calibrators.adafocal import AdaFocalState, Settings
from service.access.permissions import Principal
from service.errors import Conflict, Invalid
from service.names import check_name
from service.registry.service import check_notes
from service.runs.repository import Head, State
from service.runs.service import check_state, run_named
from service.storage.records import Decider, Run, RunKind, RunSession, RunStep
from service.storage.store import Store

MAX_SESSIONS = 1000  # of a run


@dataclass(frozen=True)
class Opening:
    """A training job's request to start or continue a run."""

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
    """An opened session of a run, and its position."""

    run: Run
    session: RunSession
    head: Head
    is_new: bool


def open_session(store: Store, principal: Principal, opening: Opening) -> Opened:
    """Open a new session of a run, or return an existing one; add the run if it is new."""
    check_name(opening.name, "a run")
    check_notes(opening.tags, opening.description, "a run")
    if opening.kind == "monitor" and opening.settings is not None:
        raise Invalid("bad_settings", "settings must be null for a run of kind 'monitor'")
    run, is_new = _find_or_add(store, principal, opening)
    _check_same(run, opening)
    known = None if opening.session is None else store.runs.session_named(run.id, opening.session)
    if known is not None:
        _check_same_session(run, known, opening)
        return Opened(run, known, store.run_steps.head(known), is_new)
    if run.archived_at is not None:
        raise Conflict(
            "run_archived", f"the run {run.name!r} is archived: it accepts no new sessions"
        )
    _check_count(store, run)
    step, state = _base(store, run, opening)
    session = store.runs.add_session(
        run.id,
        opening.begun,
        id=opening.session or f"session-{secrets.token_hex(8)}",
        base_step=step,
        base_state=state,
        world_size=opening.world_size,
        decides=opening.decides,
        merge_timeout=opening.merge_timeout,
        created_by=principal.actor,
    )
    if not is_new:
        run = _annotate(store, run, opening)
    return Opened(run, session, Head(step, state, None), is_new)


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


def _find_or_add(store: Store, principal: Principal, opening: Opening) -> tuple[Run, bool]:
    """Find or add the run and lock it; return it, and True if it is new."""
    found = store.runs.named(principal.workspace, opening.name)
    if found is None:
        settings = None
        if opening.kind == "adafocal":
            settings = asdict(opening.settings or Settings())
        made = store.runs.add(
            principal.workspace,
            opening.name,
            kind=opening.kind,
            settings=settings,
            tags=opening.tags,
            description=opening.description,
            created_by=principal.actor,
        )
        if made is not None:
            return store.runs.lock(made.id), True
        found = run_named(store, principal, opening.name)  # another caller added it first
    return store.runs.lock(found.id), False


def _check_same(run: Run, opening: Opening) -> None:
    """Raise Conflict if the kind or settings of a run differ from the requested ones."""
    if run.kind != opening.kind:
        raise Conflict(
            "run_differs", f"the run {run.name!r} is of kind {run.kind!r}, not {opening.kind!r}"
        )
    if run.settings is None or opening.settings is None:
        return
    wanted = asdict(opening.settings)
    others = [name for name, value in run.settings.items() if wanted[name] != value]
    if others:
        facts = ", ".join(f"{name} {run.settings[name]!r}, not {wanted[name]!r}" for name in others)
        raise Conflict("run_differs", f"the run {run.name!r} has {facts}", settings=others)


def _check_count(store: Store, run: Run) -> None:
    """Raise Conflict if a run has the maximum number of sessions."""
    if store.runs.session_count(run.id) >= MAX_SESSIONS:
        raise Conflict(
            "too_many_sessions",
            f"the run {run.name!r} already has {MAX_SESSIONS:,} sessions, the maximum: send the "
            "state, and continue under another name",
            limit=MAX_SESSIONS,
        )


def _check_same_session(run: Run, session: RunSession, opening: Opening) -> None:
    for name in ("world_size", "decides"):
        was, wanted = getattr(session, name), getattr(opening, name)
        if was != wanted:
            raise Conflict(
                "session_differs",
                f"the session {session.id!r} of {run.name!r} has {name} {was!r}, not {wanted!r}",
            )


def _base(store: Store, run: Run, opening: Opening) -> tuple[int, State]:
    """Return the step after which a session starts, and the state after that step."""
    if opening.state is not None:
        if opening.from_step is not None:
            raise Invalid("bad_step", "send from_step or state, not both")
        check_state(run, opening.state)
        return opening.state.step, opening.state.to_dict()
    step = opening.from_step
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
            f"from_step must be 0 or a decided step of {run.name!r}, got {step}: send a state to "
            "continue from any other step",
        )
    return step, found.state


def _annotate(store: Store, run: Run, opening: Opening) -> Run:
    """Add the tags of a job that continues a run; replace the description if the job sent one."""
    store.runs.touch(run.id)
    tags = {**run.tags, **opening.tags}
    description = opening.description or run.description
    check_notes(tags, description, "a run")
    return store.runs.change(run.id, tags=tags, description=description)
