"""A shortcut for predict calls that bypasses the framework's layers and other routes."""

from __future__ import annotations

import re

from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

ENDING = "/predict"
PLACE = re.compile(r"/v1/calibrators/(?P<name>[^/@]+)@(?P<ref>[^/@]+)/predict")


class Shortcut:
    """Raw ASGI middleware that sends predict calls to their route, and the rest to the app."""

    def __init__(self, app: ASGIApp, route: Route) -> None:
        self.app = app
        self._route = route
        self._predict = route.app
        self._methods = route.methods or set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a predict call, or pass the request on."""
        if scope["type"] == "http" and scope["path"].endswith(ENDING):
            place = PLACE.fullmatch(scope["path"])
            if place is not None and scope["method"] in self._methods:
                scope["route"] = self._route
                scope["path_params"] = place.groupdict()
                await self._predict(scope, receive, send)
                return
        await self.app(scope, receive, send)
