"""Dual focal loss: looks at the strongest wrong class as well."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Le
from torch import Tensor

from calibrators.losses.base import Loss
from calibrators.losses.focal import SMALLEST


@dataclass(eq=False, repr=False)
class DualFocalLoss(Loss):
    """``-(1 - p_y + p_j)^gamma log p_y``, p_j the largest probability of the other classes.

    Between focal (under-confident) and cross-entropy. The published code drops p_j where it
    exceeds p_y; ``as_published`` does so too.
    Reference: Tao et al., Dual focal loss for calibration, 2023.

    >>> round(DualFocalLoss()(torch.tensor([[2.0, 0.0]]), torch.tensor([0])).item(), 7)
    9.78e-05
    """

    gamma: Annotated[float, Ge(0), Le(100)] = 5.0
    as_published: bool = False

    name: ClassVar[str] = "dual_focal"

    def losses(self, logits: Tensor, labels: Tensor, **more: Any) -> Tensor:
        """The loss of each row."""
        log_p = torch.log_softmax(logits, dim=1)
        of_label = log_p.gather(1, labels[:, None])[:, 0]
        others = log_p.scatter(1, labels[:, None], -torch.inf).amax(dim=1)
        rival = torch.exp(others)
        if self.as_published:
            rival = torch.where(others > of_label, 0.0, rival)
        base = -torch.expm1(of_label) + rival
        return -base.clamp(min=SMALLEST).pow(self.gamma) * of_label
