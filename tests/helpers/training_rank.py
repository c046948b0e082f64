"""A rank of torch.distributed that trains a small model, in a process of its own.

``training_ranks`` starts the ranks; this process imports nothing of the service.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

STEPS, KILLED_AT, BACK_AT = 8, 3, 6
BATCHES = 6
SECONDS = 120


class Timed:
    """Records the duration of its longest call."""

    def __init__(self) -> None:
        self.longest = 0.0

    def __call__(self, do: Callable[..., Any], *args: Any) -> Any:
        begun = time.perf_counter()
        try:
            return do(*args)
        finally:
            self.longest = max(self.longest, time.perf_counter() - begun)


def wait_for(path: Path) -> None:
    """Wait until a file exists."""
    end = time.monotonic() + SECONDS
    while not path.exists():
        assert time.monotonic() < end, f"{path} is not there in time"
        time.sleep(0.02)


def train(client: str | None, folder: Path, timed: Timed) -> list[str]:
    """Train a linear model on a shard; return the bits of gammas and weights after each step."""
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
        dist.barrier()  # the time spent waiting for late ranks does not count
        timed(steered.step)
        held = steered.state.gammas.tobytes() + steered.state.edges.tobytes()
        held += weights.detach().numpy().tobytes()
        bits.append(hashlib.sha256(held).hexdigest())
        if client is not None and step in (KILLED_AT, BACK_AT):
            if rank == 0:
                (folder / f"at-{step}").touch()
                wait_for(folder / f"go-{step}")
            dist.barrier()
    timed(steered.close)
    return bits


def troubles(url: str) -> list[str]:
    """Return the errors on all ranks if a run is refused, has no observations, or is closed."""
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
