"""The API reference: an OpenAPI document as one page that needs nothing else."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from service.web.operations import operations_of
from service.web.rendering import environment

router = APIRouter(include_in_schema=False)


@router.api_route("/docs", methods=["GET", "HEAD"], response_class=HTMLResponse)
def reference(request: Request) -> HTMLResponse:
    """The reference of the app that answers, rendered once."""
    state = request.app.state
    if not hasattr(state, "reference_page"):
        state.reference_page = reference_page(request.app.openapi())
    return HTMLResponse(state.reference_page)


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
