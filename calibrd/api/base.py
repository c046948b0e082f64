"""What all calls need: the connection, and how to ask over it."""

from __future__ import annotations

import json
import math
import reprlib
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from calibrd.api.references import Reference
from calibrd.errors import NotCalibrd
from calibrd.models import Alias, Record
from calibrd.transport.connection import Connection, given, path
from calibrd.transport.flows import Answer, Flow, Send
from calibrd.transport.response_bodies import MOST_BYTES
from calibrd.transport.responses import document_of, page_of, record_of

PAGE = 200
MOST_PAGES = 10_000
# what makes no difference when it is done twice
REPEATABLE = ("GET", "HEAD", "PUT", "DELETE")


class Asking:
    """A client as its calls see it."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    @property
    def url(self) -> str:
        """Where the service is."""
        return self.connection.url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def ask(
        self,
        method: str,
        *place: object,
        body: Any = None,
        content: bytes | None = None,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        repeatable: bool | None = None,
        look: str = "",
        patience: float | None = None,
        most_bytes: int = MOST_BYTES,
    ) -> Flow[Answer]:
        """The answer to a request at ``/v1/`` and its place; raises what it tells of.

        What is not ``repeatable`` is sent once; ``look`` says where to see whether it was done. An
        answer of more than ``most_bytes`` is NotCalibrd.
        """
        sent = dict(headers or {})
        if body is not None:
            content = _as_json(body)
            sent["Content-Type"] = "application/json"
        step = Send(
            method, path(*place), content, query or {}, sent, timeout, most_bytes=most_bytes
        )
        again = method in REPEATABLE if repeatable is None else repeatable
        return self.connection.ask(step, repeatable=again, look=look, patience=patience)

    def ask_for(
        self, kind: type[Record], method: str, *place: object, **asked: Any
    ) -> Flow[Record]:
        """The record that a request is answered with."""
        answer = yield from self.ask(method, *place, **asked)
        return record_of(kind, document_of(answer))

    def ask_for_all(
        self, kind: type[Record], *place: object, limit: int | None, **query: Any
    ) -> Flow[list[Record]]:
        """The records of a list, page by page, at most ``limit`` of them."""
        found: list[Record] = []
        cursor: str | None = None
        for _ in range(MOST_PAGES):
            if limit is not None and len(found) >= limit:
                return found[:limit]
            most = PAGE if limit is None else min(PAGE, limit - len(found))
            asked = given(limit=most, cursor=cursor, **query)
            answer = yield from self.ask("GET", *place, query=asked)
            page, cursor = page_of(kind, answer)
            found += page
            if cursor is None:
                return found[:limit]
            if not page:
                raise NotCalibrd("the answer is an empty page of a list that goes on")
        raise NotCalibrd(f"the list does not end after {MOST_PAGES:,} pages")

    def number_at(self, ref: Reference, **asked: Any) -> Flow[int]:
        """The number of the version that a reference means now."""
        if ref.number is not None:
            return ref.number
        place = ("calibrators", ref.name, "aliases", ref.ref)
        alias = yield from self.ask_for(Alias, "GET", *place, **asked)
        return alias.version


def _as_json(body: Any) -> bytes:
    try:
        return json.dumps(body, allow_nan=False, default=_plain).encode()
    except ValueError as error:
        try:
            place, number = next(_not_finite(body))
        except (StopIteration, RecursionError):
            raise error from None
        raise ValueError(f"{place} must be a finite number, got {number}") from None


def _not_finite(value: Any, place: str = "") -> Iterator[tuple[str, float]]:
    """Numbers that JSON has no form for, and where they are.

    >>> list(_not_finite({"params": [{"budget": math.inf}]}))
    [('params[0].budget', inf)]
    """
    match value:
        case float() | np.floating() if not math.isfinite(value):
            yield place, float(value)
        case Mapping():
            for name, one in value.items():
                yield from _not_finite(one, f"{place}.{name}" if place else str(name))
        case list() | tuple():
            for number, one in enumerate(value):
                yield from _not_finite(one, f"{place}[{number}]")


def _plain(value: Any) -> Any:
    """A number of numpy as one of Python."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{reprlib.repr(value)} of {type(value).__name__} cannot be sent as JSON")


def once() -> dict[str, str]:
    """The header that makes a request safe to send again."""
    return {"Idempotency-Key": secrets.token_hex(16)}
