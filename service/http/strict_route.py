"""API routes that check the scope before reading the body, and its size before parsing it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from service.errors import Invalid
from service.http import json_body
from service.http.callers import Needs, parse
from service.http.middleware.fair_turns import take_turn

# a body is checked field by field, and reporting every error takes time
MAX_BODY_COST = 20_000
INLINE_JSON_BYTES = 1 << 14


class StrictRequest(Request):
    """A request whose JSON has no NaN, no Infinity, and no more values than the route allows."""

    most_body_cost = MAX_BODY_COST

    async def json(self) -> Any:
        """Return the body as JSON; parse a large body off the event loop."""
        body = await self.body()
        await take_turn(self.scope)
        if len(body) <= INLINE_JSON_BYTES:
            return _parse(body, self.most_body_cost)
        return await parse(self, _parse, body, self.most_body_cost)


class StrictRoute(APIRoute):
    """A route that checks the scope first and rejects unknown or repeated query parameters.

    An endpoint with the attribute ``reads_its_query`` checks its query itself. The attribute
    ``most_body_cost`` limits the values in its JSON (see ``json_body.check_cost``).
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler, which receives a strict request."""
        handle = super().get_route_handler()
        known = [one.alias for one in self.dependant.query_params]
        scope_checks = [
            one.dependency for one in self.dependencies if isinstance(one.dependency, Needs)
        ]
        reads_its_query = getattr(self.endpoint, "reads_its_query", False)
        most_body_cost = getattr(self.endpoint, "most_body_cost", MAX_BODY_COST)

        async def handle_strictly(request: Request) -> Response:
            for check_scope in scope_checks:
                check_scope(request)
            if request.scope["query_string"] and not reads_its_query:
                _check_query(request, known)
            strict = StrictRequest(request.scope, request.receive)
            strict.most_body_cost = most_body_cost
            return await handle(strict)

        return handle_strictly


def _parse(body: bytes, most_cost: int) -> Any:
    document = json_body.parse(body, most_cost=most_cost)
    json_body.check_shape(document, most_cost)
    return document


def _check_query(request: Request, known: list[str]) -> None:
    seen: set[str] = set()
    for name, _ in request.query_params.multi_items():
        if name not in known:
            valid = ", ".join(sorted(known)) or "none"
            raise Invalid(
                "unknown_parameter",
                f"query.{name[:40]}: unknown parameter; valid parameters: {valid}",
            )
        if name in seen:
            raise Invalid("unknown_parameter", f"query.{name}: sent more than once")
        seen.add(name)
