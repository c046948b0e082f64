"""Batches and losses for the tests of the training losses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from calibrators.losses import Loss, all_losses, make_loss

CLASSES, ROWS, WIDTH = 5, 24, 7
NEEDS: dict[str, dict[str, Any]] = {
    "online_label_smoothing": {"classes": CLASSES},
    "correctness_ranking": {"samples": 200},
}
every_loss = pytest.mark.parametrize("name", sorted(all_losses()))


def made(name: str, **params: Any) -> Loss:
    return make_loss(name, **{**NEEDS.get(name, {}), **params}).eval()


def batch(
    seed: int = 0, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(ROWS, CLASSES, generator=generator, dtype=dtype)
    labels = torch.randint(0, CLASSES, (ROWS,), generator=generator)
    more = {
        "embeddings": torch.randn(ROWS, WIDTH, generator=generator, dtype=dtype),
        "index": torch.arange(ROWS),
    }
    return logits, labels, more
