"""Blobs as responses, streamed in chunks so that no connection holds a whole blob in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack

from fastapi import Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from service.errors import BlobCorrupt
from service.storage.blobs import BlobReader, Blobs

PIECE = 1 << 17
BINARY = "application/octet-stream"


class BlobResponse(StreamingResponse):
    """A response that closes its blob when it ends, whether or not the client read it all."""

    def __init__(
        self, opened: ExitStack, blob: BlobReader, sha256: str, headers: dict[str, str]
    ) -> None:
        stated = {**headers, "Content-Length": str(blob.size)}
        super().__init__(_pieces(blob, sha256), headers=stated, media_type=BINARY)
        self._opened = opened

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the blob."""
        with self._opened:
            await super().__call__(scope, receive, send)


def blob_response(blobs: Blobs, key: str, sha256: str, headers: dict[str, str]) -> Response:
    """Return a response with a blob whose hash has been checked; stream it unless it is small."""
    with ExitStack() as opened:
        blob = opened.enter_context(blobs.reader(key, sha256))
        if blob.size <= PIECE:
            return Response(blob.read(0, blob.size), headers=headers, media_type=BINARY)
        return BlobResponse(opened.pop_all(), blob, sha256, headers)


def _pieces(blob: BlobReader, sha256: str) -> Iterator[bytes]:
    """Yield a blob's bytes; raise before the last piece if their hash has changed."""
    digest = hashlib.sha256()
    for start in range(0, blob.size, PIECE):
        end = min(start + PIECE, blob.size)
        piece = blob.read(start, end)
        digest.update(piece)
        if end == blob.size and digest.hexdigest() != sha256:
            raise BlobCorrupt("blob_corrupt", "the stored bytes changed during the transfer")
        yield piece
