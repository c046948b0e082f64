"""The service as in its images: a read-only file system except two folders, no privileges."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

import httpx
import numpy as np
import pytest
from helpers.database_servers import free_port
from helpers.dockerfiles import Stage, stages
from helpers.live_service import NPZ, ROOT, npz, sample, wait_until

# the root file system is read-only except for two folders
ENTER = """
mount --bind "$1" "$1" && mount --bind "$2" "$2" && mount -o remount,bind,ro / || exit 99
shift 2
exec "$@"
"""
POWERLESS = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
UNSHARE = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
# the image of the API has no torch
WITHOUT_TORCH = (
    "import sys; sys.modules['torch'] = None; from service.__main__ import main; "
    "sys.exit(main(sys.argv[1:]))"
)


class Container:
    """An environment for processes that resembles a container of an image."""

    def __init__(self, folder: Path, image: Stage, port: int) -> None:
        self.data, self.temporary, self._image = folder / "data", folder / "tmp", image
        for one in (self.data, self.temporary):
            one.mkdir(exist_ok=True)
        self.environment = {
            "PATH": os.environ["PATH"],
            **{
                name: value.replace("/data", str(self.data)).replace("/tmp", str(self.temporary))  # noqa: S108
                for name, value in image.environment.items()
            },
            "CALIBRD_PORT": str(port),
        }

    def command(self, *words: str) -> list[str]:
        """Return the command line that runs `python` with these arguments."""
        if os.geteuid() and not may_mount():
            return [sys.executable, *words]
        inside = [*POWERLESS, sys.executable, *words]
        if not may_mount():
            return inside
        enter = ["sh", "-c", ENTER, "sh", str(self.data), str(self.temporary)]
        return [*UNSHARE, *enter, *inside]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the container; return its output."""
        return subprocess.run(
            self.command(*words),
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def is_healthy(self) -> bool:
        """Run the image's health check; return whether it succeeds."""
        assert self._image.check[0] == "python"
        return self.run(*self._image.check[1:]).returncode == 0

    @property
    def folder(self) -> Path:
        """Return the folder of the sources: the project, or a copy with read-only permissions."""
        if may_mount():
            return ROOT
        copy = self.data.parent / "app"
        if not copy.exists():
            shutil.copytree(ROOT / "service", copy / "service")
            subprocess.run(["chmod", "-R", "a-w", str(copy)], check=True)
        return copy

    @contextmanager
    def running(self, ready: str, *words: str) -> Iterator[None]:
        """Run a process in the container from when it is ready until the end of the block."""
        log = self.temporary / f"{len(list(self.temporary.iterdir()))}.log"
        with log.open("w") as said:
            process = subprocess.Popen(
                self.command(*words),
                cwd=self.folder,
                env=self.environment,
                stdout=said,
                stderr=said,
                text=True,
            )
        try:
            wait_until(lambda: ready in log.read_text() or process.poll() is not None, 60)
            yield
            assert process.poll() is None, log.read_text()
            process.terminate()
            assert process.wait(20) == 0, log.read_text()
            assert "Read-only" not in log.read_text()
            assert "Permission" not in log.read_text()
        finally:
            process.kill()
            process.wait()


@cache
def may_mount() -> bool:
    """Return whether this user may create mounts."""
    tried = [*UNSHARE, "sh", "-c", "mount -o remount,bind,ro /"]
    return subprocess.run(tried, capture_output=True, check=False).returncode == 0


def test_images_write_to_two_folders_only(tmp_path: Path) -> None:
    images = stages(ROOT / "Dockerfile")
    port = free_port()
    api = Container(tmp_path, images["api"], port)
    worker = Container(tmp_path, images["worker"], port)
    if may_mount():
        refused = api.run("-c", "open('service/left', 'w')")
        assert "Read-only" in refused.stderr
    made = api.run("-c", WITHOUT_TORCH, "migrate")
    assert made.returncode == 0, made.stderr
    made = api.run("-c", WITHOUT_TORCH, "keys", "create", "--scopes", "admin")
    assert made.returncode == 0, made.stderr
    assert not worker.is_healthy()
    with ExitStack() as stack:
        command = images["api"].last("CMD").listed
        assert command is not None
        stack.enter_context(api.running("is running on", "-c", WITHOUT_TORCH, *command))
        stack.enter_context(worker.running("worker_started", "-m", "service", "worker"))
        assert api.is_healthy()
        assert worker.is_healthy()
        bearer = {"Authorization": f"Bearer {made.stdout.strip()}"}
        client = stack.enter_context(
            httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, headers=bearer)
        )
        use(client)
    assert {path.name for path in tmp_path.iterdir()} <= {"data", "tmp", "app"}


def use(client: httpx.Client) -> None:
    """Run a fit, and use everything that may need a cache, a font or a temporary file."""
    logits, labels = sample()
    fit = client.post(
        "/v1/calibrators/digits/fits?method=smart",
        content=npz(logits, labels),
        headers={**NPZ, "Prefer": "wait=60"},
    ).json()
    assert fit["status"] == "succeeded", fit
    version = "/v1/calibrators/digits/versions/1"
    for path in ("map", "onnx", "report.html", "report.svg", "report.png"):
        assert client.get(f"{version}/{path}").status_code == 200, path
    body = io.BytesIO()
    np.save(body, logits)
    answer = client.post(
        "/v1/calibrators/digits@1/predict",
        content=body.getvalue(),
        headers={"Content-Type": "application/x-npy"},
    )
    assert np.load(io.BytesIO(answer.content)).sum(axis=1) == pytest.approx(1, abs=1e-5)
