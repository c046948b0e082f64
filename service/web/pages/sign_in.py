"""Signing in with an API key, and out."""

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

# a path of this service, and nothing that browsers take for another's address
LOCAL = re.compile(r"/(?![/\\])[^\\\x00-\x20\x7f]*")
LONGEST_NEXT = 2000
TEMPLATE = "sign_in.html"

Next = Annotated[str, Query(max_length=LONGEST_NEXT)]


@router.api_route(SIGN_IN, methods=["GET", "HEAD"])
def sign_in_page(
    request: Request, joined: Joined, next: Next = "/", ended: bool = False
) -> Response:
    """The form; where no key is needed, there is nothing to do."""
    if joined.settings.is_loopback and joined.keys.is_empty:
        return lead_to(request, local(next))
    trouble = "Your session has ended, and nothing was changed." if ended else ""
    return page(request, TEMPLATE, {"next": local(next), "trouble": trouble})


@router.post(SIGN_IN)
def sign_in(request: Request, joined: Joined, form: Sent) -> Response:
    """Begin a session of the key in the form, and go on to where the reader wanted to go."""
    check_origin(request.scope)
    next = local(form.text("next"))
    token = form.text("key")
    if not token:
        raise Invalid("no_key", "give an API key: cal_...")
    try:
        key = joined.keys.key_of(token)
        joined.keys.admit(key)
    except Unauthenticated as error:
        told = {"next": next, "trouble": f"The service refused this key: {error.message}."}
        return page(request, TEMPLATE, told, status=HTTPStatus.UNAUTHORIZED)
    _end_session(request, joined)  # the one that this browser had
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
    """A path to go on to, the home page if it would lead elsewhere.

    >>> local("/jobs?page=2"), local("//elsewhere.example"), local("/\\\\elsewhere"), local("jobs")
    ('/jobs?page=2', '/', '/', '/')
    """
    return path if len(path) <= LONGEST_NEXT and LOCAL.fullmatch(path) else "/"


def _end_session(request: Request, joined: Parts) -> None:
    session = session_of(request.scope)
    if session is not None:
        joined.sessions.end(session)


def _set_cookie(request: Request, answer: RedirectResponse, value: str, seconds: int) -> None:
    """One that scripts cannot read, and that goes by https alone if the request came by it."""
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
