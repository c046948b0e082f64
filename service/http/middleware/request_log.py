"""The outermost layer: request ids, common response headers, metrics and the access log."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from time import perf_counter
from typing import Any

import structlog
from fastapi.routing import iter_route_contexts
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.http.metrics import Metrics, Record

UNMATCHED = "unmatched"
# statuses of requests that are rejected before they reach their route
REFUSED_EARLY = (401, 403, 408, 411, 413, 415, 429, 503)
CLIENT_LEFT = 499  # recorded if the client disconnected before the response; never sent
QUIET_ENDINGS = ("/predict", "/infer", "/healthz", "/readyz", "/live", "/ready", "/metrics")
PAGE_POLICY = (
    b"default-src 'none'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src data:;"
    b" base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
LONGEST_LOGGED_PATH = 300
_ACCEPTED_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}").fullmatch
_NO_SNIFFING = (b"x-content-type-options", b"nosniff")
_NO_STORE = (b"cache-control", b"no-store")
_PAGE_HEADERS = (
    (b"content-security-policy", PAGE_POLICY),
    (b"referrer-policy", b"no-referrer"),
)
_NOTHING: dict[str, Any] = {}
_log = structlog.get_logger("calibrd.access")
_stdlib_log = logging.getLogger("calibrd.access")


@dataclass(frozen=True, slots=True)
class _Kind:
    """The data shared by all requests of one route, method and status."""

    template: str
    is_quiet: bool
    record: Record


class RequestLog:
    """The outermost raw ASGI middleware.

    It adds ``request_id`` to the scope, and to the response as X-Request-Id. Cache-Control and
    Content-Security-Policy headers that a route sets itself are kept.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self._metrics = metrics
        self._kinds: dict[tuple[str, str, int], _Kind] = {}
        self._prefix = secrets.token_hex(6)
        self._numbers = count(1)
        self._templates: list[tuple[Callable[[str], Any], str]] | None = None
        self._plain_routes: dict[Any, tuple[Any, ...]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app and record the result."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = perf_counter()
        request_id = scope["request_id"] = self._request_id(scope)
        status = CLIENT_LEFT

        async def completing_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                # the app may send the same dictionary again, so it is not modified
                headers = _completed(message.get("headers", ()), request_id)
                message = {**message, "headers": headers}
            await send(message)

        try:
            await self.app(scope, receive, completing_send)
        finally:
            self._record(scope, status, perf_counter() - began)

    def _request_id(self, scope: Scope) -> str:
        for name, value in scope["headers"]:
            if name == b"x-request-id" and _ACCEPTED_ID(value):
                return str(value, "ascii")
        return f"{self._prefix}-{next(self._numbers):x}"

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        method = scope["method"]
        template = self._template(scope)
        if template == UNMATCHED and status in REFUSED_EARLY:
            template = self._refused_template(scope)
        kind = self._kinds.get((template, method, status))
        if kind is None:
            kind = self._new_kind(template, method, status)
        kind.record(seconds)
        if not kind.is_quiet:
            _log.info("request", **_access_fields(scope, kind.template, status, seconds))
        elif _stdlib_log.isEnabledFor(logging.DEBUG):
            _log.debug("request", **_access_fields(scope, kind.template, status, seconds))

    def _template(self, scope: Scope) -> str:
        """Return the path of the matched route as declared, with parameter names."""
        # FastAPI stores the prefix of an included router separately from the route
        context = scope.get("fastapi", _NOTHING).get("effective_route_context")
        if context is not None:
            route = context.starlette_route or context
        else:
            route = scope.get("route") or self._plain_route(scope)
        return str(getattr(route, "path_format", UNMATCHED))

    def _refused_template(self, scope: Scope) -> str:
        """Return the path of the route that a rejected request would have reached."""
        if self._templates is None:
            found = iter_route_contexts(getattr(scope.get("app"), "routes", ()))
            routes: list[Any] = [getattr(one, "starlette_route", None) or one for one in found]
            self._templates = [
                (one.path_regex.match, one.path_format) for one in routes if _has_path(one)
            ]
        path = scope["path"]
        return next((template for match, template in self._templates if match(path)), UNMATCHED)

    def _plain_route(self, scope: Scope) -> Any:
        """Return the Starlette route that matched; FastAPI only provides its endpoint."""
        endpoint = scope.get("endpoint")
        if endpoint is None:
            return None
        routes = self._plain_routes.get(endpoint)
        if routes is None:
            all_routes = getattr(scope.get("app"), "routes", ())
            routes = tuple(route for route in all_routes if _endpoint_of(route) is endpoint)
            self._plain_routes[endpoint] = routes
        if len(routes) == 1:
            return routes[0]
        return next((route for route in routes if route.path_regex.match(scope["path"])), None)

    def _new_kind(self, template: str, method: str, status: int) -> _Kind:
        label = method if method in _METHODS else "OTHER"
        record = self._metrics.recorder(template, label, status)
        kind = _Kind(template, status < 400 and template.endswith(QUIET_ENDINGS), record)
        if label == method:  # methods invented by clients must not fill up the memory
            self._kinds[template, method, status] = kind
        return kind


def _has_path(route: Any) -> bool:
    return hasattr(route, "path_regex") and hasattr(route, "path_format")


def _endpoint_of(route: Any) -> Any:
    return getattr(route, "endpoint", None) or getattr(route, "app", None)


def _completed(headers: Any, request_id: str) -> list[tuple[bytes, bytes]]:
    completed = [*headers, (b"x-request-id", request_id.encode("ascii")), _NO_SNIFFING]
    is_page = has_policy = has_caching = False
    for name, value in headers:
        if name == b"content-type":
            is_page = value.startswith(b"text/html")
        elif name == b"cache-control":
            has_caching = True
        elif name == b"content-security-policy":
            has_policy = True
    if not has_caching:
        completed.append(_NO_STORE)
    if is_page and not has_policy:
        completed.extend(_PAGE_HEADERS)
    return completed


def _access_fields(scope: Scope, template: str, status: int, seconds: float) -> dict[str, Any]:
    fields = {
        "method": scope["method"],
        "route": template,
        "path": scope["path"][:LONGEST_LOGGED_PATH],
        "status": status,
        "milliseconds": round(seconds * 1000, 3),
        "request_id": scope["request_id"],
    }
    client = scope.get("client")
    if client is not None:
        fields["client"] = client[0]
    principal = scope.get("principal")
    if principal is not None:
        fields["actor"] = principal.actor
        if principal.key is not None:
            fields["key_id"] = principal.key
    return fields
