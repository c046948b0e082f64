"""The API reference: an OpenAPI document as one page that needs nothing else."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NamedTuple, cast

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import HTMLResponse

from service.web.components.api_operations import operations_of
from service.web.components.templating import environment

router = APIRouter(include_in_schema=False)


@router.api_route("/docs", methods=["GET", "HEAD"], response_class=HTMLResponse)
async def reference(request: Request) -> HTMLResponse:
    """The reference of the app that answers."""
    return HTMLResponse((await _described(request)).page)


@router.api_route("/openapi.json", methods=["GET", "HEAD"])
async def openapi(request: Request) -> Response:
    """The OpenAPI document of the app that answers."""
    return Response((await _described(request)).document, media_type="application/json")


class Described(NamedTuple):
    """The API as an OpenAPI document and as a page, both ready to be sent."""

    document: bytes
    page: bytes


async def _described(request: Request) -> Described:
    """Return the description, made once and off the event loop: it takes tenths of a second."""
    state = request.app.state
    made = getattr(state, "described", None)
    if made is None or (made.done() and (made.cancelled() or made.exception() is not None)):
        state.described = asyncio.create_task(asyncio.to_thread(_describe, request.app))
    return cast(Described, await asyncio.shield(state.described))


def _describe(app: FastAPI) -> Described:
    document = app.openapi()
    return Described(json.dumps(document).encode(), reference_page(document).encode())


def reference_page(document: dict[str, Any]) -> str:
    """An OpenAPI 3.1 document as HTML; every string of it is escaped."""
    operations = list(operations_of(document))
    told = {one["name"]: one.get("description", "") for one in document.get("tags", ())}
    order = list(dict.fromkeys([*told, *(one.tag for one in operations)]))
    groups = [
        (tag, told.get(tag, ""), [one for one in operations if one.tag == tag]) for tag in order
    ]
    template = environment().get_template("reference.html")
    return template.render(info=document["info"], groups=[one for one in groups if one[2]])
