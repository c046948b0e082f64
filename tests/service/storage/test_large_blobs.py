"""Blobs that are sent in many pieces."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
from fit_jobs import Place

from service.storage.blobs import CHUNK


def test_a_blob_of_several_pieces_comes_back_whole(place: Place, tmp_path: Path) -> None:
    content = np.random.default_rng(0).bytes(2 * CHUNK + 1)
    sha256 = hashlib.sha256(content).hexdigest()
    sent = tmp_path / "sent"
    sent.write_bytes(content)
    for number, form in enumerate((content, sent)):
        place.blobs.put(f"large/{number}", form)
        assert b"".join(place.blobs.chunks(f"large/{number}", sha256)) == content
