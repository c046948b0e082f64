"""The API reference: Swagger UI and the OpenAPI document that it shows."""

from __future__ import annotations

import asyncio
import json
from typing import cast

from fastapi import FastAPI, Request, Response

from service.web.components.layout import page, pages

router = pages()


@router.api_route("/docs", methods=["GET", "HEAD"])
async def reference_page(request: Request) -> Response:
    """Show the API reference; this needs no key."""
    return page(request, "reference.html")


@router.api_route("/openapi.json", methods=["GET", "HEAD"])
async def openapi(request: Request) -> Response:
    """Return the OpenAPI document, which is built once, off the event loop."""
    state = request.app.state
    made = getattr(state, "document", None)
    if made is None or (made.done() and (made.cancelled() or made.exception() is not None)):
        state.document = asyncio.create_task(asyncio.to_thread(_document, request.app))
    content = cast(bytes, await asyncio.shield(state.document))
    return Response(content, media_type="application/json")


def _document(app: FastAPI) -> bytes:
    return json.dumps(app.openapi()).encode()
