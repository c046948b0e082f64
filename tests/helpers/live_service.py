"""The real service for tests, as processes on loopback and in process."""

from __future__ import annotations

import contextlib
import fnmatch
import io
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import uvicorn
from fastapi import FastAPI

from helpers.backends import add_database
from service.app import create_app
from service.http.server.protocol import HttpProtocol
from service.settings import Settings

ROOT = Path(__file__).parents[2]
START_SECONDS = 60
STOP_SECONDS = 20


@dataclass
class Running:
    """A service process on a free port."""

    process: subprocess.Popen[str]
    url: str
    greeting: str
    data_dir: Path
    log: Path

    def client(self, token: str | None = None) -> httpx.Client:
        """Create a client of the service; close it after use."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return httpx.Client(base_url=self.url, timeout=60, headers=headers)

    def stop(self) -> int:
        """Stop it like Ctrl-C; return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


@contextlib.contextmanager
def running(
    data_dir: Path,
    *flags: str,
    log: Path | None = None,
    program: Sequence[str] = (sys.executable, "-m", "service"),
    cwd: Path = ROOT,
    **environment: str,
) -> Iterator[Running]:
    """Run ``python -m service serve`` until the end of the block."""
    data_dir.mkdir(parents=True, exist_ok=True)
    log = log or data_dir / "serve.log"
    command = [*program, "serve", "--port", "0", "--data-dir", str(data_dir)]
    with log.open("w") as errors:
        process = subprocess.Popen(
            [*command, *flags],
            cwd=cwd,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        greeting = _greeting(process, log)
        url = re.search(r"http://\S+", greeting)
        assert url, greeting
        yield Running(process, url[0], greeting, data_dir, log)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS)
        if process.poll() is None:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _greeting(process: subprocess.Popen[str], log: Path) -> str:
    """Return the output until the service is ready; fail if it exits or takes too long."""
    assert process.stdout is not None
    lines: list[str] = []
    late = threading.Timer(START_SECONDS, process.kill)
    late.start()
    try:
        for line in process.stdout:
            lines.append(line)
            if "verdict" in line:
                return "".join(lines)
    finally:
        late.cancel()
    raise AssertionError(f"the service did not start:\n{''.join(lines)}\n{log.read_text()}")


def wait_until(condition, seconds: float = 20.0, pause: float = 0.05):
    """Return the first truthy result of a condition; fail if there is none in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(pause)
    raise AssertionError("not in time")


def files_below(folder: Path, pattern: str = "*") -> list[Path]:
    """Return files by name, even if others remove folders, where ``Path.rglob`` would fail."""
    return [
        Path(place) / name
        for place, _, names in os.walk(folder)
        for name in fnmatch.filter(names, pattern)
    ]


# a promise of seconds, or something given up after less than one: on a busy machine a process may
# stand still for longer, so such a test may fail once, and the summary then names it
by_the_clock = pytest.mark.flaky(reruns=1)


def within(seconds: float, take: Callable[[], float], tries: int = 2) -> None:
    """Fail if all attempts take too long; a busy machine may exceed a limit occasionally."""
    taken: list[float] = []
    while len(taken) < tries:
        taken.append(take())
        if taken[-1] < seconds:
            return
    raise AssertionError(f"it took {taken} seconds, each time more than {seconds}")


class Local(httpx.Client):
    """A client of an app that runs in this process, on another thread."""

    app: FastAPI


@contextlib.contextmanager
def in_process(data_dir: Path, **settings: object) -> Iterator[Local]:
    """Run the app in this process without workers, so that fits stay queued."""
    if not settings.get("database_url"):
        add_database(data_dir)
    app = create_app(Settings(data_dir=data_dir, workers=0, **settings))
    server = uvicorn.Server(
        uvicorn.Config(app, http=HttpProtocol, log_config=None, access_log=False)
    )
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            wait_until(lambda: server.started or not thread.is_alive())
            assert server.started
            url = f"http://127.0.0.1:{listening.getsockname()[1]}"
            with Local(base_url=url, timeout=60) as made:
                made.app = app
                yield made
        finally:
            server.should_exit = True
            thread.join(STOP_SECONDS)
            assert not thread.is_alive()


def sample(rows: int = 600, classes: int = 5, seed: int = 0, scale: float = 3.0):
    """Return the logits of an overconfident model, and labels."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=(rows, classes)) * 2
    labels = (truth + rng.gumbel(size=truth.shape)).argmax(axis=1)
    return (scale * truth).astype(np.float32), labels


def npz(logits: np.ndarray, labels: np.ndarray, name: str = "logits") -> bytes:
    """Return a dataset as npz."""
    file = io.BytesIO()
    np.savez(file, **{name: logits, "labels": labels})
    return file.getvalue()


NPZ = {"Content-Type": "application/x-npz"}


def every(client: httpx.Client, path: str, **asked: Any) -> list[dict[str, Any]]:
    """Return all items of a list, requested page by page."""
    found: list[dict[str, Any]] = []
    while True:
        page = client.get(path, params={"limit": 200, **asked}).json()
        found += page["items"]
        if page["next"] is None:
            return found
        asked["cursor"] = page["next"]
