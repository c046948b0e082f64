"""Routes of fits: order, watch, cancel."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import ValidationError

from calibrators.registry import DEFAULT_METHOD
from service.access.idempotency import check_key
from service.access.permissions import Principal, Scope
from service.concurrency.thread_pools import Runner
from service.datasets.service import Retention
from service.datasets.spool import SpooledBody, spool
from service.dependencies import Joined, Parts
from service.errors import Invalid, Malformed, NotFound, TooMany
from service.fits import service as fits
from service.fits.event_stream import event_stream
from service.fits.schemas import DOCUMENTS, FIT_BODY, NUMBERS, TEXTS, FitIn, FitOut
from service.fits.service import FitOrder, FitRequest, MethodOrder
from service.http import json_body, openapi
from service.http.callers import Caller, needs, parse
from service.http.middleware.request_limits import WaitingResponse, waiting
from service.http.paging import Cursor, Limit, Page, paged, time_place, written
from service.http.schemas import KindName
from service.http.strict_route import MOST_BODY_COST, StrictRoute
from service.storage.records import Fit, FitStatus

router = APIRouter(
    prefix="/v1", tags=["fits"], dependencies=needs(Scope.FIT), route_class=StrictRoute
)

LONGEST_WAIT = 60
# orjson 3.13 writes beyond its buffer where lists lie some hundreds deep
MOST_ARRAY_DEPTH = 8
EVENTS: openapi.Answers = {
    200: {
        "description": "One event for each change; its data is the fit as JSON",
        "content": {
            "text/event-stream": {
                "schema": {
                    "type": "object",
                    "required": ["event", "data"],
                    "properties": {
                        "event": {"type": "string", "enum": list(FitStatus)},
                        "data": {"type": "string"},
                    },
                },
                "example": 'event: running\ndata: {"progress": {"step": 420}}\n\n',
            }
        },
    }
}
WAIT = re.compile(r"(?:^|[,;\s])wait\s*=\s*(\d{1,6})")
JSON = "application/json"
ARRAYS = ("logits", "probabilities", "values", "labels", "segments")
OF_THE_ARRAYS = ("kind", "delete_after_fit")


@router.post(
    "/calibrators/{name}/fits",
    status_code=202,
    response_model=FitOut,
    summary="Fit a calibrator",
    openapi_extra=FIT_BODY,
    responses={201: {"model": FitOut, "description": "Finished while the caller waited"}},
    response_description="Accepted; Location says where to look",
)
async def create_fit(
    request: Request,
    joined: Joined,
    caller: Caller,
    name: openapi.Name,
    kind: Annotated[KindName | None, Query(description="of logits sent in this call")] = None,
    delete_after_fit: Annotated[
        bool, Query(description="delete what is sent in this call")
    ] = False,
    prefer: Annotated[str | None, Header(max_length=200)] = None,
    idempotency_key: Annotated[str | None, Header()] = None,
) -> Response:
    """On a dataset that was uploaded before, or on logits and labels sent in this very call.

    JSON: `{"dataset": "ds_...", "method": "smart"}`, or with `logits` and `labels` in place of
    `dataset`. Any other format: the arrays in the body, everything else in the query
    (`?method=smart&seed=1`; `params` and `tags` as JSON). `Prefer: wait=10` answers when the fit is
    finished, 201, or after so many seconds, 202.
    """
    key = check_key(idempotency_key)
    keeping = Retention(delete_after_fit, joined.settings.dataset_days or None)
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
    calibrator: Annotated[str | None, Query(pattern=openapi.NAME_PATTERN)] = None,
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
    id: openapi.FitId,
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
    responses=EVENTS,
)
async def fit_events(joined: Joined, caller: Caller, id: openapi.FitId) -> Response:
    """An event for each change: `queued`, `running`, then `succeeded`, `failed` or `cancelled`.

    The stream ends with the fit, and when its key is revoked.
    """
    fit = await joined.executors.query.run(caller.workspace, _find, joined, caller, id)
    return WaitingResponse(
        joined.settings.max_waits_per_key,
        event_stream(joined.watcher, fit, lambda: joined.keys.check(caller)),
        media_type="text/event-stream",
    )


@router.delete("/fits/{id}", summary="Cancel a fit")
def cancel_fit(joined: Joined, caller: Caller, id: openapi.FitId) -> FitOut:
    """A waiting fit is cancelled at once, a running one within seconds; 409 if it is finished."""
    with joined.database.write() as store:
        return FitOut.of(fits.cancel(store, caller, id))


def _ask(
    joined: Parts,
    caller: Principal,
    sent: SentFit,
    arrived: SpooledBody,
    kind: KindName | None,
    keeping: Retention,
    key: str | None,
) -> tuple[Fit, bool]:
    """The fit, and whether it was ordered before."""
    request = sent.request
    if sent.arrays_type is not None:
        request = replace(request, kind=kind, keeping=keeping)
    with joined.database.read() as store:
        known = fits.replayed(store, caller, request, key)
    if known is not None:
        return known, True
    with joined.database.read() as store:
        joined.quota.check(store, caller.workspace)

    def submitted(dataset: str) -> Fit:
        with joined.database.write() as store:
            return fits.submit(
                store,
                caller,
                request,
                dataset=dataset,
                key=key,
                memory_limit=joined.settings.fit_memory_bytes,
                most_open=joined.settings.max_open_fits,
            )

    arrays_type = sent.arrays_type
    if arrays_type is None:
        return submitted(request.dataset), False

    def added() -> str:
        return joined.datasets.add(caller, arrived, arrays_type, kind, keeping).dataset.id

    try:
        return submitted(added()), False
    except NotFound:  # a fit on equal bytes has ended since, and they were kept for it alone
        return submitted(added()), False


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


@dataclass(frozen=True)
class SentFit:
    """A checked request; with the type of the arrays if they came with it."""

    request: FitRequest
    arrays_type: str | None


async def read_fit(request: Request, arrived: SpooledBody, name: str, run: Runner) -> SentFit:
    """What is asked, checked before arrays are taken; these are in ``arrived`` then.

    ``run`` is where bodies are parsed and orders checked: a caller chooses how long that takes.
    """
    content_type = request.headers.get("content-type", "")
    if content_type.partition(";")[0].strip().lower() != JSON:
        asked = await run(lambda: _request(_checked(_from_query(request), "query"), name))
        await spool(request, arrived, run)
        return SentFit(replace(asked, dataset=arrived.sha256), content_type)
    for field in request.query_params:
        if field not in OF_THE_ARRAYS:
            raise Invalid("invalid_request", f"query.{field[:40]}: belongs into the JSON body")
    asked, arrays = await parse(request, _from_body, await request.body(), name)
    if arrays is None:
        return SentFit(asked, None)
    await run(arrived.write, arrays)
    return SentFit(replace(asked, dataset=arrived.sha256), JSON)


def _from_body(body: bytes, name: str) -> tuple[FitRequest, bytes | None]:
    """What a JSON body asks, and its arrays if it has any."""
    document, arrays = _split(body)
    checked = _checked(document, "body")
    if arrays is None and checked.dataset is None:
        raise Invalid("no_dataset", "name a dataset, or send logits and labels in this call")
    if arrays is not None and checked.dataset is not None:
        raise Invalid("two_datasets", "name a dataset or send logits and labels, not both")
    return _request(checked, name), arrays


def _split(body: bytes) -> tuple[dict[str, Any], bytes | None]:
    """A JSON body without its arrays, and these."""
    document = json_body.parse(body)
    if not isinstance(document, dict):
        raise Invalid("invalid_request", "the body must be a JSON object")
    arrays = {name: document.pop(name) for name in ARRAYS if name in document}
    json_body.check_shape(document, MOST_BODY_COST)
    json_body.check_shape(arrays, json_body.MOST_COST, MOST_ARRAY_DEPTH)
    return document, orjson.dumps(arrays) if arrays else None


def _from_query(request: Request) -> dict[str, Any]:
    """The fields of a fit that came in the query, because the body holds arrays."""
    asked: dict[str, Any] = {}
    methods: list[str] = []
    for name, value in request.query_params.multi_items():
        if name in OF_THE_ARRAYS:
            continue
        if name == "method":
            methods.append(value)
        elif name in asked:
            raise Invalid("invalid_request", f"query.{name}: given more than once")
        elif name in (*TEXTS, *NUMBERS, *DOCUMENTS):
            asked[name] = _value(name, value)
        else:
            known = ", ".join(("method", *NUMBERS, *DOCUMENTS, *TEXTS, *OF_THE_ARRAYS))
            raise Invalid(
                "invalid_request", f"query.{name[:40]}: not known here; known are {known}"
            )
    if len(methods) == 1:
        return asked | {"method": methods[0]}
    return asked | {"methods": [{"method": one} for one in methods]} if methods else asked


def _value(name: str, text: str) -> Any:
    if name in DOCUMENTS:
        try:
            return json_body.parse(text.encode())
        except Malformed as error:
            raise Invalid("invalid_request", f"query.{name}: must be a JSON object") from error
    if name in TEXTS:
        return text
    try:
        return NUMBERS[name](text)
    except ValueError as error:
        raise Invalid("invalid_request", f"query.{name}: must be a number") from error


def _checked(document: Mapping[str, Any], place: str) -> FitIn:
    try:
        return FitIn.model_validate(document)
    except ValidationError as error:
        raise RequestValidationError(
            [{**one, "loc": (place, *one["loc"])} for one in error.errors(include_input=False)]
        ) from None


def _request(asked: FitIn, name: str) -> FitRequest:
    order = FitOrder(
        methods=_methods(asked),
        seed=asked.seed,
        held_out=asked.held_out,
        model=asked.model,
        tags=asked.tags,
        description=asked.description,
    )
    request = FitRequest(name, order, asked.dataset or "", asked.evaluation, asked.device)
    request.check()
    return request


def _methods(asked: FitIn) -> list[MethodOrder]:
    if asked.methods is not None:
        if asked.method is not None or asked.params is not None:
            raise Invalid("two_methods", "give method and params, or methods, not both")
        return [MethodOrder(one.method, one.params) for one in asked.methods]
    return [MethodOrder(asked.method or DEFAULT_METHOD, asked.params or {})]
