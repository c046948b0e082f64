"""The proxy's configuration in a real nginx: a request that kills replicas kills at most two."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from helpers.nginx import free_port, needs_nginx, nginx

ROOT = Path(__file__).parents[2]
REPLICAS = 4

pytestmark = needs_nginx


class Poisoned:
    """A replica that reads a request and closes without a response, like a killed process."""

    def __init__(self) -> None:
        self.requests = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                line, _ = self._listening.accept()
            except OSError:
                return
            with line:
                if line.recv(65536):
                    self.requests += 1

    def close(self) -> None:
        """Stop accepting connections."""
        with contextlib.suppress(OSError):  # it is closed already
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(5)


@pytest.fixture
def replicas() -> Iterator[list[Poisoned]]:
    made = [Poisoned() for _ in range(REPLICAS)]
    yield made
    for one in made:
        one.close()


@pytest.fixture
def proxy(replicas: list[Poisoned], tmp_path: Path) -> Iterator[str]:
    """Run nginx with docker/nginx.conf on loopback, in front of these replicas."""
    port = free_port()
    text = (ROOT / "docker/nginx.conf").read_text()
    text = text.replace("/tmp/", f"{tmp_path}/").replace("/dev/stdout", f"{tmp_path}/access")  # noqa: S108
    servers = "\n".join(f"server 127.0.0.1:{one.port} max_fails=0;" for one in replicas)
    text = re.sub(r"server api:8000 [^;]+;", servers, text)
    text = re.sub(r"server blobs:7070 [^;]+;", "server 127.0.0.1:9;", text)
    text = re.sub(r"resolver [^;]+;", "", text)
    text = text.replace("listen 8080;", f"listen 127.0.0.1:{port};")
    text = text.replace("listen 8081;", f"listen unix:{tmp_path}/second;")
    text = text.replace("/dev/stderr", f"{tmp_path}/errors")
    text = re.sub(r"worker_processes auto;", "worker_processes 1;\nuser root;", text)
    with nginx(text, tmp_path, port):
        yield f"http://127.0.0.1:{port}"


@pytest.mark.parametrize(
    ("method", "path", "most"),
    [
        ("POST", "/v1/calibrators/digits@1/predict", 1),
        ("POST", "/v2/models/digits/infer", 1),
        ("POST", "/v1/datasets", 1),
        ("GET", "/v1/calibrators/digits@1/predict?logits=1,2", 2),
        ("GET", "/v1/calibrators", 2),
        ("PUT", "/v1/datasets/x/parts/1", 2),
    ],
)
def test_a_request_that_crashes_replicas_reaches_few(
    proxy: str, replicas: list[Poisoned], method: str, path: str, most: int
) -> None:
    content = b"{}" if method != "GET" else None
    answer = httpx.request(method, f"{proxy}{path}", content=content, timeout=30)
    assert answer.status_code == 502
    assert 1 <= sum(one.requests for one in replicas) <= most


def test_an_unreachable_replica_is_skipped(proxy: str, replicas: list[Poisoned]) -> None:
    for one in replicas[1:]:
        one.close()
    for _ in range(4 * REPLICAS):
        httpx.post(f"{proxy}/v1/calibrators/digits@1/predict", content=b"{}", timeout=30)
    # more than its share, because some requests are retried here
    assert replicas[0].requests > REPLICAS
