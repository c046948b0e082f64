"""What the kernel and the service hold for clients that do not read."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from starlette.types import Message

from service.cli.serve import SEND_BUFFER_BYTES, _listen
from service.http.middleware.paced_responses import PIECE_BYTES, PacedResponses
from service.settings import Settings


def test_the_kernel_buffers_little_for_a_client_that_does_not_read(tmp_path: Path) -> None:
    """Beyond that the transport waits, so the response timeout applies."""
    with (
        _listen(Settings(data_dir=tmp_path, port=0)) as listening,
        socket.create_connection(listening.getsockname()) as reader,
    ):
        connection, _ = listening.accept()
        with connection:
            connection.setblocking(False)
            sent, block = 0, bytes(1 << 16)
            try:
                while sent < 1 << 24:
                    sent += connection.send(block)
            except BlockingIOError:
                pass
            received = reader.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
            assert SEND_BUFFER_BYTES // 2 < sent < 4 * SEND_BUFFER_BYTES + received


def test_large_responses_are_sent_in_views_of_one_body() -> None:
    body, sent = bytes(3 * PIECE_BYTES + 1), []

    async def app(scope: object, receive: object, send: object) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    async def send(message: Message) -> None:
        sent.append(message)

    async def check() -> None:
        await PacedResponses(app)({"type": "http"}, None, send)

    asyncio.run(check())
    pieces = [one["body"] for one in sent[1:]]
    assert b"".join(pieces) == body
    assert all(isinstance(one, memoryview) and one.obj is body for one in pieces[:-1])
    # the server waits for the client before each message, so the last one must be empty
    assert pieces[-1] == b""
    assert [one["more_body"] for one in sent[1:]] == [True, True, True, True, False]
