"""Routes for fits: submit, watch, cancel."""

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
from service.datasets.formats.feature_columns import FEATURE_NAMES
from service.datasets.service import Retention
from service.datasets.spool import SpooledBody, spool
from service.dependencies import Joined, Parts
from service.errors import Invalid, Malformed, NotFound, TooMany
from service.fits import service as fits
from service.fits.event_stream import event_stream
from service.fits.schemas import DOCUMENTS, FIT_BODY, NUMBERS, TEXTS, FitIn, FitOut
from service.fits.service import FitRequest, FitSpec, MethodSpec
from service.http import json_body, openapi
from service.http.body_kinds import media_type
from service.http.callers import Caller, needs, parse
from service.http.middleware.request_limits import WaitingResponse, waiting
from service.http.paging import Cursor, Limit, Page, json_response, paged, time_place
from service.http.schemas import KindName
from service.http.strict_route import MAX_BODY_COST, StrictRoute
from service.storage.records import Fit, FitStatus

router = APIRouter(
    prefix="/v1", tags=["fits"], dependencies=needs(Scope.FIT), route_class=StrictRoute
)

LONGEST_WAIT = 60
# orjson 3.13 writes past its buffer for lists nested hundreds of levels deep
MAX_ARRAY_DEPTH = 8
EVENTS: openapi.Answers = {
    200: {
        "description": "One event per change, with the fit as JSON in its data",
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
ARRAYS = ("logits", "probabilities", "values", "labels", "segments", *FEATURE_NAMES)
ARRAY_OPTIONS = ("kind", "delete_after_fit")


@router.post(
    "/calibrators/{name}/fits",
    status_code=202,
    response_model=FitOut,
    summary="Fit a calibrator",
    openapi_extra=FIT_BODY,
    responses={201: {"model": FitOut, "description": "Finished while the caller waited"}},
    response_description="Accepted; poll the URL in Location",
)
async def create_fit(
    request: Request,
    joined: Joined,
    caller: Caller,
    name: openapi.Name,
    kind: Annotated[
        KindName | None, Query(description="kind of the values sent in this call")
    ] = None,
    delete_after_fit: Annotated[
        bool, Query(description="delete the data sent in this call after the fit")
    ] = False,
    prefer: Annotated[str | None, Header(max_length=200)] = None,
    idempotency_key: Annotated[str | None, Header()] = None,
) -> Response:
    """Start a fit on an uploaded dataset, or on logits and labels sent in this call.

    In JSON, send `{"dataset": "ds_...", "method": "smart"}`, or `logits` and `labels` instead of
    `dataset`. In any other format, send the arrays in the body and all other fields in the query
    (`?method=smart&seed=1`; `params` and `tags` as JSON). With `Prefer: wait=10`, the response
    waits up to 10 seconds for the fit to finish: 201 if it succeeded, otherwise 202.
    """
    key = check_key(idempotency_key)
    keeping = Retention(delete_after_fit, joined.settings.dataset_days or None)
    async with joined.spool.receive(caller.workspace) as arrived:
        sent = await read_fit(request, arrived, name, joined.executors.store.of(caller.workspace))
        submit = functools.partial(_submit, joined, caller, sent, arrived, kind, keeping, key)
        executors = joined.executors
        executor = executors.query if sent.arrays_type is None else executors.inspect
        fit, is_known = await executor.run(caller.workspace, submit)
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
    """List the fits of the caller's workspace, optionally by calibrator or status."""
    after, workspace = time_place(cursor), caller.workspace
    with joined.database.read() as store:
        shown = store.fits.affordable(workspace, limit, after, calibrator=calibrator, status=status)
        found = store.fits.page(workspace, shown + 1, after, calibrator=calibrator, status=status)
    return json_response(paged(found, shown, FitOut.of, lambda fit: (fit.created_at, fit.id)))


@router.get("/fits/{id}", response_model=FitOut, summary="Get a fit and its progress")
async def get_fit(
    request: Request,
    joined: Joined,
    caller: Caller,
    id: openapi.FitId,
    prefer: Annotated[str | None, Header(max_length=200)] = None,
) -> Response:
    """Return a fit; with `Prefer: wait=10`, wait up to 10 seconds for it to finish."""
    fit = await joined.executors.query.run(caller.workspace, _find, joined, caller, id)
    fit, wait = await _finished(request, joined, caller, fit, prefer)
    return _answer(fit, 200, {"Preference-Applied": f"wait={wait}"} if wait else {})


@router.get(
    "/fits/{id}/events",
    summary="Stream progress as server-sent events",
    response_class=StreamingResponse,
    responses=EVENTS,
)
async def fit_events(
    request: Request, joined: Joined, caller: Caller, id: openapi.FitId
) -> Response:
    """Stream an event per change: `queued`, `running`, then `succeeded`, `failed` or `cancelled`.

    The stream ends when the fit ends or the key is revoked.
    """
    fit = await joined.executors.query.run(caller.workspace, _find, joined, caller, id)
    return WaitingResponse(
        joined.settings.max_waits_per_key,
        event_stream(joined.watcher, fit, lambda: joined.keys.check(caller), request.scope),
        media_type="text/event-stream",
    )


@router.delete("/fits/{id}", summary="Cancel a fit")
def cancel_fit(joined: Joined, caller: Caller, id: openapi.FitId) -> FitOut:
    """Cancel a queued fit at once, or a running one within seconds; 409 if it has finished."""
    with joined.database.write() as store:
        return FitOut.of(fits.cancel(store, caller, id))


def _submit(
    joined: Parts,
    caller: Principal,
    sent: SentFit,
    arrived: SpooledBody,
    kind: KindName | None,
    keeping: Retention,
    key: str | None,
) -> tuple[Fit, bool]:
    """Return the submitted fit, and True if an earlier request with the same key submitted it."""
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
    except NotFound:  # identical content was stored for another fit only, which has since ended
        return submitted(added()), False


def _find(joined: Parts, caller: Principal, id: str) -> Fit:
    with joined.database.read() as store:
        return fits.find(store, caller, id)


async def _finished(
    request: Request, joined: Parts, caller: Principal, fit: Fit, prefer: str | None
) -> tuple[Fit, int]:
    """Wait for the fit if the Prefer header requests it; return it and the granted seconds.

    A caller with too many waiting requests gets the response at once, because waiting is optional.
    """
    wait = _wait(prefer)
    if not wait:
        return fit, 0
    try:
        async with waiting(request.scope, joined.settings.max_waits_per_key):
            fit = await joined.watcher.finished(fit, wait)
    except TooMany:
        return fit, 0
    joined.keys.check(caller)
    return fit, wait


def _wait(prefer: str | None) -> int:
    """Return the seconds to wait according to a Prefer header, at most a minute."""
    found = WAIT.search(prefer or "")
    return min(int(found[1]), LONGEST_WAIT) if found else 0


def _answer(fit: Fit, status: int, headers: dict[str, str]) -> JSONResponse:
    if fit.status is FitStatus.SUCCEEDED and status == 201:
        headers = {**headers, "Content-Location": headers["Location"]}
    return JSONResponse(FitOut.of(fit).model_dump(mode="json"), status, headers)


@dataclass(frozen=True)
class SentFit:
    """A checked request, with the media type of its arrays if it contains any."""

    request: FitRequest
    arrays_type: str | None


async def read_fit(request: Request, arrived: SpooledBody, name: str, run: Runner) -> SentFit:
    """Read and check a request, then write its arrays to ``arrived``.

    ``run`` parses and checks in a thread, because the time this takes depends on the input.
    """
    content_type = request.headers.get("content-type", "")
    if media_type(request.scope) != JSON:
        fit = await run(lambda: _request(_checked(_from_query(request), "query"), name))
        await spool(request, arrived, run)
        return SentFit(replace(fit, dataset=arrived.sha256), content_type)
    for field in request.query_params:
        if field not in ARRAY_OPTIONS:
            raise Invalid("invalid_request", f"query.{field[:40]}: must be in the JSON body")
    fit, arrays = await parse(request, _from_body, await request.body(), name)
    if arrays is None:
        return SentFit(fit, None)
    await run(arrived.write, arrays)
    return SentFit(replace(fit, dataset=arrived.sha256), JSON)


def _from_body(body: bytes, name: str) -> tuple[FitRequest, bytes | None]:
    """Return the request in a JSON body, and its arrays if it has any."""
    document, arrays = _split(body)
    checked = _checked(document, "body")
    if arrays is None and checked.dataset is None:
        raise Invalid(
            "no_dataset", "the request has no data: send a dataset id, or logits and labels"
        )
    if arrays is not None and checked.dataset is not None:
        raise Invalid("two_datasets", "send a dataset id or logits and labels, but not both")
    return _request(checked, name), arrays


def _split(body: bytes) -> tuple[dict[str, Any], bytes | None]:
    """Split a JSON body into plain fields and arrays."""
    document = json_body.parse(body)
    if not isinstance(document, dict):
        raise Invalid("invalid_request", "the body must be a JSON object")
    arrays = {name: document.pop(name) for name in ARRAYS if name in document}
    json_body.check_shape(document, MAX_BODY_COST)
    json_body.check_shape(arrays, json_body.MAX_COST, MAX_ARRAY_DEPTH)
    return document, orjson.dumps(arrays) if arrays else None


def _from_query(request: Request) -> dict[str, Any]:
    """Return the fields of a fit from the query, for requests whose body is not JSON."""
    fields: dict[str, Any] = {}
    methods: list[str] = []
    for name, value in request.query_params.multi_items():
        if name in ARRAY_OPTIONS:
            continue
        if name == "method":
            methods.append(value)
        elif name in fields:
            raise Invalid("invalid_request", f"query.{name}: must not be repeated")
        elif name in (*TEXTS, *NUMBERS, *DOCUMENTS):
            fields[name] = _value(name, value)
        else:
            known = ", ".join(("method", *NUMBERS, *DOCUMENTS, *TEXTS, *ARRAY_OPTIONS))
            raise Invalid("invalid_request", f"query.{name[:40]}: unknown; must be one of {known}")
    if len(methods) == 1:
        return fields | {"method": methods[0]}
    return fields | {"methods": [{"method": one} for one in methods]} if methods else fields


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


def _request(body: FitIn, name: str) -> FitRequest:
    spec = FitSpec(
        methods=_methods(body),
        seed=body.seed,
        held_out=body.held_out,
        model=body.model,
        tags=body.tags,
        description=body.description,
    )
    request = FitRequest(name, spec, body.dataset or "", body.evaluation, body.device)
    request.check()
    return request


def _methods(body: FitIn) -> list[MethodSpec]:
    if body.methods is not None:
        if body.method is not None or body.params is not None:
            raise Invalid("two_methods", "send method and params or methods, but not both")
        return [MethodSpec(one.method, one.params) for one in body.methods]
    return [MethodSpec(body.method or DEFAULT_METHOD, body.params or {})]
