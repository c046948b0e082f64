"""The OpenAPI document: FastAPI's output, hand-written descriptions and security."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema
from starlette.routing import BaseRoute

from service.fits.schemas import FitIn
from service.http.middleware.auth import PUBLIC
from service.http.schemas import Body, ProblemOut

REFERENCE = "#/components/schemas/{model}"
SECURITY = {"key": {"type": "http", "scheme": "bearer", "description": "A key: cal_<id>_<secret>"}}


def complete_document(
    app: FastAPI, plain_paths: dict[str, Any], described: Sequence[BaseRoute]
) -> None:
    """Make ``app.openapi()`` return the complete document.

    ``plain_paths`` are hand-written; ``described`` are unmounted FastAPI routes that only document
    plain routes of the app.
    """

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app, plain_paths, described)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _document(
    app: FastAPI, plain_paths: dict[str, Any], described: Sequence[BaseRoute]
) -> dict[str, Any]:
    routes = [*app.routes, *described]
    document = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=routes)
    document["paths"] |= deepcopy(plain_paths)
    # no FastAPI route refers to these models
    _, extra = models_json_schema(
        [(ProblemOut, "serialization"), (FitIn, "validation")], ref_template=REFERENCE
    )
    schemas = document["components"]["schemas"]
    schemas |= extra["$defs"]
    for body in _bodies(Body):
        name = re.sub(r"\W", "_", body.__name__)
        if name in schemas:
            with suppress(LookupError):  # nested in other bodies, whose examples include it
                schemas[name]["examples"] = [body.example()]
    document["components"]["securitySchemes"] = SECURITY
    for path, item in document["paths"].items():
        for method, operation in item.items():
            if method != "parameters" and path not in PUBLIC:
                operation["security"] = [{"key": []}]
    return document


def _bodies(kind: type[Body]) -> Iterator[type[Body]]:
    """Yield every declared body, including form bodies of pages."""
    for body in kind.__subclasses__():
        yield body
        yield from _bodies(body)
