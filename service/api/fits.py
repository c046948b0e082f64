"""Routes of fits: order, watch, cancel."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import ValidationError

from service.api import examples
from service.api.arriving import land
from service.api.paging import Cursor, Limit, Page, paged, time_place
from service.api.parts import Caller, Joined, Parts, needs
from service.api.schemas import FitIn, FitOut, KindName, MethodIn
from service.core import fits
from service.core.access import Principal, Scope
from service.core.datasets import Keeping, Landing, landing
from service.core.fits import FitOrder, MethodOrder
from service.core.formats import documents
from service.core.idempotency import check_key
from service.errors import Invalid
from service.storage.records import Fit, FitStatus

router = APIRouter(prefix="/v1", tags=["fits"], dependencies=needs(Scope.FIT))

JSON = "application/json"
ARRAYS = ("logits", "probabilities", "labels")
LONGEST_WAIT = 60
KEEPALIVE_SECONDS = 15.0
WAIT = re.compile(r"(?:^|[,;\s])wait\s*=\s*(\d{1,6})")


@router.post(
    "/calibrators/{name}/fits",
    status_code=202,
    response_model=FitOut,
    summary="Fit a calibrator",
    openapi_extra=examples.FIT_BODY,
    responses=examples.FIT_ANSWERS,
)
async def create_fit(
    request: Request,
    joined: Joined,
    caller: Caller,
    name: examples.Name,
    kind: Annotated[KindName | None, Query(description="of logits sent in this call")] = None,
    delete_after_fit: Annotated[
        bool, Query(description="delete what is sent in this call")
    ] = False,
    prefer: Annotated[str | None, Header(max_length=200)] = None,
    idempotency_key: Annotated[str | None, Header()] = None,
) -> Response:
    """On a dataset that was uploaded before, or on logits and labels sent in this very call.

    JSON: `{"dataset": "ds_...", "method": "smart"}`, or with `logits` and `labels` in place of
    `dataset`. npz or safetensors: the arrays in the body, everything else in the query
    (`?method=smart&seed=1`; `params` and `tags` as JSON). `Prefer: wait=10` answers when the fit is
    finished, 201, or after so many seconds, 202.
    """
    key = check_key(idempotency_key)
    keeping = Keeping(delete_after_fit, joined.settings.dataset_days or None)
    with landing(joined.uploads) as arrived:
        content_type, asked = await _order(request, arrived)
        dataset = asked.dataset
        if content_type is not None:
            added = await asyncio.to_thread(
                joined.datasets.add, caller, arrived, content_type, kind, keeping
            )
            dataset = added.dataset.id
    if dataset is None:
        raise Invalid("no_dataset", "name a dataset, or send logits and labels in this call")
    fit, known = await asyncio.to_thread(_submit, joined, caller, name, asked, dataset, key)
    wait = _wait(prefer)
    if wait:
        fit = await joined.watcher.finished(fit, wait)
    headers = {"Location": f"/v1/fits/{fit.id}"}
    if known:
        headers["Idempotent-Replayed"] = "true"
    if wait:
        headers["Preference-Applied"] = f"wait={wait}"
    return _answer(fit, 201 if fit.status is FitStatus.SUCCEEDED else 202, headers)


@router.get("/fits", summary="List fits, newest first")
def list_fits(
    joined: Joined,
    caller: Caller,
    limit: Limit = 50,
    cursor: Cursor = None,
    calibrator: Annotated[str | None, Query(pattern=examples.NAME_PATTERN)] = None,
    status: FitStatus | None = None,
) -> Page[FitOut]:
    """Fits of the caller's workspace, of one calibrator or one status if named."""
    after = time_place(cursor)
    with joined.database.read() as store:
        found = store.fits.page(
            caller.workspace, limit + 1, after, calibrator=calibrator, status=status
        )
    return paged(found, limit, FitOut.of, lambda fit: (fit.created_at, fit.id))


@router.get("/fits/{id}", response_model=FitOut, summary="A fit and its progress")
async def get_fit(
    joined: Joined,
    caller: Caller,
    id: examples.FitId,
    prefer: Annotated[str | None, Header(max_length=200)] = None,
) -> Response:
    """With `Prefer: wait=10` the answer comes when the fit is finished, or after 10 seconds."""
    fit = await asyncio.to_thread(_find, joined, caller, id)
    wait = _wait(prefer)
    if wait:
        fit = await joined.watcher.finished(fit, wait)
    return _answer(fit, 200, {"Preference-Applied": f"wait={wait}"} if wait else {})


@router.get(
    "/fits/{id}/events",
    summary="Progress as server-sent events",
    response_class=StreamingResponse,
    responses=examples.EVENT_ANSWERS,
)
async def fit_events(joined: Joined, caller: Caller, id: examples.FitId) -> StreamingResponse:
    """An event for each change: `queued`, `running`, then `succeeded`, `failed` or `cancelled`."""
    fit = await asyncio.to_thread(_find, joined, caller, id)
    return StreamingResponse(_events(joined, fit), media_type="text/event-stream")


@router.delete("/fits/{id}", summary="Cancel a fit")
def cancel_fit(joined: Joined, caller: Caller, id: examples.FitId) -> FitOut:
    """A waiting fit is cancelled at once, a running one within seconds; 409 if it is finished."""
    with joined.database.write() as store:
        return FitOut.of(fits.cancel(store, caller, id))


def _submit(
    joined: Parts, caller: Principal, name: str, asked: FitIn, dataset: str, key: str | None
) -> tuple[Fit, bool]:
    order = FitOrder(
        methods=_methods(asked),
        seed=asked.seed,
        held_out=asked.held_out,
        model=asked.model,
        tags=asked.tags,
        description=asked.description,
    )
    with joined.database.write() as store:
        return fits.submit(
            store,
            joined.queue,
            caller,
            name,
            order,
            dataset=dataset,
            evaluation=asked.evaluation,
            device=asked.device,
            key=key,
        )


def _find(joined: Parts, caller: Principal, id: str) -> Fit:
    with joined.database.read() as store:
        return fits.find(store, caller, id)


async def _order(request: Request, arrived: Landing) -> tuple[str | None, FitIn]:
    """What is asked; and the type of the arrays that have landed, None if there are none."""
    content_type = request.headers.get("content-type")
    if content_type is None or content_type.partition(";")[0].strip().lower() != JSON:
        await land(request, arrived)
        return content_type or "", _checked(_from_query(request))
    misplaced = next(iter(_from_query(request)), None)
    if misplaced is not None:
        raise Invalid("invalid_request", f"query.{misplaced[:40]}: belongs into the JSON body")
    document = documents.parse(await request.body())
    if not isinstance(document, dict):
        raise Invalid("invalid_request", "the body must be a JSON object")
    arrays = {name: document.pop(name) for name in ARRAYS if name in document}
    asked = _checked(document)
    if not arrays:
        return None, asked
    if asked.dataset is not None:
        raise Invalid("two_datasets", "name a dataset or send logits and labels, not both")
    await asyncio.to_thread(arrived.write, orjson.dumps(arrays))
    return JSON, asked


def _from_query(request: Request) -> dict[str, Any]:
    """The fields of a fit that came in the query, because the body holds arrays."""
    asked: dict[str, Any] = {}
    for name, value in request.query_params.multi_items():
        if name in ("kind", "delete_after_fit"):
            continue
        if name in asked and name != "method":
            raise Invalid("invalid_request", f"query.{name}: given more than once")
        if name == "method":
            asked.setdefault("methods", []).append({"method": value})
        elif name in ("params", "tags"):
            asked[name] = documents.parse(value.encode())
        elif name in ("seed", "held_out"):
            asked[name] = _number(name, value)
        else:
            asked[name] = value
    methods = asked.get("methods", [])
    if len(methods) == 1:
        asked["method"] = asked.pop("methods")[0]["method"]
    return asked


def _number(name: str, text: str) -> int | float:
    try:
        return int(text) if name == "seed" else float(text)
    except ValueError as error:
        raise Invalid("invalid_request", f"query.{name}: must be a number") from error


def _checked(document: dict[str, Any]) -> FitIn:
    try:
        return FitIn.model_validate(document)
    except ValidationError as error:
        raise RequestValidationError(
            [{**one, "loc": ("body", *one["loc"])} for one in error.errors(include_input=False)]
        ) from None


def _methods(asked: FitIn) -> list[MethodOrder]:
    if asked.methods is not None:
        if asked.method is not None or asked.params is not None:
            raise Invalid("two_methods", "give method and params, or methods, not both")
        return [MethodOrder(one.method, one.params) for one in asked.methods]
    if asked.method is None:
        raise Invalid("no_method", "name a method; GET /v1/methods lists them")
    one = MethodIn(method=asked.method, params=asked.params or {})
    return [MethodOrder(one.method, one.params)]


def _wait(prefer: str | None) -> int:
    """The seconds that a Prefer header asks to wait, at most a minute."""
    found = WAIT.search(prefer or "")
    return min(int(found[1]), LONGEST_WAIT) if found else 0


def _answer(fit: Fit, status: int, headers: dict[str, str]) -> JSONResponse:
    if fit.status is FitStatus.SUCCEEDED and status == 201:
        headers = {**headers, "Content-Location": headers["Location"]}
    return JSONResponse(FitOut.of(fit).model_dump(mode="json"), status, headers)


async def _events(joined: Parts, fit: Fit) -> AsyncIterator[str]:
    changes = joined.watcher.changes(fit)
    coming = asyncio.ensure_future(anext(changes, None))
    try:
        while True:
            done, _ = await asyncio.wait([coming], timeout=KEEPALIVE_SECONDS)
            if not done:
                yield ": still here\n\n"
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
