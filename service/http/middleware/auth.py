"""Deny-by-default authentication: all but a few public paths require a known caller."""

from __future__ import annotations

import re
from contextlib import suppress
from urllib.parse import quote

from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from service.access.keys import KeyRing
from service.access.permissions import Principal
from service.access.sessions import Sessions, form_token
from service.concurrency.thread_pools import FairExecutor
from service.errors import ServiceError, Unauthenticated
from service.http.middleware.body_limits import refuse
from service.http.middleware.csrf import (
    FORM_HEADER,
    check_form_token,
    check_keyless,
    check_origin,
    header,
    is_page,
    page_before,
    wants_page,
)
from service.http.middleware.fair_turns import (
    TURN,
    ClientLeft,
    Turn,
    Turns,
    is_untimed,
    owner_of,
)
from service.storage.database import DATABASE_DOWN

HOME = "/"
SIGN_IN = "/sign-in"
REFERENCE = "/docs"
PUBLIC = frozenset(
    {
        HOME,  # for programs; the page itself requires a session
        SIGN_IN,
        "/healthz",
        "/readyz",
        REFERENCE,
        "/help",
        "/openapi.json",
        "/v2",
        "/v2/health/live",
        "/v2/health/ready",
    }
)
PUBLIC_UNDER = ("/static/", "/help/")
BEARER = b"bearer "
COOKIE = "calibrd_session"
SESSION = re.compile(rf"(?:^|; ?){COOKIE}=([\w-]{{1,200}})(?=;|$)", re.ASCII)
MOST_SESSIONS = 1000  # whose owners are remembered
NO_WEBSOCKETS = 1008  # "policy violation" in RFC 6455


class Guard:
    """Raw ASGI middleware that puts the caller into ``scope["principal"]``.

    The caller is identified by the key in the Authorization header or, without that header, by the
    session in the cookie. A request with a session must come from the service's own pages. If it
    changes something, it must also carry the session's form token, either in a header or in the
    form; page routes check the form (``scope["form_token"]``).

    Until the first key is created, a service on loopback grants every caller all scopes. The Host
    header must then name this machine, and a browser's request must come from the service's own
    pages. Other web pages therefore cannot reach the service through a visitor's browser.

    Once the caller is known, the request waits for its turn among the caller's requests.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: KeyRing,
        sessions: Sessions,
        threads: FairExecutor,
        *,
        is_loopback: bool,
    ) -> None:
        self.app = app
        self._keys = keys
        self._sessions = sessions
        self._threads = threads
        self._is_loopback = is_loopback
        self._turns = Turns()
        self._owners: dict[str, str] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its caller, reject it, or redirect it to the sign-in page."""
        if scope["type"] == "websocket":
            # closed before it is accepted, which servers turn into a 403
            await send({"type": "websocket.close", "code": NO_WEBSOCKETS})
            return
        if scope["type"] == "http" and not is_untimed(scope):
            try:
                error = await self._admit(scope)
                await self._take_turn(scope)
            except ClientLeft:
                return
            if error is not None:
                is_page_request = wants_page(scope) and header(scope, b"authorization") is None
                if isinstance(error, Unauthenticated) and is_page_request:
                    await _redirect_to_sign_in(scope, receive, send)
                else:
                    await refuse(scope, receive, send, error)
                return
        await self.app(scope, receive, send)

    async def _admit(self, scope: Scope) -> ServiceError | None:
        """Put the caller into the scope; return why there is none if the request needs one."""
        try:
            if needs_caller(scope):
                scope["principal"] = await self._caller(scope)
            elif scope["path"] == REFERENCE and wants_page(scope):
                with suppress(ServiceError, *DATABASE_DOWN):  # the page is public
                    scope["principal"] = await self._caller(scope)
        except ServiceError as error:
            return error
        return None

    async def _take_turn(self, scope: Scope, owner: str | None = None) -> None:
        owner = owner or owner_of(scope)
        turn: Turn | None = scope.get(TURN)
        if turn is None or turn.owner != owner:
            turn = scope[TURN] = Turn(self._turns, owner)
        await turn.take()

    async def _caller(self, scope: Scope) -> Principal:
        token = _bearer(scope)
        if token is not None:
            return self._keys.authenticate(token)
        if self._is_loopback and self._keys.is_empty:
            check_keyless(scope)
            return self._keys.anyone
        session = session_of(scope)
        key = None
        if session is not None:
            owner = self._owners.get(session) or owner_of(scope)
            await self._take_turn(scope, owner)
            key = await self._threads.run(owner, self._sessions.key_of, session)
        if session is None or key is None:
            raise Unauthenticated(
                "key_required", "a key is required: send the header Authorization: Bearer cal_..."
            )
        caller = self._keys.admit(key)
        self._remember(session, caller)
        check_origin(scope)
        scope["form_token"] = expected = form_token(session)
        sent = header(scope, FORM_HEADER)
        if sent is not None or not is_page(scope["path"]):
            check_form_token(scope, expected, sent)
        return caller

    def _remember(self, session: str, caller: Principal) -> None:
        """Remember a session's owner, so that its next lookup skips the queue of its address."""
        self._owners.pop(session, None)
        self._owners[session] = f"workspace {caller.workspace}"
        if len(self._owners) > MOST_SESSIONS:
            del self._owners[next(iter(self._owners))]


def needs_caller(scope: Scope) -> bool:
    """Return whether a request must be authenticated."""
    return not is_public(scope["path"]) or (scope["path"] == HOME and wants_page(scope))


def is_public(path: str) -> bool:
    """Return whether a path needs no authentication.

    >>> is_public("/static/app.css"), is_public("/v1/runs/resnet")
    (True, False)
    """
    return path in PUBLIC or path.startswith(PUBLIC_UNDER)


def session_of(scope: Scope) -> str | None:
    """Return the session token in a request's cookie."""
    # a single search: cookies are long, and the request has no turn yet
    found = SESSION.search(header(scope, b"cookie") or "")
    return found[1] if found else None


def root_of(path: str) -> str:
    """Return the relative path from a page to the service's root, which works behind any proxy.

    >>> root_of("/"), root_of("/jobs"), root_of("/keys/0a1b/revoke")
    ('.', '.', '../..')
    """
    return "/".join([".."] * (path.count("/") - 1)) or "."


def _bearer(scope: Scope) -> str | None:
    for name, value in scope["headers"]:
        if name == b"authorization":
            if value[: len(BEARER)].lower() != BEARER:
                raise Unauthenticated(
                    "invalid_key", "the Authorization header must have the form Bearer cal_..."
                )
            return str(value[len(BEARER) :].strip(), "latin-1")
    return None


async def _redirect_to_sign_in(scope: Scope, receive: Receive, send: Send) -> None:
    """Redirect to the sign-in form, which leads on to the requested page.

    If the request would have changed something, the form leads back to the page that sent it.
    """
    path = scope["path"]
    target = f"{root_of(path)}{SIGN_IN}"
    if scope["method"] in ("GET", "HEAD"):
        query = str(scope["query_string"], "latin-1")
        destination = f"{quote(path)}?{query}" if query else quote(path)
        target += f"?next={quote(destination, safe='/')}"
    else:
        target += f"?ended=1&next={quote(page_before(scope) or '/', safe='/')}"
    await RedirectResponse(target, 303)(scope, receive, send)
