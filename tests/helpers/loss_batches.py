"""Batches and losses for tests of the training losses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from calibrators.losses import Loss, all_losses, make_loss, needed

CLASSES, ROWS, WIDTH = 5, 24, 7
SIZES = {"classes": CLASSES, "samples": 200}
# every loss with its defaults, and with parameters that cover its other branches
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in all_losses()},
    "selective_risk margin": ("selective_risk", {"score": "margin"}),
    "selective_risk entropy": ("selective_risk", {"score": "neg_entropy"}),
    "selective_risk accumulated": (
        "selective_risk",
        {"accumulate": True, "second_softmax": True, "normalise": False},
    ),
    "selective_risk gradient": ("selective_risk", {"weight_gradient": True, "smoothing": 0.4}),
    "selective_risk entropy gradient": (
        "selective_risk",
        {"score": "neg_entropy", "weight_gradient": True},
    ),
    "aurc entropy": ("aurc", {"score": "neg_entropy"}),
    "correctness_ranking entropy": ("correctness_ranking", {"score": "neg_entropy"}),
    "correctness_ranking margin": ("correctness_ranking", {"score": "margin"}),
    "dual_focal formula": ("dual_focal", {"as_published": False}),
    "calfocal per sample": ("calfocal", {"per_sample": True}),
    "refcal hard pairs": ("refcal", {"hard_pairs": True}),
    "refcal seca": ("refcal", {"loss": "seca"}),
    "refcal ranking": (
        "refcal",
        {"loss": "correctness_ranking", "loss_params": {"samples": SIZES["samples"]}},
    ),
}
every_loss = pytest.mark.parametrize("name", sorted(all_losses()))
every_variant = pytest.mark.parametrize("name", sorted(VARIANTS))


def fresh(name: str, **params: Any) -> Loss:
    """Return a new loss or variant in training mode."""
    loss, own = VARIANTS.get(name, (name, {}))
    return make_loss(loss, **{one: SIZES[one] for one in needed(loss)}, **{**own, **params})


def made(name: str, **params: Any) -> Loss:
    """Return a new loss or variant in evaluation mode."""
    return fresh(name, **params).eval()


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
