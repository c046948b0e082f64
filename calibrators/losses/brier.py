"""The Brier score as a loss: proper and bounded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from calibrators.losses.base import Loss


@dataclass(eq=False, repr=False)
class BrierLoss(Loss):
    """``sum_c (p_c - 1[c = y])^2``.

    Use it if labels are noisy, because its gradient vanishes on samples whose label is very
    improbable. With many classes, training is slow at first.

    Reference: Brier, Verification of forecasts expressed in terms of probability, 1950.

    >>> round(BrierLoss()(torch.tensor([[2.0, 0.0]]), torch.tensor([0])).item(), 4)
    0.0284
    """

    name: ClassVar[str] = "brier"
    summary: ClassVar[str] = "squared distance to the one-hot label"

    def losses(self, logits: Tensor, labels: Tensor, **more: Any) -> Tensor:
        """Return the loss of each row."""
        p = torch.softmax(logits, dim=1)
        of_label = p.gather(1, labels[:, None])[:, 0]
        return p.square().sum(dim=1) - 2 * of_label + 1
