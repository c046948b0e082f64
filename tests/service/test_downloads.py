"""Blobs are sent in pieces, and never whole if they are damaged."""

from __future__ import annotations

import asyncio
import hashlib
import tracemalloc
from pathlib import Path

import pytest
from fastapi import Response
from fastapi.responses import StreamingResponse

from service.api.downloads import PIECE, blob_answer
from service.errors import BlobCorrupt
from service.storage.blobs import Blobs

CONTENT = bytes(range(256)) * (1 << 16)  # 16 MiB
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    made = Blobs(tmp_path.as_uri())
    made.put("ws/map", CONTENT)
    return made


async def received(answer: Response) -> list[bytes]:
    assert isinstance(answer, StreamingResponse)
    return [bytes(piece) async for piece in answer.body_iterator]  # type: ignore[arg-type]


def test_a_large_blob_is_sent_in_pieces(blobs: Blobs) -> None:
    answer = blob_answer(blobs, "ws/map", SHA256, {})
    assert answer.headers["content-length"] == str(len(CONTENT))
    pieces = asyncio.run(received(answer))
    assert max(map(len, pieces)) == PIECE
    assert b"".join(pieces) == CONTENT


def test_an_answer_that_nobody_reads_holds_little_memory(blobs: Blobs) -> None:
    tracemalloc.start()
    answers = [blob_answer(blobs, "ws/map", SHA256, {}) for _ in range(8)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(answers) == 8
    assert peak < 8 * 3 * PIECE


def test_damage_is_found_before_the_answer_begins(blobs: Blobs, tmp_path: Path) -> None:
    (tmp_path / "ws/map").write_bytes(CONTENT[:-1] + b"x")
    with pytest.raises(BlobCorrupt):
        blob_answer(blobs, "ws/map", SHA256, {})


def test_damage_while_it_is_sent_keeps_the_last_piece_back(blobs: Blobs, tmp_path: Path) -> None:
    answer = blob_answer(blobs, "ws/map", SHA256, {})
    with (tmp_path / "ws/map").open("r+b") as file:
        file.seek(len(CONTENT) // 2)
        file.write(b"changed")
    with pytest.raises(BlobCorrupt):
        asyncio.run(received(answer))
