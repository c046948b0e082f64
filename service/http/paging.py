"""Paginated lists; an opaque cursor marks where the next page begins."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from math import isfinite
from typing import Annotated, Any, Generic, TypeVar

from fastapi import Query, Response
from pydantic import BaseModel

from service.errors import Invalid
from service.http.schemas import Body
from service.storage.repository import After

Item = TypeVar("Item")
Out = TypeVar("Out")

Limit = Annotated[int, Query(ge=1, le=200, description="maximum number of items")]
Cursor = Annotated[
    str | None,
    Query(max_length=400, description="`next` of the previous page; omit for the first page"),
]


class Page(Body, Generic[Out]):
    """A page of a list; ``next`` is the cursor of the following page, null on the last."""

    items: list[Out]
    next: str | None


def paged(
    found: Sequence[Item], limit: int, shape: Callable[[Item], Out], place: Callable[[Item], Any]
) -> Page[Out]:
    """Return a page of at most ``limit`` items; ``found`` has one more if another page follows."""
    has_next = len(found) > limit
    items = found[:limit]
    cursor = _cursor(place(items[-1])) if has_next else None
    return Page(items=[shape(one) for one in items], next=cursor)


def json_response(answer: BaseModel) -> Response:
    """Return a large response as JSON, serialised on the calling thread, not on the event loop."""
    return Response(answer.model_dump_json(by_alias=True), media_type="application/json")


def _cursor(place: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode().rstrip("=")


def _place(cursor: str | None) -> Any:
    if cursor is None:
        return None
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        return json.loads(base64.b64decode(padded.encode("ascii"), b"-_", validate=True))
    except (binascii.Error, ValueError, RecursionError) as error:
        raise _bad_cursor() from error


def time_place(cursor: str | None) -> After | None:
    """Decode the cursor of a list ordered by time."""
    place = _place(cursor)
    if place is None:
        return None
    match place:
        case [float() as created_at, str() as id] if isfinite(created_at) and id.isprintable():
            return After(created_at, id)
    raise _bad_cursor()


def number_place(cursor: str | None) -> int | None:
    """Decode the cursor of a list ordered by number."""
    place = _place(cursor)
    if place is not None and not (type(place) is int and 0 <= place < 2**31):
        raise _bad_cursor()
    return place


def name_place(cursor: str | None) -> str | None:
    """Decode the cursor of a list ordered by name."""
    place = _place(cursor)
    if place is not None and not (isinstance(place, str) and place.isprintable()):
        raise _bad_cursor()
    return place


def _bad_cursor() -> Invalid:
    return Invalid("bad_cursor", "invalid cursor: send `next` of this list's previous page")
