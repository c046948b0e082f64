"""Dual focal loss: looks at the strongest wrong class as well."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Le
from torch import Tensor

from calibrators.losses.base import Loss, argmax, gradient_again
from calibrators.losses.focal import SMALLEST


@dataclass(eq=False, repr=False)
class DualFocalLoss(Loss):
    """``-(1 - p_y + p_j)^gamma log p_y``, p_j the largest probability of the other classes.

    Helps where focal loss ends under-confident. A row that is predicted wrongly weighs up to
    2^gamma here; in the authors' code, and with ``as_published``, p_j is the largest probability
    below p_y, so that no row weighs more than 1.
    Reference: Tao et al., Dual focal loss for calibration, 2023.

    >>> round(DualFocalLoss()(torch.tensor([[2.0, 0.0]]), torch.tensor([0])).item(), 7)
    9.78e-05
    """

    gamma: Annotated[float, Ge(0), Le(100)] = 5.0
    as_published: bool = False

    name: ClassVar[str] = "dual_focal"
    summary: ClassVar[str] = "focal loss that looks at the strongest wrong class as well"

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
        if as_published:
            beside = argmax(log_p.masked_fill(log_p >= of_label, -torch.inf))[:, None]
        else:
            beside = argmax(log_p.scatter_(1, place, -torch.inf))[:, None]
            log_p.scatter_(1, place, of_label)
        rival = _rival(of_label, log_p.gather(1, beside), as_published)
        base = _base(of_label, rival)
        power = base.pow(gamma)
        slope = gamma * power / base * of_label  # by p_y; minus that by p_j
        weights = slope * of_label.exp() - power, -slope * rival
        places = torch.cat([place, beside], dim=1)
        ctx.save_for_backward(logits, log_p, places, torch.cat(weights, dim=1))
        ctx.settings = gamma, as_published
        return (-power * of_label)[:, 0]

    @staticmethod
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor, None, None, None]:
        logits, log_p, places, weights = ctx.saved_tensors
        gamma, as_published = ctx.settings
        if torch.is_grad_enabled():

            def plain(at: Tensor) -> Tensor:
                label, rival = torch.log_softmax(at, dim=1).gather(1, places).unbind(dim=1)
                return -_base(label, _rival(label, rival, as_published)).pow(gamma) * label

            return gradient_again(plain, logits, given), None, None, None
        pulls = weights * given[:, None]
        slope = log_p.exp().mul_(-pulls.sum(dim=1, keepdim=True))
        return slope.scatter_add_(1, places, pulls), None, None, None


def _base(of_label: Tensor, rival: Tensor) -> Tensor:
    """1 - p_y + p_j."""
    return (rival - torch.expm1(of_label)).clamp(min=SMALLEST)


def _rival(of_label: Tensor, of_rival: Tensor, as_published: bool) -> Tensor:
    """p_j; as published 0 where no class is below the label's."""
    if as_published:
        return torch.where(of_rival >= of_label, 0.0, of_rival.exp())
    return of_rival.exp()
