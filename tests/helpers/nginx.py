"""A real nginx on loopback."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

needs_nginx = pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


@contextlib.contextmanager
def nginx(configuration: str, folder: Path, port: int) -> Iterator[None]:
    """Run nginx in the foreground with this configuration, until the end of the block."""
    file, errors = folder / "nginx.conf", folder / "nginx.errors"
    file.write_text(configuration)
    with errors.open("w") as written:
        process = subprocess.Popen(
            ["nginx", "-c", str(file), "-p", str(folder), "-g", "daemon off;"], stderr=written
        )
    try:
        deadline = time.monotonic() + 20
        while not _accepts(port):
            assert process.poll() is None, errors.read_text()
            assert time.monotonic() < deadline, errors.read_text()
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait(10)


def _accepts(port: int) -> bool:
    with socket.socket() as line:
        return line.connect_ex(("127.0.0.1", port)) == 0
