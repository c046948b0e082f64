"""Merge and agree on values across the ranks of torch.distributed."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from calibrators.adafocal import BinStatistics
from calibrd.training.observer import Ranks, T


class Distributed(Ranks):
    """The ranks of torch.distributed; rank 0 reports the merged statistics."""

    def __init__(self) -> None:
        super().__init__(dist.get_rank(), dist.get_world_size(), decides="trainer")
        self.reports = self.rank == 0

    def merged(self, statistics: BinStatistics) -> BinStatistics:
        """Return the sum over all ranks, which is exact because the terms are integers."""
        parts = self.gathered(statistics.to_bytes())
        return sum(map(BinStatistics.from_bytes, parts), BinStatistics.empty())

    def gathered(self, value: T) -> list[T]:
        """Return the values of all ranks, in rank order."""
        parts: list[Any] = [None] * self.size
        dist.all_gather_object(parts, value)
        return parts

    def agreed(self, document: dict[str, Any]) -> dict[str, Any]:
        """Return the document of rank 0, sent as JSON, which preserves floats exactly."""
        place = _device()
        text = np.frombuffer(json.dumps(document).encode(), dtype=np.uint8)
        length = torch.tensor([text.size], device=place)
        dist.broadcast(length, 0)
        sent = torch.zeros(int(length), dtype=torch.uint8, device=place)
        if self.rank == 0:
            sent.copy_(torch.from_numpy(text.copy()))
        dist.broadcast(sent, 0)
        found: dict[str, Any] = json.loads(sent.cpu().numpy().tobytes())
        return found


def _device() -> torch.device:
    """Return the device from which the backend sends tensors; with NCCL, the current GPU."""
    if "cpu" in str(dist.get_backend_config()):
        return torch.device("cpu")
    kind = torch.accelerator.current_accelerator()
    if kind is None:
        raise RuntimeError(
            f"no device found for the torch.distributed backend {dist.get_backend()}"
        )
    return torch.device(kind.type, torch.accelerator.current_device_index())
