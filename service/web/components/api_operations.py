"""What the reference says of each operation, read from an OpenAPI document."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from itertools import groupby
from typing import Any

from service.web.components.curl import curl_line
from service.web.components.json_schemas import Field, Schemas, Shape

METHODS = ("get", "head", "post", "put", "patch", "delete", "options", "trace")
UNTAGGED = "other"
UNSAID = "Successful Response"  # FastAPI's word for an answer that nobody described


@dataclass(frozen=True, slots=True)
class ApiBody:
    """What is sent or answered in one media type."""

    media_type: str
    shapes: tuple[Shape, ...]
    examples: tuple[tuple[str, str], ...]

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing to unfold."""
        return not self.examples and not any(one.fields for one in self.shapes)


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    """Statuses that have the same body and headers."""

    statuses: tuple[tuple[str, str], ...]
    bodies: tuple[ApiBody, ...]
    headers: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class ApiOperation:
    """All that the page says of one method of one path."""

    method: str
    path: str
    tag: str
    summary: str
    description: str
    is_public: bool
    parameters: tuple[Field, ...]
    body_description: str
    bodies: tuple[ApiBody, ...]
    answers: tuple[ApiAnswer, ...]
    curl: str

    @property
    def anchor(self) -> str:
        """Its id within the page."""
        return slug(f"{self.method} {self.path}")


def operations_of(document: dict[str, Any]) -> Iterator[ApiOperation]:
    """Every operation of an OpenAPI document."""
    schemas = Schemas(document)
    for path, item in document.get("paths", {}).items():
        for method in METHODS:
            if method in item:
                shared = item.get("parameters", ())
                yield _operation(schemas, path, method, item[method], shared)


def _operation(
    schemas: Schemas, path: str, method: str, said: dict[str, Any], shared: Any
) -> ApiOperation:
    parameters = [schemas.resolved(one) for one in (*shared, *said.get("parameters", ()))]
    body = schemas.resolved(said.get("requestBody"))
    is_public = not said.get("security")
    return ApiOperation(
        method=method,
        path=path,
        tag=(said.get("tags") or [UNTAGGED])[0],
        summary=said.get("summary", ""),
        description=said.get("description", ""),
        is_public=is_public,
        parameters=tuple(_parameter(schemas, one) for one in parameters),
        body_description=body.get("description", ""),
        bodies=_bodies(schemas, body),
        answers=tuple(_answers(schemas, said.get("responses", {}))),
        curl=curl_line(
            method,
            path,
            [(one["in"], one["name"], _value(schemas, one)) for one in _used(schemas, parameters)],
            body=_sent(schemas, body),
            answer=_answered(schemas, said.get("responses", {})),
            needs_key=not is_public,
        ),
    )


def _parameter(schemas: Schemas, said: dict[str, Any]) -> Field:
    return schemas.field(
        said["name"],
        said.get("schema", {}),
        description=said.get("description", ""),
        is_required=bool(said.get("required")),
        place=said["in"],
    )


def _bodies(schemas: Schemas, said: dict[str, Any]) -> tuple[ApiBody, ...]:
    return tuple(
        ApiBody(
            media_type,
            schemas.shapes(one.get("schema", {})),
            tuple((title, _shown(value)) for title, value in _examples(schemas, one)),
        )
        for media_type, one in said.get("content", {}).items()
    )


def _answers(schemas: Schemas, responses: dict[str, Any]) -> Iterator[ApiAnswer]:
    """Responses; neighbours that differ in nothing but their status are one answer."""
    found = []
    for status, one in responses.items():
        said = schemas.resolved(one)
        headers = tuple(
            schemas.field(name, kept.get("schema", {}), description=kept.get("description", ""))
            for name, kept in said.get("headers", {}).items()
        )
        description = said.get("description", "")
        words = _phrase(status) if description == UNSAID else description
        found.append(((status, words), (_bodies(schemas, said), headers)))
    for (bodies, headers), group in groupby(found, key=lambda one: one[1]):
        yield ApiAnswer(tuple(status for status, _ in group), bodies, headers)


def _phrase(status: str) -> str:
    return HTTPStatus(int(status)).phrase if status.isdigit() else ""


def _examples(schemas: Schemas, said: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Titles and values of the examples of a parameter or of a body."""
    if "example" in said:
        yield "", said["example"]
    elif said.get("examples"):
        for title, one in said["examples"].items():
            yield title, schemas.resolved(one).get("value")
    elif schemas.has_example(said.get("schema", {})):
        yield "", schemas.example(said["schema"])


def _value(schemas: Schemas, said: dict[str, Any]) -> Any:
    """An example of a parameter."""
    for _, value in _examples(schemas, said):
        return value
    return schemas.example(said.get("schema", {}), said["name"])


def _used(schemas: Schemas, parameters: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Parameters of the curl line: those that must be there, and queries with an example."""
    for one in parameters:
        if one.get("required") or (one["in"] == "query" and any(_examples(schemas, one))):
            yield one


def _sent(schemas: Schemas, said: dict[str, Any]) -> tuple[str, Any] | None:
    for media_type, one in said.get("content", {}).items():
        if "json" not in media_type:
            return media_type, None
        given = [value for _, value in _examples(schemas, one)]
        return media_type, given[0] if given else schemas.example(one.get("schema", {}))
    return None


def _answered(schemas: Schemas, responses: dict[str, Any]) -> str:
    """The media type of success."""
    for status, one in responses.items():
        if status.startswith("2"):
            return next(iter(schemas.resolved(one).get("content", {})), "")
    return ""


def _shown(value: Any) -> str:
    """An example as text; lists of numbers stay on one line."""
    if isinstance(value, str):
        return value
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return re.sub(r"\[\s+([^][{}\"]*?)\s+\]", lambda found: f"[{' '.join(found[1].split())}]", text)


def slug(text: str) -> str:
    """A text as an id within a page."""
    return re.sub(r"\W+", "-", text.lower()).strip("-")
