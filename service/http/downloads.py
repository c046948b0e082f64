"""Blobs as responses, streamed in pieces so that no connection holds a whole blob in memory."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import ExitStack

from fastapi import Response
from starlette.types import Receive, Scope, Send

from service.concurrency.thread_pools import Runner
from service.errors import BlobCorrupt
from service.storage.blobs import BlobReader, Blobs

PIECE = 1 << 17
BINARY = "application/octet-stream"


class BlobResponse(Response):
    """A response that streams a blob, read on the caller's share of download threads.

    When the client disconnects, the response ends and the blob is closed.
    """

    def __init__(
        self,
        opened: ExitStack,
        blob: BlobReader,
        sha256: str,
        headers: dict[str, str],
        run: Runner,
    ) -> None:
        super().__init__(headers={**headers, "Content-Length": str(blob.size)}, media_type=BINARY)
        self._opened = opened
        self._blob = blob
        self._sha256 = sha256
        self._run = run

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the blob; stop if the client disconnects."""
        with self._opened:
            start = {"status": self.status_code, "headers": self.raw_headers}
            await send({"type": "http.response.start", **start})
            sending = asyncio.ensure_future(self._send_pieces(send))
            leaving = asyncio.ensure_future(_left(receive))
            try:
                await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
            finally:
                has_ended = sending.done()
                sending.cancel()
                leaving.cancel()
                await asyncio.gather(sending, leaving, return_exceptions=True)
            if has_ended:
                sending.result()

    async def _send_pieces(self, send: Send) -> None:
        """Send the bytes; raise BlobCorrupt before the last piece if the hash is wrong."""
        digest, size = hashlib.sha256(), self._blob.size
        for start in range(0, size, PIECE):
            end = min(start + PIECE, size)
            piece = await self._run(self._blob.read, start, end)
            digest.update(piece)
            if end == size and digest.hexdigest() != self._sha256:
                raise BlobCorrupt("blob_corrupt", "the stored bytes changed during the transfer")
            await send({"type": "http.response.body", "body": piece, "more_body": end < size})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def blob_response(
    blobs: Blobs, key: str, sha256: str, headers: dict[str, str], run: Runner
) -> Response:
    """Return a response with a blob, after checking its hash; stream it unless it is small."""
    with ExitStack() as opened:
        blob = opened.enter_context(blobs.reader(key, sha256))
        if blob.size <= PIECE:
            return Response(blob.read(0, blob.size), headers=headers, media_type=BINARY)
        return BlobResponse(opened.pop_all(), blob, sha256, headers, run)
