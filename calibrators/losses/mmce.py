"""MMCE: cross-entropy plus a kernel measure of the gap between confidence and correctness."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt
from torch import Tensor

from calibrators.losses.base import Loss

SMALLEST = 1e-12


@dataclass(eq=False, repr=False)
class MMCELoss(Loss):
    """Cross-entropy + weight * ``sqrt(sum_ij (a_i - c_i)(a_j - c_j) k(c_i, c_j)) / n``.

    Here c is the confidence, a the correctness (without gradient), and
    k(c, c') = exp(-|c - c'| / width). The cost is quadratic in the batch size. Use it if batches
    are large enough to show a gap between confidence and accuracy. The SECA paper uses a weight of
    4, or 2 on ImageNet.

    Reference: Kumar et al., Trainable calibration measures for neural networks from kernel mean
    embeddings, 2018.

    >>> round(MMCELoss()(torch.tensor([[2.0, 0.0]]), torch.tensor([0])).item(), 4)
    0.6037
    """

    weight: Annotated[float, Ge(0)] = 4.0
    width: Annotated[float, Gt(0)] = 0.4

    name: ClassVar[str] = "mmce"
    summary: ClassVar[str] = (
        "cross-entropy plus a kernel measure of miscalibration; quadratic in the batch"
    )
    quadratic: ClassVar[bool] = True

    def losses(self, logits: Tensor, labels: Tensor, **more: Any) -> Tensor:
        """Return the loss of each row."""
        confidence, predicted = torch.softmax(logits, dim=1).max(dim=1)
        gap = (predicted == labels).to(confidence.dtype) - confidence
        kernel = torch.exp(-(confidence[:, None] - confidence).abs() / self.width)
        squared = gap @ kernel @ gap
        term = squared.clamp(min=SMALLEST).sqrt() / len(labels)
        return F.cross_entropy(logits, labels, reduction="none") + self.weight * term
