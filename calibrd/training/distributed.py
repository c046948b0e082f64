"""The processes that train together: who they are, and how they come to the same numbers."""

from __future__ import annotations

import json
import os
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrators.adafocal import BinStatistics

if TYPE_CHECKING:
    import torch

Document = dict[str, Any]


class Ranks(ABC):
    """All ranks as one of them sees them; what they do together, all of them must call."""

    rank: int
    size: int
    decides: str

    @property
    def reports(self) -> bool:
        """Whether this rank talks to the service."""
        return True

    @abstractmethod
    def merged(self, statistics: BinStatistics) -> BinStatistics:
        """The sum of the ranks' statistics, as far as this rank can know it."""

    @abstractmethod
    def agreed(self, document: Document) -> Document:
        """What rank 0 gave, if the ranks can tell each other."""


@dataclass(frozen=True)
class Apart(Ranks):
    """One process, or one of several that only the service knows all of."""

    rank: int = 0
    size: int = 1

    @property
    def decides(self) -> str:  # type: ignore[override]
        """Who computes the state: the trainer, unless it does not know all statistics."""
        return "trainer" if self.size == 1 else "service"

    def merged(self, statistics: BinStatistics) -> BinStatistics:
        """Its own."""
        return statistics

    def agreed(self, document: Document) -> Document:
        """Its own."""
        return document


class Distributed(Ranks):
    """The ranks of torch.distributed: rank 0 reports what they have merged."""

    decides = "trainer"

    def __init__(self) -> None:
        import torch.distributed as dist

        self.rank = dist.get_rank()
        self.size = dist.get_world_size()

    @property
    def reports(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def merged(self, statistics: BinStatistics) -> BinStatistics:
        """The sum over all ranks: of whole numbers, so that the order makes no difference."""
        import torch.distributed as dist

        parts: list[Any] = [None] * self.size
        dist.all_gather_object(parts, statistics.to_bytes())
        return sum(map(BinStatistics.from_bytes, parts), BinStatistics.empty())

    def agreed(self, document: Document) -> Document:
        """What rank 0 gave; as JSON, in which numbers keep every bit."""
        import torch
        import torch.distributed as dist

        place = _device()
        text = np.frombuffer(json.dumps(document).encode(), dtype=np.uint8)
        length = torch.tensor([text.size], device=place)
        dist.broadcast(length, 0)
        sent = torch.zeros(int(length), dtype=torch.uint8, device=place)
        if self.rank == 0:
            sent.copy_(torch.from_numpy(text.copy()))
        dist.broadcast(sent, 0)
        found: Document = json.loads(sent.cpu().numpy().tobytes())
        return found


def _device() -> torch.device:
    """Where tensors must lie to be sent: with NCCL and its like, on the current device."""
    import torch
    import torch.distributed as dist

    if "cpu" in str(dist.get_backend_config()):
        return torch.device("cpu")
    kind = torch.accelerator.current_accelerator()
    if kind is None:
        raise RuntimeError(f"no device for the backend {dist.get_backend()} of torch.distributed")
    return torch.device(kind.type, torch.accelerator.current_device_index())


def is_distributed() -> bool:
    """Whether torch.distributed is in use in this process."""
    dist = sys.modules.get("torch.distributed")
    return dist is not None and dist.is_available() and bool(dist.is_initialized())


def ranks_of(rank: int | None, world_size: int | None, session: str | None) -> Ranks:
    """Those given, or else those of torch.distributed, or else this process alone."""
    if rank is None and world_size is None:
        if is_distributed():
            return Distributed()
        told = os.environ.get("WORLD_SIZE", "1")
        if told not in ("", "1"):
            raise RuntimeError(
                f"WORLD_SIZE is {told}, but torch.distributed is not in use yet: call "
                "init_process_group before, or give rank=, world_size= and session="
            )
        return Apart()
    if rank is None or world_size is None:
        raise ValueError("rank and world_size must be given together, or neither")
    if world_size < 1 or not 0 <= rank < world_size:
        raise ValueError(
            f"rank must lie in 0..world_size-1, got rank={rank} and world_size={world_size}"
        )
    if world_size > 1 and session is None:
        raise ValueError(
            "session must be given with rank= and world_size=: one name that all ranks share, and "
            "no earlier job of this run, such as the scheduler's job id"
        )
    return Apart(rank, world_size)
