"""The API reference: an OpenAPI document as one page that needs nothing else."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from service.web.operations import operations_of, slug

router = APIRouter(include_in_schema=False)


@router.api_route("/docs", methods=["GET", "HEAD"], response_class=HTMLResponse)
def reference(request: Request) -> HTMLResponse:
    """The reference of the app that answers, rendered once."""
    state = request.app.state
    if not hasattr(state, "reference_page"):
        state.reference_page = reference_page(request.app.openapi())
    return HTMLResponse(state.reference_page)


@router.api_route("/", methods=["GET", "HEAD"])
def root() -> RedirectResponse:
    """From the bare address to the reference."""
    return RedirectResponse("/docs")


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


@cache
def environment() -> Environment:
    """Renders the pages; every string is escaped."""
    made = Environment(
        loader=PackageLoader("service.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(prose=_prose, words=_words, slug=slug, breakable=_breakable)
    return made


def _prose(text: str) -> Markup:
    """Paragraphs."""
    parts = (one for one in re.split(r"\n\s*\n", str(text)) if one.strip())
    return Markup("\n").join(Markup("<p>{}</p>").format(_words(one)) for one in parts)


def _words(text: str) -> Markup:
    """Text in which backticks make code."""
    parts = re.split(r"``?([^`]+)``?", str(text).strip())
    code = Markup("<code>{}</code>")
    return Markup("").join(
        code.format(part) if place % 2 else part for place, part in enumerate(parts)
    )


def _breakable(path: str) -> Markup:
    """A path that narrow screens may break after its slashes."""
    return Markup("/<wbr>").join(path.split("/"))
