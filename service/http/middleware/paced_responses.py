"""Responses in chunks, each sent once the client has read the previous one."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

PIECE_BYTES = 1 << 18
# a server buffers this much for a client before it waits
BUFFERED_BYTES = 1 << 16


class PacedResponses:
    """Raw ASGI middleware that splits large bodies.

    A body sent in one piece would stay in the connection's buffer until a slow client had read it,
    although the request would already count as answered. Sending in chunks waits for the client,
    so the write timeout and the limits on requests and memory apply until the end.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app with a ``send`` that splits large bodies."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def split_send(message: Message) -> None:
            body = message.get("body", b"")
            if message["type"] != "http.response.body" or len(body) <= BUFFERED_BYTES:
                await send(message)
                return
            view = memoryview(body)
            for start in range(0, len(body), PIECE_BYTES):
                piece = view[start : start + PIECE_BYTES]  # not a copy: static files are shared
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            if not message.get("more_body", False):
                # the server waits before it sends, so the last piece needs a message after it
                await send({"type": "http.response.body", "body": b"", "more_body": False})

        await self.app(scope, receive, split_send)
