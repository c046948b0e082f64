"""Ranks of torch.distributed that train a small model against a service which is killed meanwhile.

Run as a script, this file is one rank; ``trained`` starts them and kills the service.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from live_service import ROOT, running, wait_until

STEPS, KILLED_AT, BACK_AT = 8, 3, 6
BATCHES = 6
SECONDS = 120


@dataclass
class Trained:
    """What the ranks said, with and without a service, and what the service knows."""

    ranks: list[dict[str, Any]]
    history: list[Any]

    @property
    def longest(self) -> float:
        """The longest call on a training thread, in seconds."""
        return max(one["longest"] for one in self.ranks)


def trained(folder: Path, world_size: int) -> Trained:
    """Train, with a service that is killed after step 3 and is back after step 6."""
    import calibrd

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
        "PYTHONPATH": f"{ROOT}{os.pathsep}{Path(__file__).parent}",
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    processes = []
    for rank in range(size):
        with (folder / f"rank-{rank}.log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, __file__, url, str(folder)],
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
    """Wait until rank 0 is there."""

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


# what a rank does


class Timed:
    """Knows the longest of its calls."""

    def __init__(self) -> None:
        self.longest = 0.0

    def __call__(self, do: Callable[..., Any], *args: Any) -> Any:
        begun = time.perf_counter()
        try:
            return do(*args)
        finally:
            self.longest = max(self.longest, time.perf_counter() - begun)


def train(client: str | None, folder: Path, timed: Timed) -> list[str]:
    """Train a linear model on a shard; the bits of the gammas, and the model, after each step."""
    import torch
    import torch.distributed as dist

    from calibrd.training import AdaFocal

    rank, size = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(96 * size, 8, generator=generator)
    labels = (inputs[:, :4] + torch.randn(96 * size, 4, generator=generator)).argmax(dim=1)
    inputs, labels = inputs[rank::size], labels[rank::size]
    weights = torch.zeros(8, 4, requires_grad=True)
    bits = []
    steered = timed(lambda: AdaFocal(client, run="ranks", rate=5.0))
    for step in range(1, STEPS + 1):
        for _ in range(BATCHES):
            loss = timed(steered.loss, inputs[:64] @ weights, labels[:64])
            (gradient,) = torch.autograd.grad(loss, weights)
            dist.all_reduce(gradient)
            weights = (weights - 0.8 * gradient / size).detach().requires_grad_()
        timed(steered.observe, inputs[64:] @ weights, labels[64:])
        dist.barrier()  # ranks that are late are no matter of the call's
        timed(steered.step)
        held = steered.state.gammas.tobytes() + steered.state.edges.tobytes()
        held += weights.detach().numpy().tobytes()
        bits.append(hashlib.sha256(held).hexdigest())
        if client is not None and step in (KILLED_AT, BACK_AT):
            if rank == 0:
                (folder / f"at-{step}").touch()
                wait_until((folder / f"go-{step}").exists, seconds=SECONDS)
            dist.barrier()
    timed(steered.close)
    return bits


def troubles(url: str) -> list[str]:
    """What all are told when a run is refused, nobody has observed anything, or all closed."""
    import torch
    import torch.distributed as dist

    from calibrd.training import AdaFocal, Monitor

    told = []
    try:
        AdaFocal(url, run="ranks", rate=1.0)
    except Exception as error:  # noqa: BLE001 - it is told to the test
        told.append(f"{type(error).__name__}: {error}")
    monitor = Monitor(url, run="last")
    if dist.get_rank() == dist.get_world_size() - 1:
        monitor.observe(torch.eye(3), torch.arange(3))
    told.append(f"{monitor.step().rows} rows")
    try:
        monitor.step()
    except ValueError as error:
        told.append(str(error))
    monitor.close()
    try:
        monitor.step()
    except RuntimeError as error:
        told.append(str(error))
    return told


def main() -> None:
    import torch
    import torch.distributed as dist

    url, folder = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    timed = Timed()
    without = train(None, folder, timed)
    told = {"without": without, "with": train(url, folder, timed), "longest": timed.longest}
    told["troubles"] = troubles(url)
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
