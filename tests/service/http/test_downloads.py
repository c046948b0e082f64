"""Downloads of maps by slow or disconnecting clients hold no copies and no open files."""

from __future__ import annotations

import hashlib
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import pytest
from helpers.backends import Backend
from helpers.live_service import Local, in_process
from helpers.registration import registration

from calibrators.methods.matrix import MatrixMap

pytestmark = pytest.mark.both_backends

CLASSES = 1150  # a map of 10 MB, more than the buffers of a connection
PATH = "/v1/calibrators/large/versions/1/map"
CLIENTS = 12


@pytest.fixture
def local(backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Local]:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    large = MatrixMap(
        k=CLASSES, base_temperature=1.0, weights=np.eye(CLASSES), bias=np.zeros(CLASSES)
    )
    with in_process(**backend.settings(tmp_path / "data")) as made:
        body = registration(large)
        answer = made.post("/v1/calibrators/large/versions", json=body, timeout=60)
        assert answer.status_code == 201, answer.text
        yield made


def begun(local: Local) -> socket.socket:
    """Start a download, and read only its first bytes."""
    line = socket.socket()
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    line.settimeout(30)
    line.connect((local.base_url.host, local.base_url.port))
    line.sendall(f"GET {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    assert line.recv(12) == b"HTTP/1.1 200"
    return line


def open_blobs(folder: Path) -> list[str]:
    """Return the files below a folder that this process, the server, has open."""
    found = []
    for number in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(str(number.readlink()))
    return [one for one in found if one.startswith(str(folder)) and "/maps/" in one]


def test_a_download_is_complete(local: Local) -> None:
    answer = local.get(PATH)
    assert hashlib.sha256(answer.content).hexdigest() == answer.headers["etag"].strip('"')
    assert int(answer.headers["content-length"]) == len(answer.content) > 10_000_000


def test_slow_readers_hold_no_copy_and_disconnected_ones_no_file(
    local: Local, tmp_path: Path
) -> None:
    with ExitStack() as lines:
        for _ in range(CLIENTS):
            lines.enter_context(begun(local))
        temporary = (tmp_path / "temporary").rglob("*")
        assert sum(path.stat().st_size for path in temporary if path.is_file()) < 1_000_000
    deadline = time.monotonic() + 10
    while open_blobs(tmp_path / "data") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not open_blobs(tmp_path / "data")
