"""Label smoothing: cross-entropy against slightly uncertain labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch.nn.functional as F
from annotated_types import Ge, Lt
from torch import Tensor

from calibrators.losses.base import Loss


@dataclass(eq=False, repr=False)
class LabelSmoothingLoss(Loss):
    """``(1 - e) (-log p_y) + e / k sum_c (-log p_c)``.

    Use it if a network is overconfident. It affects all rows in the same way, which degrades the
    ranking by confidence. The papers use e = 0.1 or 0.05.

    Reference: Szegedy et al., Rethinking the inception architecture for computer vision, 2016.

    >>> import torch
    >>> round(LabelSmoothingLoss()(torch.tensor([[2.0, 0.0]]), torch.tensor([0])).item(), 4)
    0.1769
    """

    smoothing: Annotated[float, Ge(0), Lt(1)] = 0.05

    name: ClassVar[str] = "label_smoothing"
    summary: ClassVar[str] = "cross-entropy against smoothed labels"

    def losses(self, logits: Tensor, labels: Tensor, **more: Any) -> Tensor:
        """Return the loss of each row."""
        return F.cross_entropy(logits, labels, reduction="none", label_smoothing=self.smoothing)
