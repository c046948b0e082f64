"""The layout of all pages: headers, navigation and error pages.

A page is a module in ``service/web/pages/`` with a ``router`` created by ``pages()``, and
templates that extend ``layout.html``. Its routes return ``page(...)``, receive forms as ``Sent``,
and declare the scope that they need, as API routes do.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from importlib import metadata
from typing import Any, NamedTuple

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute

from calibrators.errors import CalibrationError
from service.access.permissions import Principal, Scope
from service.errors import ServiceError
from service.http.middleware.auth import root_of
from service.http.middleware.csrf import SAFE_METHODS, check_form_token, page_before, wants_page
from service.http.problems import problem_of, problem_response
from service.storage.database import DATABASE_DOWN
from service.web.components.forms import TOKEN, read_form
from service.web.components.templating import environment

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    # with no-referrer, browsers would send forms with an Origin of null
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
SHOWN_ERRORS = (ServiceError, CalibrationError, RequestValidationError, *DATABASE_DOWN)
VERSION = metadata.version("calibrd")
# the documentation site, which exists only if it was built
HELP = "/help/"


class NavigationItem(NamedTuple):
    """A link in the navigation, shown if the key has the scope."""

    path: str
    label: str
    scope: Scope | None = None


NAVIGATION = (
    NavigationItem("/", "Home"),
    NavigationItem("/new-fit", "New fit", Scope.FIT),
    NavigationItem("/jobs", "Fits", Scope.FIT),
    NavigationItem("/runs", "Runs"),
    NavigationItem("/keys", "Keys", Scope.ADMIN),
    NavigationItem("/about", "About"),
    NavigationItem("/docs", "API"),
    NavigationItem(HELP, "Help"),
)


class PageRoute(APIRoute):
    """A route that checks the tokens of forms and shows errors as pages."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler, which parses and checks the form first."""
        handle = super().get_route_handler()

        async def handle_as_page(request: Request) -> Response:
            try:
                if request.method not in SAFE_METHODS:
                    await _read_form(request)
                return await handle(request)
            except SHOWN_ERRORS as error:
                if not wants_page(request.scope):
                    raise
                return error_page(request, error)

        return handle_as_page


def pages() -> APIRouter:
    """Return a router for a page module."""
    return APIRouter(include_in_schema=False, route_class=PageRoute)


def page(
    request: Request,
    template: str,
    values: Mapping[str, Any] | None = None,
    *,
    status: int = 200,
) -> HTMLResponse:
    """Render a template with the values that the layout needs."""
    caller: Principal | None = request.scope.get("principal")
    path = request.scope["path"]
    known = {
        "root": root_of(path),
        "path": path,
        "caller": caller,
        "is_signed_in": "form_token" in request.scope,
        "csrf": request.scope.get("form_token", ""),
        "navigation": [one for one in NAVIGATION if _is_shown(request, caller, one)],
        "version": VERSION,
        **{f"may_{one.value}": caller is not None and caller.may(one) for one in Scope},
    }
    text = environment().get_template(template).render({**known, **(values or {})})
    return HTMLResponse(text, status, HEADERS)


def error_page(request: Request, error: Exception) -> HTMLResponse:
    """Return a page that shows an error."""
    problem = problem_of(request.scope, error)
    values = {"problem": problem, "back": page_before(request.scope)}
    answer = page(request, "problem.html", values, status=problem.status)
    answer.headers.update(problem.headers)
    return answer


async def refuse_as_page(request: Request, error: Exception) -> Response:
    """Respond to an error outside of routes, such as an unknown path, with a page or JSON."""
    if wants_page(request.scope):
        return error_page(request, error)
    return problem_response(request.scope, error)


def lead_to(request: Request, path: str, *, status: int = 303) -> RedirectResponse:
    """Redirect to a page of the service; by default after a form was processed (303).

    The address is relative, so it does not depend on headers such as Host.
    """
    return RedirectResponse(f"{root_of(request.scope['path'])}{path}", status)


async def _read_form(request: Request) -> None:
    request.state.form = form = await read_form(request)
    expected = request.scope.get("form_token")
    # without a session there is a key in a header, or the guard has checked the origin
    if expected is not None and "x-csrf-token" not in request.headers:
        check_form_token(request.scope, expected, form.text(TOKEN))


def _is_shown(request: Request, caller: Principal | None, entry: NavigationItem) -> bool:
    if caller is None or not (entry.scope is None or caller.may(entry.scope)):
        return False
    return entry.path != HELP or (request.app.state.parts.settings.help_dir / "index.html").exists()
