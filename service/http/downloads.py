"""Blobs as answers, in pieces: their size is not held in memory for each connection."""

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

PIECE = 1 << 18
BINARY = "application/octet-stream"


def blob_answer(blobs: Blobs, key: str, sha256: str, headers: dict[str, str]) -> Response:
    """Answer a blob whose hash was checked, piece by piece unless it is small."""
    with ExitStack() as opened:
        path = opened.enter_context(blobs.file(key, sha256))
        file = opened.enter_context(path.open("rb"))
        size = path.stat().st_size
        if size <= PIECE:
            return Response(file.read(), headers=headers, media_type=BINARY)
        pieces = _pieces(opened.pop_all(), file, sha256)
        first = next(pieces)  # once begun, it closes the file even if nobody reads on
        stated = {**headers, "Content-Length": str(size)}
        return StreamingResponse(chain([first], pieces), headers=stated, media_type=BINARY)


def _pieces(opened: ExitStack, file: BinaryIO, sha256: str) -> Iterator[bytes]:
    """Yield a file's bytes; all but the last if they do not have the hash that they had."""
    digest = hashlib.sha256()
    with opened:
        piece = file.read(PIECE)
        while piece:
            digest.update(piece)
            following = file.read(PIECE)
            if not following and digest.hexdigest() != sha256:
                raise BlobCorrupt("blob_corrupt", "the stored bytes changed while they were sent")
            yield piece
            piece = following
