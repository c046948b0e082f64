"""Blobs that are sent in many pieces."""

from __future__ import annotations

import hashlib
import resource
from pathlib import Path

import numpy as np
import pytest
from helpers.backends import Fleet
from helpers.fit_fixtures import Place

from service.errors import NoSpace
from service.storage.blobs import CHUNK, Blobs

pytestmark = pytest.mark.both_backends


def test_a_blob_of_several_pieces_comes_back_whole(place: Place, tmp_path: Path) -> None:
    content = np.random.default_rng(0).bytes(2 * CHUNK + 1)
    sha256 = hashlib.sha256(content).hexdigest()
    sent = tmp_path / "sent"
    sent.write_bytes(content)
    for number, form in enumerate((content, sent)):
        place.blobs.put(f"large/{number}", form)
        assert b"".join(place.blobs.chunks(f"large/{number}", sha256)) == content


def test_reading_a_blob_fails_if_the_local_disk_is_full(
    shared_fleet: Fleet, tmp_path: Path
) -> None:
    blobs = Blobs(shared_fleet.settings(tmp_path)["blobs_url"])
    content = bytes(1 << 20)
    blobs.put("large/blob", content)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 10, before[1]))
    try:
        with (
            pytest.raises(NoSpace),
            blobs.file("large/blob", hashlib.sha256(content).hexdigest()),
        ):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
