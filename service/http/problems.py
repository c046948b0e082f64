"""Error responses: problem+json (RFC 9457), and ``{"error": ...}`` under /v2.

The status of a code is in calibrators/error_codes.py. ``install_problems`` handles errors of an
app's routes; ``LastResort`` handles errors of raw ASGI apps and middleware.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import orjson
import structlog
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import DBAPIError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from calibrators.error_codes import status_of, title_of
from calibrators.errors import CalibrationError, DataError
from service import errors
from service.http.openapi import NAME_PATTERN
from service.names import RULE
from service.storage.database import DATABASE_DOWN

RETRY_AFTER_SECONDS = 2
MAX_FIELD_ERRORS = 20
SENTENCE_ERRORS = 2  # in the sentence; the others are in the list
NOT_AN_OBJECT = ("model_attributes_type", "dict_type")
MAX_FIELD_LENGTH = 64
MAX_CAUSES = 20

_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
_log = structlog.get_logger("calibrd.api")


@dataclass(frozen=True)
class Problem:
    """An error as reported to the client, before serialisation."""

    code: str
    detail: str
    details: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    unlisted_status: int = 500  # for codes that are not in the table

    @property
    def status(self) -> int:
        """The HTTP status of the code."""
        return status_of(self.code, self.unlisted_status)


def problem_response(scope: Scope, error: Exception) -> Response:
    """Return the response to a request that ended in ``error``; log unexpected errors."""
    problem = problem_of(scope, error)
    if isinstance(error, errors.Damaged | errors.Unusable):
        pass  # not a bug; the code that raised the error has already logged the blob
    elif problem.status == HTTPStatus.INTERNAL_SERVER_ERROR:
        _log_unexpected(scope, error)
    elif isinstance(error, DATABASE_DOWN):
        _log_database(scope, error)
    _drop_tracebacks(error)
    return _response(scope, problem)


def _drop_tracebacks(error: BaseException | None) -> None:
    """Drop the tracebacks of an error that has been handled.

    The framework's frames refer to the errors that they raise, which is a reference cycle. It would
    keep the body of every rejected request in memory until the garbage collector runs.
    """
    for _ in range(MAX_CAUSES):
        if error is None:
            return
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def install_problems(app: Starlette) -> None:
    """Turn every exception in a route of ``app`` into a problem response.

    Wrap the app in ``LastResort`` as well: it handles exceptions in middleware, and keeps the
    server from logging a traceback that has been logged here.
    """
    known = (errors.ServiceError, CalibrationError, RequestValidationError, HTTPException)
    for kind in (*known, ClientDisconnect, *DATABASE_DOWN, Exception):
        app.add_exception_handler(kind, _handle)


class LastResort:
    """Raw ASGI middleware that turns every exception that reaches it into a problem response."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app; send a problem if it raises before its response has started."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False

        async def tracking_send(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self.app(scope, receive, tracking_send)
        except asyncio.CancelledError:
            # the server is shutting down and has stopped waiting for this request; if the
            # cancellation were re-raised, it would be logged as an error of the app
            if not started:
                await problem_response(scope, _shutting_down())(scope, receive, send)
        except Exception as error:  # noqa: BLE001 - nothing may escape
            if not started:
                await problem_response(scope, error)(scope, receive, send)
            elif not isinstance(error, ClientDisconnect):
                _log_unexpected(scope, error)


def _shutting_down() -> errors.Unavailable:
    return errors.Unavailable(
        "shutting_down", "the service is shutting down and could not finish this request: try again"
    )


async def _handle(request: Request, error: Exception) -> Response:
    return problem_response(request.scope, error)


def problem_of(scope: Scope, error: Exception) -> Problem:
    """Convert an error to the problem that is reported to the client."""
    match error:
        case errors.ServiceError():
            return _of_service_error(error)
        case DataError(rows=int()):
            place = {"rows": error.rows, "first": error.first}
            return Problem(error.code, str(error), place, unlisted_status=422)
        case CalibrationError():
            return Problem(error.code, str(error), unlisted_status=422)
        case RequestValidationError():
            return _of_validation_error(scope, error)
        case HTTPException():
            return _of_http_exception(scope, error)
        case ClientDisconnect():
            return Problem("truncated_body", "the connection closed before the body was complete")
        case _ if isinstance(error, DATABASE_DOWN):
            sentence = "the database is not responding at the moment: try again"
            return Problem("database_unavailable", sentence, headers=_retry_after({}))
        case _:
            sentence = (
                "an internal error occurred; it was logged under the request id"
                f" {scope.get('request_id')}"
            )
            return Problem("internal_error", sentence)


def _of_service_error(error: errors.ServiceError) -> Problem:
    headers: Mapping[str, str] = {}
    if error.status == HTTPStatus.UNAUTHORIZED:
        headers = {"WWW-Authenticate": "Bearer"}
    elif error.status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        headers = _retry_after(error.details)
    return Problem(error.code, error.message, error.details, headers)


def _retry_after(details: Mapping[str, Any]) -> dict[str, str]:
    return {"Retry-After": str(details.get("retry_after", RETRY_AFTER_SECONDS))}


def _of_validation_error(scope: Scope, error: RequestValidationError) -> Problem:
    found = error.errors()
    if any(item["type"] == "json_invalid" for item in found):
        position = next((part for part in found[0]["loc"] if isinstance(part, int)), None)
        return _malformed_json({} if position is None else {"position": position})
    is_json = _media_type(scope).endswith("json")
    broken = [
        {"field": _field_name(item["loc"]), "rule": _rule(item, is_json)}
        for item in found[:MAX_FIELD_ERRORS]
    ]
    sentence = "; ".join(f"{one['field']}: {one['rule']}" for one in broken[:SENTENCE_ERRORS])
    if len(found) > SENTENCE_ERRORS:
        sentence += f"; and {len(found) - SENTENCE_ERRORS} more"
    is_name = [_is_name(item) for item in found]
    code = "bad_name" if is_name and all(is_name) else "invalid_request"
    sentence = sentence or "the request is invalid"
    return Problem(code, sentence, {"errors": broken, "error_count": len(found)})


def _media_type(scope: Scope) -> str:
    for name, value in scope.get("headers", ()):
        if name == b"content-type":
            return str(value, "latin-1").partition(";")[0].strip().lower()
    return ""


def _is_name(item: Mapping[str, Any]) -> bool:
    """Return whether an error concerns an object's name in the path."""
    is_pattern = item["type"] == "string_pattern_mismatch"
    return bool(is_pattern and item["loc"][0] == "path" and item["ctx"]["pattern"] == NAME_PATTERN)


def _malformed_json(details: Mapping[str, Any]) -> Problem:
    sentence = "the body is not valid JSON: send one UTF-8 JSON value and nothing after it"
    return Problem("malformed_json", sentence, details)


def _field_name(location: tuple[int | str, ...]) -> str:
    # the client may have chosen this name, so it is truncated and reduced to ASCII
    parts = (str(part).encode("ascii", "replace").decode() for part in location)
    return ".".join(part[:MAX_FIELD_LENGTH] for part in parts)


def _rule(item: Mapping[str, Any], is_json: bool) -> str:
    if item["loc"] == ("body",) and item["type"] in NOT_AN_OBJECT and not is_json:
        return "the body was not read as JSON: send the header Content-Type: application/json"
    if _is_name(item):
        return f"must be {RULE}"
    if item["type"] == "union_tag_invalid":  # pydantic's only message that quotes the input
        return f"must have one of these tags: {item['ctx']['expected_tags']}"
    rule = str(item["msg"]).removeprefix("Value error, ")
    return rule[:1].lower() + rule[1:]


def _of_http_exception(scope: Scope, error: HTTPException) -> Problem:
    status = error.status_code
    headers = dict(error.headers or {})
    match error.__cause__:
        case errors.ServiceError() as cause:
            return _of_service_error(cause)
        case ClientDisconnect() as cause:
            return problem_of(scope, cause)
        case ValueError() | RecursionError() if status == HTTPStatus.BAD_REQUEST:
            return _malformed_json({})
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = _allowed_methods(scope) or headers.get("Allow", "")
        sentence = f"this path does not support that method; it supports {allowed}"
        return Problem("method_not_allowed", sentence, headers={"Allow": allowed})
    phrase = HTTPStatus(status).phrase
    if status == HTTPStatus.NOT_FOUND and error.detail == phrase:
        return Problem("no_such_route", "there is no such path; /docs lists all paths")
    code = phrase.lower().replace(" ", "_").replace("-", "_")
    return Problem(code, str(error.detail), headers=headers, unlisted_status=status)


def _allowed_methods(scope: Scope) -> str:
    """Return all methods that the path supports; the router only knows its first match."""
    router = scope.get("router")
    if not isinstance(router, Router):
        return ""
    root_path = scope.get("app_root_path", scope.get("root_path", ""))
    request = {key: scope[key] for key in ("type", "path", "headers")} | {"root_path": root_path}
    # narrow the routes down by path first, then try every method on those few
    routes = [
        route
        for route in router.routes
        if route.matches({**request, "method": "GET"})[0] is not Match.NONE
    ]
    allowed = []
    for method in _METHODS:
        matches = (route.matches({**request, "method": method})[0] for route in routes)
        if Match.FULL in matches:
            allowed.append(method)
    return ", ".join(allowed)


def _response(scope: Scope, problem: Problem) -> Response:
    path = scope["path"]
    if path == "/v2" or path.startswith("/v2/"):
        content = _json({"error": problem.detail}, {"error": _ascii(problem.detail)})
        media_type = "application/json"
    else:
        members = {
            "type": f"urn:calibrd:problem:{problem.code}",
            "title": title_of(problem.code),
            "status": problem.status,
            "detail": problem.detail,
            "code": problem.code,
            "request_id": scope.get("request_id"),
        }
        # the members come first, and no detail may replace one of them
        content = _json(
            {**members, **problem.details, **members},
            {**members, "detail": _ascii(problem.detail)},
        )
        media_type = "application/problem+json"
    return Response(content, problem.status, dict(problem.headers), media_type)


def _json(body: Mapping[str, Any], fallback: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(body, default=str, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:  # half a surrogate pair, or an integer of more than 64 bits
        return orjson.dumps(fallback, default=str)


def _ascii(text: str) -> str:
    return text.encode("ascii", "replace").decode()


def _log_unexpected(scope: Scope, error: Exception) -> None:
    # the app's handler re-raises an error after responding: log it only once
    if scope.get("logged_error") is error:
        return
    scope["logged_error"] = error
    _log.error(
        "internal_error",
        request_id=scope.get("request_id"),
        method=scope.get("method"),
        path=scope["path"],
        exc_info=(type(error), error, error.__traceback__),
    )


def _log_database(scope: Scope, error: Exception) -> None:
    cause = error.orig if isinstance(error, DBAPIError) else error
    _log.error(
        "database_unavailable",
        request_id=scope.get("request_id"),
        error=type(cause).__name__,
        reason=str(cause),
    )
