"""Cross-entropy, the baseline for all losses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from calibrators.losses.base import WeightedCrossEntropy


@dataclass(eq=False, repr=False)
class CrossEntropyLoss(WeightedCrossEntropy):
    """``-log p`` of the label.

    Use it if a post-hoc map follows; after long training, the network is overconfident.

    Reference: Good, Rational decisions, 1952.

    >>> import torch
    >>> round(CrossEntropyLoss()(torch.tensor([[2.0, 0.0]]), torch.tensor([0])).item(), 4)
    0.1269
    """

    name: ClassVar[str] = "cross_entropy"
    summary: ClassVar[str] = "-log p of the label"

    def weighted(self, surprisal: Tensor) -> Tensor:
        """Return the surprisal unchanged."""
        return surprisal
