"""DCA and MDCA: penalties on the gap between confidence and accuracy in a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from annotated_types import Ge, Le
from torch import Tensor

from calibrators.losses.base import Loss
from calibrators.losses.focal import powered


@dataclass(eq=False, repr=False)
class DCALoss(Loss):
    """Cross-entropy + weight * ``|mean confidence - accuracy|`` of the batch.

    Use it if batches are large enough to estimate their accuracy.

    Reference: Liang et al., Improved trainable calibration method for neural networks on medical
    imaging classification, 2020.

    >>> round(DCALoss()(torch.tensor([[2.0, 0.0]]), torch.tensor([0])).item(), 4)
    0.2461
    """

    weight: Annotated[float, Ge(0)] = 1.0

    name: ClassVar[str] = "dca"
    summary: ClassVar[str] = (
        "cross-entropy plus the gap between confidence and accuracy in the batch"
    )

    def losses(self, logits: Tensor, labels: Tensor, **more: Any) -> Tensor:
        """Return the loss of each row."""
        confidence, predicted = torch.softmax(logits, dim=1).max(dim=1)
        accuracy = (predicted == labels).to(confidence.dtype).mean()
        term = (confidence.mean() - accuracy).abs()
        return F.cross_entropy(logits, labels, reduction="none") + self.weight * term


@dataclass(eq=False, repr=False)
class MDCALoss(Loss):
    """Focal loss + weight * ``mean over classes |mean p_c - share of labels c|`` of the batch.

    Use it if the probabilities of all classes matter, not only the largest. With gamma = 0, the
    term is added to cross-entropy.

    Reference: Hebbalaguppe et al., A stitch in time saves nine: a train-time regularizing loss for
    improved neural network calibration, 2022.

    >>> round(MDCALoss()(torch.tensor([[2.0, 0.0]]), torch.tensor([0])).item(), 4)
    0.1343
    """

    weight: Annotated[float, Ge(0)] = 1.0
    gamma: Annotated[float, Ge(0), Le(100)] = 1.0

    name: ClassVar[str] = "mdca"
    summary: ClassVar[str] = (
        "focal loss plus the mean gap between each class's mean probability and its frequency "
        "in the batch"
    )

    def losses(self, logits: Tensor, labels: Tensor, **more: Any) -> Tensor:
        """Return the loss of each row."""
        mean = torch.softmax(logits, dim=1).mean(dim=0)
        share = torch.bincount(labels, minlength=logits.shape[1]).to(mean.dtype) / len(labels)
        surprisal = F.cross_entropy(logits, labels, reduction="none")
        return powered(surprisal, self.gamma) + self.weight * (mean - share).abs().mean()
