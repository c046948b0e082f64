"""What a fit's request asks: all in JSON, or arrays in the body and the rest in the query."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from calibrators.registry import DEFAULT_METHOD
from service.concurrency.thread_pools import Runner
from service.datasets.spool import SpooledBody, spool
from service.errors import Invalid, Malformed
from service.fits.schemas import FitIn
from service.fits.service import FitOrder, FitRequest, MethodOrder
from service.http import json_body
from service.http.callers import parse
from service.http.strict_route import MOST_BODY_COST

JSON = "application/json"
ARRAYS = ("logits", "probabilities", "values", "labels", "segments")
OF_THE_ARRAYS = ("kind", "delete_after_fit")
TEXTS = ("model", "device", "description", "evaluation")
NUMBERS = {"seed": int, "held_out": float}
DOCUMENTS = ("params", "tags")


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
    try:
        return document, orjson.dumps(arrays) if arrays else None
    except TypeError as error:  # lists in lists in lists, beyond what JSON is written for
        raise Invalid("not_an_array", "arrays must be lists of numbers or of rows") from error


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
