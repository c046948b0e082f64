"""The OpenAPI document: what FastAPI derives, the hand-written routes, keys and problems."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from service.fits.schemas import FitIn
from service.http import openapi_bodies
from service.http.middleware.auth import PUBLIC
from service.http.openapi_examples import EXAMPLES
from service.runs.examples import RUN_EXAMPLES

METHODS = ("get", "head", "post", "put", "patch", "delete")
PROBLEM = {
    "type": "object",
    "description": "An error (RFC 9457); `code` is stable, `detail` is a sentence for people.",
    "required": ["type", "title", "status", "detail", "code"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string"},
        "request_id": {"type": ["string", "null"]},
    },
    "example": {
        "type": "urn:calibrd:problem:no_such_calibrator",
        "title": "No such calibrator",
        "status": 404,
        "detail": "there is no calibrator 'fashon'",
        "code": "no_such_calibrator",
        "request_id": "8c1f0a2b6d3e-1f",
    },
}
PROBLEM_ANSWER = {"description": "An error", **openapi_bodies.PROBLEM}


def complete_document(
    app: FastAPI, plain_paths: dict[str, Any], models: Sequence[type[BaseModel]]
) -> None:
    """Let ``app.openapi()`` give the whole document, with plain routes and their models."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app, plain_paths, models)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _document(
    app: FastAPI, plain_paths: dict[str, Any], models: Sequence[type[BaseModel]]
) -> dict[str, Any]:
    made = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
    for operation in _operations(made["paths"]):
        # FastAPI's own form of a validation error, which problems take the place of
        operation["responses"].pop("422", None)
    made["paths"] |= deepcopy(plain_paths)
    schemas = made["components"]["schemas"]
    schemas["Problem"] = PROBLEM
    schemas |= {model.__name__: model.model_json_schema() for model in models}
    wanted = FitIn.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas.update(wanted.pop("$defs"))
    wanted["properties"] |= openapi_bodies.ARRAYS
    schemas["FitIn"] = wanted
    for name, example in (EXAMPLES | RUN_EXAMPLES).items():
        schemas[name]["examples"] = [example]
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    made["components"]["securitySchemes"] = {
        "key": {"type": "http", "scheme": "bearer", "description": "A key: cal_<id>_<secret>"}
    }
    for path, item in made["paths"].items():
        for operation in _operations({path: item}):
            if not path.startswith("/v2"):
                operation["responses"].setdefault("default", PROBLEM_ANSWER)
            if path not in PUBLIC:
                operation["security"] = [{"key": []}]
    return made


def _operations(paths: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The operations of paths, without what a path says of all of its operations."""
    for item in paths.values():
        yield from (item[method] for method in METHODS if method in item)
