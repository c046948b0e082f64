"""Routes that overlook nothing: strict JSON, and no query parameter that nobody reads."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from service.core.formats import documents
from service.errors import Invalid


class StrictRequest(Request):
    """A request whose JSON has no NaN, no Infinity and no numbers beyond float64."""

    async def json(self) -> Any:
        """The body as JSON."""
        return documents.parse(await self.body())


class StrictRoute(APIRoute):
    """A route that refuses query parameters that are unknown or given twice.

    An endpoint with the attribute ``reads_its_query`` does so itself.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler, given a strict request."""
        handle = super().get_route_handler()
        known = [one.alias for one in self.dependant.query_params]

        async def handle_strictly(request: Request) -> Response:
            if request.scope["query_string"] and not self._reads_its_query:
                _check_query(request, known)
            return await handle(StrictRequest(request.scope, request.receive))

        return handle_strictly

    @property
    def _reads_its_query(self) -> bool:
        return getattr(self.endpoint, "reads_its_query", False)


def _check_query(request: Request, known: list[str]) -> None:
    seen: set[str] = set()
    for name, _ in request.query_params.multi_items():
        if name not in known:
            which = f"known are {', '.join(sorted(known))}" if known else "there are none"
            raise Invalid("unknown_parameter", f"query.{name[:40]}: not known here; {which}")
        if name in seen:
            raise Invalid("unknown_parameter", f"query.{name}: given more than once")
        seen.add(name)
