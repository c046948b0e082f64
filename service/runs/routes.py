"""Routes for training runs: open, post statistics, wait for the state, list the history."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from calibrators.adafocal import BinStatistics
from service.access.permissions import Principal, Scope
from service.dependencies import Joined, Parts
from service.errors import Invalid
from service.http import openapi
from service.http.callers import Caller, needs
from service.http.middleware.request_limits import waiting
from service.http.paging import (
    Cursor,
    Limit,
    Page,
    json_response,
    number_place,
    paged,
    time_place,
)
from service.http.strict_route import StrictRoute
from service.runs import service as runs
from service.runs.schemas import (
    MAX_STEPS,
    RUN_NAME,
    SESSION_PATTERN,
    OpenedRunOut,
    OpenRunIn,
    RunDetailOut,
    RunNotesIn,
    RunOut,
    RunSessionOut,
    RunStateOut,
    RunStepOut,
    StatisticsIn,
    StepDecisionOut,
    decision_of,
)
from service.runs.sessions import Opening, annotate, last_step, open_session
from service.storage import records
from service.storage.store import Store

router = APIRouter(prefix="/v1/runs", tags=["runs"], route_class=StrictRoute)

LONGEST_WAIT = 60
SHOWN_SESSIONS = 200

RunName = Annotated[str, Path(pattern=openapi.NAME_PATTERN, examples=[RUN_NAME])]
Step = Annotated[int, Path(ge=1, lt=MAX_STEPS, examples=[1])]
Session = Annotated[
    str | None,
    Query(pattern=SESSION_PATTERN, description="id of the session; the newest by default"),
]
AfterStep = Annotated[int | None, Query(ge=0, lt=MAX_STEPS)]


@router.post(
    "",
    status_code=201,
    summary="Start or continue a run",
    dependencies=needs(Scope.FIT),
    responses={200: {"model": OpenedRunOut, "description": "A session of an existing run"}},
    response_description="A new run and its first session",
)
def open_run(response: Response, joined: Joined, caller: Caller, body: OpenRunIn) -> OpenedRunOut:
    """Open a session for posting statistics, and return the state to continue from.

    An existing run continues after its last decided step. With `state` or `from_step`, it continues
    from that state or step, and repeats the later steps. Sending the same `session` again returns
    that session.
    """
    opening = Opening(
        **{name: getattr(body, name) for name in OpenRunIn.model_fields}
        | {
            "settings": None if body.settings is None else body.settings.read(),
            "state": None if body.state is None else body.state.read(),
        }
    )
    with joined.database.read() as store:
        joined.quota.check(store, caller.workspace)
    with joined.database.write() as store:
        opened = open_session(store, caller, opening)
    with joined.database.read() as store:
        last = last_step(store, opened.run, opened.head)
    response.status_code = 201 if opened.is_new else 200
    response.headers["Location"] = f"/v1/runs/{opened.run.name}"
    return OpenedRunOut.opened(opened, last)


@router.get("", summary="List runs, most recently active first", response_model=Page[RunOut])
def list_runs(
    joined: Joined,
    caller: Caller,
    limit: Limit = 50,
    cursor: Cursor = None,
    archived: Annotated[bool, Query(description="list only archived runs")] = False,
) -> Response:
    """List the runs of the caller's workspace, with the metrics of their last steps."""
    after = time_place(cursor)
    with joined.database.read() as store:
        shown = store.runs.affordable(caller.workspace, limit, after, archived=archived)
        found = store.runs.page(caller.workspace, shown + 1, after, archived=archived)
    return json_response(paged(found, shown, lambda run: _shown(joined, run), _place))


@router.get("/{run}", summary="Get a run and its sessions")
def get_run(joined: Joined, caller: Caller, run: RunName) -> RunDetailOut:
    """Return the position of a run, the metrics of its last step, and its newest 200 sessions."""
    with joined.database.read() as store:
        return _detailed(store, runs.run_named(store, caller, run))


@router.patch("/{run}", summary="Annotate or archive a run", dependencies=needs(Scope.FIT))
def update_run(joined: Joined, caller: Caller, run: RunName, body: RunNotesIn) -> RunDetailOut:
    """Change tags and description, or archive the run.

    An archived run is hidden from lists and accepts no new sessions; open sessions may finish.
    """
    if body.tags or body.description:
        with joined.database.read() as store:
            joined.quota.check(store, caller.workspace)
    with joined.database.write() as store:
        changed = annotate(
            store,
            caller,
            run,
            tags=body.tags,
            description=body.description,
            archived=body.archived,
        )
    with joined.database.read() as store:
        return _detailed(store, changed)


@router.post(
    "/{run}/steps/{step}/stats",
    summary="Post a rank's statistics for a step",
    dependencies=needs(Scope.FIT),
)
async def post_statistics(
    joined: Joined, caller: Caller, run: RunName, step: Step, body: StatisticsIn
) -> StepDecisionOut:
    """Post a rank's statistics, once per step.

    Repeating a request is safe; sending different statistics returns 409. A step is decided when
    all ranks have posted and the previous step is decided; steps may arrive in any order.
    Statistics that arrive after the decision are `late`: they are recorded, but not merged.
    """

    def recorded() -> runs.Recorded:
        sent = runs.SentStatistics(
            body.session,
            step,
            body.rank,
            BinStatistics.from_bytes(_decoded(body.statistics)),
            None if body.state is None else body.state.read(),
        )
        return runs.record(joined.database, joined.quota, caller, run, sent)

    executors, workspace = joined.executors, caller.workspace
    made = await executors.query.run(workspace, recorded)
    if made.is_due:
        await executors.merge.run(workspace, runs.decide, joined.database, made.session.key)
    posted = await executors.query.run(workspace, runs.outcome, joined.database, made)
    return decision_of(step, body.session, *posted)


@router.get("/{run}/state", summary="Get the state to train with")
async def run_state(
    request: Request,
    joined: Joined,
    caller: Caller,
    run: RunName,
    after: AfterStep = None,
    wait: Annotated[float, Query(ge=0, le=LONGEST_WAIT, description="maximum wait in seconds")] = 0,
    session: Session = None,
) -> RunStateOut:
    """Return the state of a session.

    With `after` and `wait`, wait up to `wait` seconds for a step later than `after`.
    """
    key, answer = await _read_state(joined, caller, run, session)
    if after is None or answer.step > after or not wait:
        return answer
    async with waiting(request.scope, joined.settings.max_waits_per_key):
        await joined.run_watcher.beyond(key, caller.workspace, answer.step, after, wait)
    joined.keys.check(caller)
    _, answer = await _read_state(joined, caller, run, answer.session)
    return answer


@router.get(
    "/{run}/history",
    summary="List the steps of a run, oldest first",
    response_model=Page[RunStepOut],
)
def run_history(
    joined: Joined,
    caller: Caller,
    run: RunName,
    limit: Limit = 50,
    cursor: Cursor = None,
    session: Annotated[
        str | None, Query(pattern=SESSION_PATTERN, description="list all steps of this session")
    ] = None,
    after: AfterStep = None,
) -> Response:
    """List the decided steps of a run, except those that a later session repeated."""
    place = number_place(cursor)
    known = [step for step in (place, after) if step is not None]
    with joined.database.read() as store:
        found = runs.run_named(store, caller, run)
        chosen = None if session is None else runs.session_of(store, found, session)
        begin = max(known, default=None)
        shown = store.run_history.affordable(found.id, limit, begin, chosen)
        steps = store.run_history.page(found.id, shown + 1, begin, chosen)
    return json_response(paged(steps, shown, RunStepOut.of, lambda one: one.step.step))


async def _read_state(
    joined: Parts, caller: Principal, name: str, session: str | None
) -> tuple[records.SessionKey, RunStateOut]:
    """Decide due steps, and return the position of a session; merging may take seconds."""
    executors, workspace = joined.executors, caller.workspace
    key, answer, is_due = await executors.query.run(
        workspace, _state, joined, caller, name, session
    )
    if is_due:
        await executors.merge.run(workspace, runs.decide, joined.database, key, wait=0.0)
        key, answer, _ = await executors.query.run(
            workspace, _state, joined, caller, name, answer.session
        )
    return key, answer


def _state(
    joined: Parts, caller: Principal, name: str, session: str | None
) -> tuple[records.SessionKey, RunStateOut, bool]:
    """Return the position of a session, and whether its next step can be decided."""
    with joined.database.read() as store:
        run = runs.run_named(store, caller, name)
        found = runs.session_of(store, run, session)
        key = found.key
        answer = RunStateOut.of(name, found, store.run_steps.head(found))
        return key, answer, bool(store.run_steps.due([key], 1))


def _shown(joined: Parts, run: records.Run) -> RunOut:
    """Read a run in a transaction of its own: it may have 1,000 sessions, and a page 200 runs."""
    with joined.database.read() as store:
        head = store.run_steps.head(runs.session_of(store, run, None))
        return RunOut.of(run, head, last_step(store, run, head))


def _detailed(store: Store, run: records.Run) -> RunDetailOut:
    sessions = store.runs.sessions(run.id, SHOWN_SESSIONS)
    head = store.run_steps.head(sessions[0])
    shown = [RunSessionOut.of(one) for one in sessions]
    return RunDetailOut.of(run, head, last_step(store, run, head), sessions=shown)


def _place(run: records.Run) -> tuple[float, str]:
    return run.updated_at, run.id


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise Invalid("bad_base64", "statistics must be base64-encoded") from error
