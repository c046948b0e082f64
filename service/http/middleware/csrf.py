"""Protection against cross-site requests: browsers may only act for the service's own pages.

A program sends its key in a header, which no browser adds on its own. But any page can make its
visitor's browser send a session cookie, or a request to a local service that requires no key.
"""

from __future__ import annotations

import hmac
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.types import Scope

from service.errors import Forbidden

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
API = ("/v1", "/v2", "/metrics", "/openapi.json")
FORM_HEADER = b"x-csrf-token"


def header(scope: Scope, name: bytes) -> str | None:
    """Return the first value of a request header, or None."""
    return next((str(value, "latin-1") for key, value in scope["headers"] if key == name), None)


def is_page(path: str) -> bool:
    """Return whether a path belongs to a page rather than to the API.

    >>> is_page("/jobs"), is_page("/v1/fits"), is_page("/v1"), is_page("/v1x")
    (True, False, False, True)
    """
    return not any(path == one or path.startswith(f"{one}/") for one in API)


def wants_page(scope: Scope) -> bool:
    """Return whether a browser is requesting a page."""
    return is_page(scope["path"]) and "text/html" in (header(scope, b"accept") or "")


def page_before(scope: Scope) -> str | None:
    """Return the path of the dashboard page that sent a request, or None if it is unknown."""
    try:
        sent = urlsplit(header(scope, b"referer") or "")
    except ValueError:  # such as "http://["
        return None
    if not sent.netloc or sent.netloc != header(scope, b"host") or not is_page(sent.path):
        return None
    return f"{sent.path}?{sent.query}" if sent.query else sent.path


def check_origin(scope: Scope) -> None:
    """Raise Forbidden unless a request comes from the service's own pages or follows a link."""
    if _follows_link(scope):
        return
    origin, host = header(scope, b"origin"), header(scope, b"host") or "localhost"
    is_foreign = origin is not None and origin.partition("://")[2] != host
    if is_foreign or header(scope, b"sec-fetch-site") not in (None, "none", "same-origin"):
        raise Forbidden("foreign_origin", "requests from pages on other sites are not allowed")


def check_form_token(scope: Scope, expected: str, sent: str | None) -> None:
    """Raise Forbidden if a request that changes something lacks its session's form token."""
    if scope["method"] in SAFE_METHODS:
        return
    if sent is None or not hmac.compare_digest(sent.encode(), expected.encode()):
        raise Forbidden(
            "foreign_origin",
            "the form token of the session is missing or invalid: reload the page and try again",
        )


def check_keyless(scope: Scope) -> None:
    """Raise Forbidden unless a request to a service without keys comes from this machine."""
    if any(name in (b"x-forwarded-for", b"forwarded") for name, _ in scope["headers"]):
        raise Forbidden(
            "foreign_host",
            "a key is required behind a proxy: create one with python -m service keys create",
        )
    if not _is_local(header(scope, b"host") or "localhost"):
        raise Forbidden("foreign_host", "without keys, the Host header must name localhost")
    check_origin(scope)


def _follows_link(scope: Scope) -> bool:
    """Return whether a browser is navigating to a page, which a linking site cannot read."""
    return (
        scope["method"] in ("GET", "HEAD")
        and is_page(scope["path"])
        and header(scope, b"sec-fetch-mode") == "navigate"
        and header(scope, b"sec-fetch-dest") == "document"
    )


@lru_cache(maxsize=64)
def _is_local(host: str) -> bool:
    """Return whether a Host header, with or without a port, names this machine."""
    name = host if host.endswith("]") or ":" not in host else host.rpartition(":")[0]
    if name == "localhost":
        return True
    try:
        return ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False
