"""Dual focal loss: looks at the strongest wrong class as well."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Le
from torch import Tensor
from torch.autograd.function import once_differentiable

from calibrators.losses.base import Loss, argmax
from calibrators.losses.focal import SMALLEST


@dataclass(eq=False, repr=False)
class DualFocalLoss(Loss):
    """``-(1 - p_y + p_j)^gamma log p_y``, p_j the largest probability of the other classes.

    Helps where focal loss ends under-confident: it lies between that and cross-entropy. The
    published code drops p_j where it exceeds p_y; ``as_published`` does so too.
    Reference: Tao et al., Dual focal loss for calibration, 2023.

    >>> round(DualFocalLoss()(torch.tensor([[2.0, 0.0]]), torch.tensor([0])).item(), 7)
    9.78e-05
    """

    gamma: Annotated[float, Ge(0), Le(100)] = 5.0
    as_published: bool = False

    name: ClassVar[str] = "dual_focal"

    def losses(self, logits: Tensor, labels: Tensor, **more: Any) -> Tensor:
        """The loss of each row."""
        found: Tensor = _DualPowered.apply(  # type: ignore[no-untyped-call]
            logits, labels, self.gamma, self.as_published
        )
        return found


class _DualPowered(torch.autograd.Function):
    """The loss with its gradient worked out beside it: a third of what autograd takes.

    The gradient of log p_c is ``onehot_c - p``: a row needs p, and what label and rival weigh.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, labels: Tensor, gamma: float, as_published: bool
    ) -> Tensor:
        place = labels[:, None]
        log_p = torch.log_softmax(logits, dim=1)
        of_label = log_p.gather(1, place)
        beside = argmax(log_p.scatter_(1, place, -torch.inf))[:, None]
        of_rival = log_p.gather(1, beside)
        log_p.scatter_(1, place, of_label)
        p, rival = of_label.exp(), of_rival.exp()
        if as_published:
            rival = torch.where(of_rival > of_label, 0.0, rival)
        base = (rival - torch.expm1(of_label)).clamp_(min=SMALLEST)
        power = base.pow(gamma)
        slope = gamma * power / base * of_label  # by p_y; minus that by p_j
        weights = slope * p - power, -slope * rival
        ctx.save_for_backward(log_p, torch.cat([place, beside], dim=1), torch.cat(weights, dim=1))
        return (-power * of_label)[:, 0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor, None, None, None]:
        log_p, places, weights = ctx.saved_tensors
        pulls = weights * given[:, None]
        slope = log_p.exp().mul_(-pulls.sum(dim=1, keepdim=True))
        return slope.scatter_add_(1, places, pulls), None, None, None
