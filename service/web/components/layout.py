"""What all pages have in common: their headers, the navigation, and how they refuse.

A page is a module of ``service/web/pages/`` with a ``router`` made by ``pages()``, and templates
that extend ``layout.html``. Its routes answer with ``page(...)``, take forms as ``Sent`` and say
which scope they need as those of the API do.
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
from service.storage.database import AWAY
from service.web.components.forms import TOKEN, read_form
from service.web.components.templating import environment

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    # with no-referrer, browsers would send their own forms with an Origin of null
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
TOLD = (ServiceError, CalibrationError, RequestValidationError, *AWAY)
VERSION = metadata.version("calibrd")


class NavigationItem(NamedTuple):
    """A line of the navigation, for those whose key has the scope."""

    path: str
    label: str
    scope: Scope | None = None


NAVIGATION = (
    NavigationItem("/", "Home"),
    NavigationItem("/new-fit", "New fit", Scope.FIT),
    NavigationItem("/jobs", "Jobs", Scope.FIT),
    NavigationItem("/runs", "Runs"),
    NavigationItem("/keys", "Keys", Scope.ADMIN),
    NavigationItem("/about", "About"),
    NavigationItem("/docs", "API"),
)


class PageRoute(APIRoute):
    """A route of a page: forms must be the service's own, and refusals are pages, too."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler, with the form read and checked before it."""
        handle = super().get_route_handler()

        async def handle_as_page(request: Request) -> Response:
            try:
                if request.method not in SAFE_METHODS:
                    await _take_form(request)
                return await handle(request)
            except TOLD as error:
                if not wants_page(request.scope):
                    raise
                return refusal(request, error)

        return handle_as_page


def pages() -> APIRouter:
    """A router for a module of pages."""
    return APIRouter(include_in_schema=False, route_class=PageRoute)


def page(
    request: Request,
    template: str,
    values: Mapping[str, Any] | None = None,
    *,
    status: int = 200,
) -> HTMLResponse:
    """A template as an answer, with what the layout needs."""
    caller: Principal | None = request.scope.get("principal")
    path = request.scope["path"]
    known = {
        "root": root_of(path),
        "path": path,
        "caller": caller,
        "is_signed_in": "form_token" in request.scope,
        "csrf": request.scope.get("form_token", ""),
        "navigation": [one for one in NAVIGATION if _may_see(caller, one)],
        "version": VERSION,
        **{f"may_{one.value}": caller is not None and caller.may(one) for one in Scope},
    }
    text = environment().get_template(template).render({**known, **(values or {})})
    return HTMLResponse(text, status, HEADERS)


def refusal(request: Request, error: Exception) -> HTMLResponse:
    """An error as a page."""
    problem = problem_of(request.scope, error)
    values = {"problem": problem, "back": page_before(request.scope)}
    answer = page(request, "problem.html", values, status=problem.status)
    answer.headers.update(problem.headers)
    return answer


async def refuse_as_page(request: Request, error: Exception) -> Response:
    """For what no route has raised: paths that there are not."""
    if wants_page(request.scope):
        return refusal(request, error)
    return problem_response(request.scope, error)


def lead_to(request: Request, path: str, *, status: int = 303) -> RedirectResponse:
    """Redirect to a page of the service, by default after a form was taken.

    The address is relative: no header of the request, such as Host, has a part in it.
    """
    return RedirectResponse(f"{root_of(request.scope['path'])}{path}", status)


async def _take_form(request: Request) -> None:
    request.state.form = form = await read_form(request)
    expected = request.scope.get("form_token")
    # without a session there is a key in a header, or the guard has seen where it comes from
    if expected is not None and "x-csrf-token" not in request.headers:
        check_form_token(request.scope, expected, form.text(TOKEN))


def _may_see(caller: Principal | None, entry: NavigationItem) -> bool:
    return caller is not None and (entry.scope is None or caller.may(entry.scope))
