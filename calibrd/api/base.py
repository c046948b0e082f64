"""Base class of the API calls; holds the connection and sends requests."""

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
from calibrd.transport.connection import Connection, drop_none, path
from calibrd.transport.flows import Flow, Response, Send
from calibrd.transport.response_bodies import MAX_BYTES
from calibrd.transport.responses import document_of, page_of, record_of

PAGE = 200
MAX_PAGES = 10_000
# idempotent methods
REPEATABLE = ("GET", "HEAD", "PUT", "DELETE")


class ApiBase:
    """Base class of the call groups, which sends their requests."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    @property
    def url(self) -> str:
        """The URL of the service."""
        return self.connection.url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def request(
        self,
        method: str,
        *place: object,
        body: Any = None,
        content: bytes | None = None,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        repeatable: bool | None = None,
        check_hint: str = "",
        retry_seconds: float | None = None,
        max_bytes: int = MAX_BYTES,
    ) -> Flow[Response]:
        """Send a request to a path below ``/v1/``; return the response, or raise its error.

        A request that is not ``repeatable`` is sent only once; ``check_hint`` then explains how to
        find out whether it succeeded. A response larger than ``max_bytes`` raises NotCalibrd.
        """
        all_headers = dict(headers or {})
        if body is not None:
            content = _as_json(body)
            all_headers["Content-Type"] = "application/json"
        step = Send(
            method, path(*place), content, query or {}, all_headers, timeout, max_bytes=max_bytes
        )
        if repeatable is None:
            repeatable = method in REPEATABLE
        return self.connection.send(
            step, repeatable=repeatable, check_hint=check_hint, retry_seconds=retry_seconds
        )

    def request_record(
        self, kind: type[Record], method: str, *place: object, **options: Any
    ) -> Flow[Record]:
        """Send a request and return the record in its response."""
        response = yield from self.request(method, *place, **options)
        return record_of(kind, document_of(response))

    def request_all(
        self, kind: type[Record], *place: object, limit: int | None, **query: Any
    ) -> Flow[list[Record]]:
        """Request a list page by page and return its records, at most ``limit``."""
        found: list[Record] = []
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            if limit is not None and len(found) >= limit:
                return found[:limit]
            most = PAGE if limit is None else min(PAGE, limit - len(found))
            parameters = drop_none(limit=most, cursor=cursor, **query)
            response = yield from self.request("GET", *place, query=parameters)
            page, cursor = page_of(kind, response)
            found += page
            if cursor is None:
                return found[:limit]
            if not page:
                raise NotCalibrd("the response is an empty page, but claims that more pages follow")
        raise NotCalibrd(f"the list has not ended after {MAX_PAGES:,} pages")

    def number_at(self, ref: Reference, **options: Any) -> Flow[int]:
        """Return the number of the version that a reference points at now."""
        if ref.number is not None:
            return ref.number
        place = ("calibrators", ref.name, "aliases", ref.ref)
        alias = yield from self.request_record(Alias, "GET", *place, **options)
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
    """Yield the path and value of each number that JSON cannot represent.

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
    """Convert a numpy scalar to a Python number."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a {type(value).__name__} cannot be sent as JSON: {reprlib.repr(value)}")


def idempotency_key() -> dict[str, str]:
    """Return a header that makes a request safe to retry."""
    return {"Idempotency-Key": secrets.token_hex(16)}
