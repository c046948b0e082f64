"""Deny by default: no request reaches a route without a caller, but for a few public paths."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import ip_address

from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.body_guard import refuse
from service.core.access import Principal
from service.core.keys import KeyRing
from service.errors import Forbidden, ServiceError, Unauthenticated

PUBLIC = frozenset(
    {
        "/",
        "/healthz",
        "/readyz",
        "/docs",
        "/openapi.json",
        "/v2",
        "/v2/health/live",
        "/v2/health/ready",
        "/runs",
        "/static/run-charts.json",
        "/static/runs.css",
        "/static/runs.js",
        "/static/vega.js",
    }
)
PUBLIC_UNDER = "/runs/"  # pages of runs: shells without data
BEARER = b"bearer "


class Guard:
    """Raw ASGI middleware that puts the caller into ``scope["principal"]``.

    While no key was ever made, a service on loopback takes every caller for its owner. Then the
    Host header must name this machine, and a browser's request must come from the service's own
    pages: so no web page can reach it through its reader's browser.
    """

    def __init__(self, app: ASGIApp, keys: KeyRing, *, is_loopback: bool) -> None:
        self.app = app
        self._keys = keys
        self._is_loopback = is_loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request in with its caller, or refuse it."""
        if scope["type"] == "websocket":
            raise RuntimeError("no route takes websockets")
        if scope["type"] == "http" and not is_public(scope["path"]):
            try:
                scope["principal"] = self._caller(scope)
            except ServiceError as error:
                await refuse(scope, receive, send, error)
                return
        await self.app(scope, receive, send)

    def _caller(self, scope: Scope) -> Principal:
        token = _token(scope)
        if token is not None:
            return self._keys.authenticate(token)
        if self._is_loopback and self._keys.is_empty:
            _check_origin(scope)
            return self._keys.anyone
        raise Unauthenticated(
            "key_required", "send a key in the header: Authorization: Bearer cal_..."
        )


def is_public(path: str) -> bool:
    """Whether a path needs no caller.

    >>> is_public("/runs/resnet"), is_public("/v1/runs/resnet")
    (True, False)
    """
    return path in PUBLIC or path.startswith(PUBLIC_UNDER)


def _token(scope: Scope) -> str | None:
    for name, value in scope["headers"]:
        if name == b"authorization":
            if value[: len(BEARER)].lower() != BEARER:
                raise Unauthenticated(
                    "invalid_key", "the Authorization header must be: Bearer cal_..."
                )
            return str(value[len(BEARER) :].strip(), "latin-1")
    return None


def _check_origin(scope: Scope) -> None:
    host, origin, site = "localhost", None, "none"
    for name, value in scope["headers"]:
        if name == b"host":
            host = str(value, "latin-1")
        elif name == b"origin":
            origin = str(value, "latin-1")
        elif name == b"sec-fetch-site":
            site = str(value, "latin-1")
        elif name in (b"x-forwarded-for", b"forwarded"):
            raise Forbidden(
                "key_required", "behind a proxy keys are needed: python -m service keys create"
            )
    if not _is_local(host):
        raise Forbidden("foreign_host", "without keys, requests must name localhost as their host")
    is_foreign = origin is not None and origin.partition("://")[2] != host
    if is_foreign or site not in ("none", "same-origin"):
        raise Forbidden("foreign_origin", "without keys, other sites' pages are refused")


@lru_cache(maxsize=64)
def _is_local(host: str) -> bool:
    """Whether a Host header, with or without a port, names this machine."""
    name = host if host.endswith("]") or ":" not in host else host.rpartition(":")[0]
    if name == "localhost":
        return True
    try:
        return ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False
