"""Sign in with an API key, and sign out."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Annotated

from fastapi import Query, Request, Response
from fastapi.responses import RedirectResponse

from service.access.sessions import SESSION_HOURS
from service.dependencies import Joined, Parts
from service.errors import Invalid, Unauthenticated
from service.http.middleware.auth import COOKIE, SIGN_IN, session_of
from service.http.middleware.csrf import check_origin
from service.settings import HOUR
from service.web.components.forms import Sent
from service.web.components.layout import lead_to, page, pages

router = pages()

# a local path that no browser interprets as another host
LOCAL = re.compile(r"/(?![/\\])[^\\\x00-\x20\x7f]*")
LONGEST_NEXT = 2000
TEMPLATE = "sign_in.html"

Next = Annotated[str, Query(max_length=LONGEST_NEXT)]


@router.api_route(SIGN_IN, methods=["GET", "HEAD"])
def sign_in_page(
    request: Request, joined: Joined, next: Next = "/", ended: bool = False
) -> Response:
    """Show the sign-in form; redirect if no key is needed."""
    if joined.settings.is_loopback and joined.keys.is_empty:
        return lead_to(request, local(next))
    error = "Your session has ended. Nothing was changed." if ended else ""
    return page(request, TEMPLATE, {"next": local(next), "error": error})


@router.post(SIGN_IN)
def sign_in(request: Request, joined: Joined, form: Sent) -> Response:
    """Start a session for the key in the form, and redirect to the originally requested page."""
    check_origin(request.scope)
    next = local(form.text("next"))
    token = form.text("key")
    if not token:
        raise Invalid("no_key", "enter an API key; keys begin with cal_")
    try:
        key = joined.keys.key_of(token)
        joined.keys.admit(key)
    except Unauthenticated as error:
        values = {"next": next, "error": f"The service rejected this key: {error.message}."}
        return page(request, TEMPLATE, values, status=HTTPStatus.UNAUTHORIZED)
    _end_session(request, joined)  # the previous session of this browser
    answer = lead_to(request, next)
    _set_cookie(request, answer, joined.sessions.begin(key), round(SESSION_HOURS * HOUR))
    return answer


@router.post("/sign-out")
def sign_out(request: Request, joined: Joined) -> Response:
    """End the session of this browser."""
    _end_session(request, joined)
    answer = lead_to(request, SIGN_IN)
    _set_cookie(request, answer, "", 0)
    return answer


def local(path: str) -> str:
    r"""Return a path if it is local, otherwise the path of the home page.

    >>> local("/jobs?page=2"), local("//elsewhere.example"), local("/\\elsewhere"), local("jobs")
    ('/jobs?page=2', '/', '/', '/')
    """
    return path if len(path) <= LONGEST_NEXT and LOCAL.fullmatch(path) else "/"


def _end_session(request: Request, joined: Parts) -> None:
    session = session_of(request.scope)
    if session is not None:
        joined.sessions.end(session)


def _set_cookie(request: Request, answer: RedirectResponse, value: str, seconds: int) -> None:
    """Set the session cookie: hidden from scripts, and secure if the request used HTTPS."""
    forwarded = request.headers.get("x-forwarded-proto", "")
    answer.set_cookie(
        COOKIE,
        value,
        max_age=seconds,
        path=request.scope.get("root_path") or "/",
        secure="https" in (request.url.scheme, forwarded),
        httponly=True,
        samesite="lax",
    )
