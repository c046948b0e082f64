"""Routes of fits: order, watch, cancel."""

from __future__ import annotations

import asyncio
import functools
import json
import re
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from service.access.idempotency import check_key
from service.access.permissions import Principal, Scope
from service.datasets.service import Keeping
from service.datasets.spool import SpooledBody
from service.dependencies import Joined, Parts
from service.errors import TooMany, Unauthenticated
from service.fits import service as fits
from service.fits.requests import SentFit, read_fit
from service.fits.schemas import FitOut
from service.http import openapi_bodies
from service.http.callers import Caller, needs
from service.http.middleware.request_limits import WaitingResponse, waiting
from service.http.paging import Cursor, Limit, Page, paged, time_place, written
from service.http.schemas import KindName
from service.http.strict_route import StrictRoute
from service.storage.records import Fit, FitStatus

router = APIRouter(
    prefix="/v1", tags=["fits"], dependencies=needs(Scope.FIT), route_class=StrictRoute
)

LONGEST_WAIT = 60
KEEPALIVE_SECONDS = 15.0
CHECK_SECONDS = 1.5  # how soon a stream notices that its key was revoked
WAIT = re.compile(r"(?:^|[,;\s])wait\s*=\s*(\d{1,6})")


@router.post(
    "/calibrators/{name}/fits",
    status_code=202,
    response_model=FitOut,
    summary="Fit a calibrator",
    openapi_extra=openapi_bodies.FIT_BODY,
    responses=openapi_bodies.FIT_ANSWERS,
)
async def create_fit(
    request: Request,
    joined: Joined,
    caller: Caller,
    name: openapi_bodies.Name,
    kind: Annotated[KindName | None, Query(description="of logits sent in this call")] = None,
    delete_after_fit: Annotated[
        bool, Query(description="delete what is sent in this call")
    ] = False,
    prefer: Annotated[str | None, Header(max_length=200)] = None,
    idempotency_key: Annotated[str | None, Header()] = None,
) -> Response:
    """On a dataset that was uploaded before, or on logits and labels sent in this very call.

    JSON: `{"dataset": "ds_...", "method": "smart"}`, or with `logits` and `labels` in place of
    `dataset`. npz, safetensors or CSV: the arrays in the body, everything else in the query
    (`?method=smart&seed=1`; `params` and `tags` as JSON). `Prefer: wait=10` answers when the fit is
    finished, 201, or after so many seconds, 202.
    """
    key = check_key(idempotency_key)
    keeping = Keeping(delete_after_fit, joined.settings.dataset_days or None)
    with joined.spool.body(caller.workspace) as arrived:
        sent = await read_fit(request, arrived, name, joined.executors.store.of(caller.workspace))
        ask = functools.partial(_ask, joined, caller, sent, arrived, kind, keeping, key)
        executors = joined.executors
        executor = executors.query if sent.arrays_type is None else executors.inspect
        fit, is_known = await executor.run(caller.workspace, ask)
    fit, wait = await _finished(request, joined, caller, fit, prefer)
    headers = {"Location": f"/v1/fits/{fit.id}"}
    if is_known:
        headers["Idempotent-Replayed"] = "true"
    if wait:
        headers["Preference-Applied"] = f"wait={wait}"
    return _answer(fit, 201 if fit.status is FitStatus.SUCCEEDED else 202, headers)


create_fit.reads_its_query = True  # type: ignore[attr-defined]


@router.get("/fits", summary="List fits, newest first", response_model=Page[FitOut])
def list_fits(
    joined: Joined,
    caller: Caller,
    limit: Limit = 50,
    cursor: Cursor = None,
    calibrator: Annotated[str | None, Query(pattern=openapi_bodies.NAME_PATTERN)] = None,
    status: FitStatus | None = None,
) -> Response:
    """Fits of the caller's workspace, of one calibrator or one status if named."""
    after, workspace = time_place(cursor), caller.workspace
    with joined.database.read() as store:
        shown = store.fits.affordable(workspace, limit, after, calibrator=calibrator, status=status)
        found = store.fits.page(workspace, shown + 1, after, calibrator=calibrator, status=status)
    return written(paged(found, shown, FitOut.of, lambda fit: (fit.created_at, fit.id)))


@router.get("/fits/{id}", response_model=FitOut, summary="A fit and its progress")
async def get_fit(
    request: Request,
    joined: Joined,
    caller: Caller,
    id: openapi_bodies.FitId,
    prefer: Annotated[str | None, Header(max_length=200)] = None,
) -> Response:
    """With `Prefer: wait=10` the answer comes when the fit is finished, or after 10 seconds."""
    fit = await joined.executors.query.run(caller.workspace, _find, joined, caller, id)
    fit, wait = await _finished(request, joined, caller, fit, prefer)
    return _answer(fit, 200, {"Preference-Applied": f"wait={wait}"} if wait else {})


@router.get(
    "/fits/{id}/events",
    summary="Progress as server-sent events",
    response_class=StreamingResponse,
    responses=openapi_bodies.EVENT_ANSWERS,
)
async def fit_events(joined: Joined, caller: Caller, id: openapi_bodies.FitId) -> Response:
    """An event for each change: `queued`, `running`, then `succeeded`, `failed` or `cancelled`.

    The stream ends with the fit, and when its key is revoked.
    """
    fit = await joined.executors.query.run(caller.workspace, _find, joined, caller, id)
    return WaitingResponse(
        joined.settings.max_waits_per_key,
        _events(joined, caller, fit),
        media_type="text/event-stream",
    )


@router.delete("/fits/{id}", summary="Cancel a fit")
def cancel_fit(joined: Joined, caller: Caller, id: openapi_bodies.FitId) -> FitOut:
    """A waiting fit is cancelled at once, a running one within seconds; 409 if it is finished."""
    return FitOut.of(fits.cancel(joined.database, joined.queue, caller, id))


def _ask(
    joined: Parts,
    caller: Principal,
    sent: SentFit,
    arrived: SpooledBody,
    kind: KindName | None,
    keeping: Keeping,
    key: str | None,
) -> tuple[Fit, bool]:
    """The fit, and whether it was ordered before."""
    with joined.database.read() as store:
        known = fits.replayed(store, caller, sent.request, key)
    if known is not None:
        return known, True
    dataset = sent.request.dataset
    if sent.arrays_type is not None:
        added = joined.datasets.add(caller, arrived, sent.arrays_type, kind, keeping)
        dataset = added.dataset.id
    with joined.database.write() as store:
        joined.datasets.check_room(store, caller.workspace)
        fit = fits.submit(
            store,
            joined.queue,
            caller,
            sent.request,
            dataset=dataset,
            key=key,
            memory_limit=joined.settings.fit_memory_bytes,
            most_open=joined.settings.max_open_fits,
        )
    return fit, False


def _find(joined: Parts, caller: Principal, id: str) -> Fit:
    with joined.database.read() as store:
        return fits.find(store, caller, id)


async def _finished(
    request: Request, joined: Parts, caller: Principal, fit: Fit, prefer: str | None
) -> tuple[Fit, int]:
    """Return the fit when it is finished or the preferred seconds have passed, and these seconds.

    A caller with too many waits is answered at once: to wait is only a preference.
    """
    wait = _wait(prefer)
    if not wait:
        return fit, 0
    try:
        with waiting(request.scope, joined.settings.max_waits_per_key):
            fit = await joined.watcher.finished(fit, wait)
    except TooMany:
        return fit, 0
    joined.keys.check(caller)
    return fit, wait


def _wait(prefer: str | None) -> int:
    """The seconds that a Prefer header asks to wait, at most a minute."""
    found = WAIT.search(prefer or "")
    return min(int(found[1]), LONGEST_WAIT) if found else 0


def _answer(fit: Fit, status: int, headers: dict[str, str]) -> JSONResponse:
    if fit.status is FitStatus.SUCCEEDED and status == 201:
        headers = {**headers, "Content-Location": headers["Location"]}
    return JSONResponse(FitOut.of(fit).model_dump(mode="json"), status, headers)


async def _events(joined: Parts, caller: Principal, fit: Fit) -> AsyncIterator[str]:
    changes = joined.watcher.changes_of(fit)
    coming = asyncio.ensure_future(anext(changes, None))
    quiet_seconds = 0.0
    try:
        while _is_let_in(joined, caller):
            done, _ = await asyncio.wait([coming], timeout=CHECK_SECONDS)
            quiet_seconds = 0.0 if done else quiet_seconds + CHECK_SECONDS
            if quiet_seconds >= KEEPALIVE_SECONDS:
                quiet_seconds = 0.0
                yield ": still here\n\n"
            if not done:
                continue
            current = coming.result()
            if current is None:
                return
            text = json.dumps(FitOut.of(current).model_dump(mode="json"))
            yield f"event: {current.status}\ndata: {text}\n\n"
            coming = asyncio.ensure_future(anext(changes, None))
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)
        await changes.aclose()


def _is_let_in(joined: Parts, caller: Principal) -> bool:
    try:
        joined.keys.check(caller)
    except Unauthenticated:
        return False
    return True
