"""KDE-XE: cross-entropy with a differentiable estimate of the canonical calibration error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt, Le
from torch import Tensor

from calibrators.losses.base import Loss


@dataclass(eq=False, repr=False)
class KDECrossEntropyLoss(Loss):
    """Cross-entropy + weight * ``mean_j |sum_i!=j w_ji y_i - p_j|_1``, w from a Dirichlet kernel.

    ``w_ji`` is proportional to the density at p_j of a Dirichlet distribution with parameters
    ``p_i / bandwidth + 1``, so the sum estimates E[y | p_j] from the other rows. The cost is
    quadratic in the batch size and linear in the number of classes. Use it if all probabilities
    must be calibrated, not only the largest. The paper uses weights of 0.3 (CIFAR-10) and 0.5
    (CIFAR-100).

    Reference: Popordanoska et al., A consistent and differentiable Lp canonical calibration error
    estimator, 2022.

    >>> logits = torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> round(KDECrossEntropyLoss()(logits, torch.tensor([0, 0, 1])).item(), 3)
    0.472
    """

    weight: Annotated[float, Ge(0)] = 0.3
    bandwidth: Annotated[float, Gt(0), Le(10)] = 0.1

    name: ClassVar[str] = "kde_cross_entropy"
    summary: ClassVar[str] = (
        "cross-entropy plus a kernel estimate of the canonical calibration error; quadratic in "
        "the batch"
    )
    quadratic: ClassVar[bool] = True

    def losses(self, logits: Tensor, labels: Tensor, **more: Any) -> Tensor:
        """Return the loss of each row."""
        log_p = torch.log_softmax(logits, dim=1)
        hard = F.nll_loss(log_p, labels, reduction="none")
        if len(labels) < 2:
            return hard
        return hard + self.weight * self._error(log_p, labels)

    def _error(self, log_p: Tensor, labels: Tensor) -> Tensor:
        p = log_p.exp()
        excess = p / self.bandwidth
        scale = torch.lgamma(excess.sum(dim=1) + p.shape[1]) - torch.lgamma(excess + 1).sum(dim=1)
        # p is clamped to at least 1e-30, so that the logarithm of the density is finite
        density = log_p.clamp(min=-69.0) @ excess.T + scale
        itself = torch.eye(len(p), dtype=torch.bool, device=p.device)
        shares = torch.softmax(density.masked_fill(itself, -torch.inf), dim=1)
        expected = shares @ F.one_hot(labels, p.shape[1]).to(p.dtype)
        return (expected - p).abs().sum(dim=1).mean()
