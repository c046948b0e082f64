"""Ranks of torch.distributed train a small model while their service is killed."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import calibrd
from helpers.live_service import ROOT, running, wait_until
from helpers.training_rank import BACK_AT, KILLED_AT, SECONDS, STEPS

__all__ = ["STEPS", "Trained", "trained"]
RANK = Path(__file__).with_name("training_rank.py")


@dataclass
class Trained:
    """The output of the ranks with and without a service, and the state of the service."""

    ranks: list[dict[str, Any]]
    history: list[Any]

    @property
    def longest(self) -> float:
        """Return the longest call on a training thread, in seconds."""
        return max(one["longest"] for one in self.ranks)


def trained(folder: Path, world_size: int) -> Trained:
    """Train with a service that is killed after step 3 and restarted after step 6."""
    service_folder = folder / "data"
    with running(service_folder, "--workers", "0") as first:
        port = str(urlsplit(first.url).port)
        with _ranks(folder, world_size, first.url) as processes:
            _meet(folder, KILLED_AT, processes)
            first.process.kill()
            first.process.wait()
            _go(folder, KILLED_AT)
            _meet(folder, BACK_AT, processes)
            with running(service_folder, "--workers", "0", "--port", port) as second:
                _go(folder, BACK_AT)
                told = [_told(process) for process in processes]
                with calibrd.Client(second.url) as client:
                    history = client.run_history("ranks")
    return Trained(told, history)


@contextmanager
def _ranks(folder: Path, size: int, url: str) -> Iterator[list[subprocess.Popen[str]]]:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "CALIBRD_STATE_DIR": str(folder / "state"),
        "PYTHONPATH": f"{ROOT}{os.pathsep}{Path(__file__).parents[1]}",
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    processes = []
    for rank in range(size):
        with (folder / f"rank-{rank}.log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, RANK, url, str(folder)],
                env={**environment, "RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        processes.append(process)
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def _meet(folder: Path, step: int, processes: list[subprocess.Popen[str]]) -> None:
    """Wait until rank 0 has reached this point."""

    def is_there() -> bool:
        assert all(process.poll() is None for process in processes), _logs(folder)
        return (folder / f"at-{step}").exists()

    wait_until(is_there, seconds=SECONDS)


def _go(folder: Path, step: int) -> None:
    (folder / f"go-{step}").touch()


def _logs(folder: Path) -> str:
    return "\n".join(path.read_text() for path in sorted(folder.glob("rank-*.log")))


def _told(process: subprocess.Popen[str]) -> dict[str, Any]:
    said, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, said
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found
