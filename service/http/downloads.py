"""Blobs as responses, streamed in chunks so that no connection holds a whole blob in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import chain
from typing import BinaryIO

from fastapi import Response
from fastapi.responses import StreamingResponse

from service.errors import BlobCorrupt
from service.storage.blobs import Blobs

PIECE = 1 << 17
BINARY = "application/octet-stream"


def blob_response(blobs: Blobs, key: str, sha256: str, headers: dict[str, str]) -> Response:
    """Return a response with a blob whose hash has been checked; stream it unless it is small."""
    with ExitStack() as opened:
        path = opened.enter_context(blobs.file(key, sha256))
        file = opened.enter_context(path.open("rb"))
        size = path.stat().st_size
        if size <= PIECE:
            return Response(file.read(), headers=headers, media_type=BINARY)
        pieces = _pieces(opened.pop_all(), file, sha256)
        first = next(pieces)  # once started, the generator closes the file even if abandoned
        stated = {**headers, "Content-Length": str(size)}
        return StreamingResponse(chain([first], pieces), headers=stated, media_type=BINARY)


def _pieces(opened: ExitStack, file: BinaryIO, sha256: str) -> Iterator[bytes]:
    """Yield a file's bytes; raise before the last chunk if their hash has changed."""
    digest = hashlib.sha256()
    with opened:
        piece = file.read(PIECE)
        while piece:
            digest.update(piece)
            next_piece = file.read(PIECE)
            if not next_piece and digest.hexdigest() != sha256:
                raise BlobCorrupt("blob_corrupt", "the stored bytes changed during the transfer")
            yield piece
            piece = next_piece
