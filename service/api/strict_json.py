"""JSON as the standard has it: no NaN, no Infinity, no numbers beyond float64."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from service.core.formats import documents


class StrictJsonRequest(Request):
    """A request whose JSON is read strictly."""

    async def json(self) -> Any:
        """The body as JSON."""
        return documents.parse(await self.body())


class StrictJsonRoute(APIRoute):
    """A route that reads its body with StrictJsonRequest."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler, given a strict request."""
        handle = super().get_route_handler()

        async def handle_strictly(request: Request) -> Response:
            return await handle(StrictJsonRequest(request.scope, request.receive))

        return handle_strictly
