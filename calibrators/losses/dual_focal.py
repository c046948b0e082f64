"""Dual focal loss, which also takes the most probable wrong class into account."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Le
from torch import Tensor

from calibrators.losses.base import Loss, argmax, differentiable_gradient
from calibrators.losses.focal import SMALLEST

FAR = 1e30  # below any log-probability


@dataclass(eq=False, repr=False)
class DualFocalLoss(Loss):
    """``-(1 - p_y + p_j)^gamma log p_y``, where p_j is the largest probability below p_y.

    Use it if focal loss leads to underconfidence. This is the loss in the authors' released code:
    no row has a weight above 1, and p_j is 0 if no class is less probable than the label. In the
    paper's formula (``as_published=False``), p_j is the largest probability of the other classes,
    and a misclassified row has a weight of up to 2^gamma.

    References: Tao et al., Dual focal loss for calibration, 2023; Zhou et al., Revisiting
    reweighted risk for calibration, 2025, appendix C.3 (whose Eq. 35 drops p_j where p_y < p_j; the
    code takes the largest one below p_y).

    >>> round(DualFocalLoss()(torch.tensor([[2.0, 0.0]]), torch.tensor([0])).item(), 7)
    9.78e-05
    """

    gamma: Annotated[float, Ge(0), Le(100)] = 5.0
    as_published: bool = True

    name: ClassVar[str] = "dual_focal"
    summary: ClassVar[str] = "focal loss that also considers the strongest wrong class"

    def losses(self, logits: Tensor, labels: Tensor, **more: Any) -> Tensor:
        """Return the loss of each row."""
        losses: Tensor = _DualPowered.apply(  # type: ignore[no-untyped-call]
            logits, labels, self.gamma, self.as_published
        )
        return losses


class _DualPowered(torch.autograd.Function):
    """The loss with an explicit gradient, which is three times as fast as autograd.

    The gradient of log p_c is ``onehot_c - p``, so a row only needs p and the weights of the label
    and of the class j.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, labels: Tensor, gamma: float, as_published: bool
    ) -> Tensor:
        place = labels[:, None]
        log_p = torch.log_softmax(logits, dim=1)
        of_label = log_p.gather(1, place)
        if as_published:
            # with an unpredictable mask, arithmetic is ten times faster than masked_fill
            beyond = torch.ge(log_p, of_label, out=torch.empty_like(log_p))
            runner_up = argmax(beyond.mul_(-FAR).add_(log_p))[:, None]
        else:
            runner_up = argmax(log_p.scatter_(1, place, -torch.inf))[:, None]
            log_p.scatter_(1, place, of_label)
        rival = _rival(of_label, log_p.gather(1, runner_up), as_published)
        base = _base(of_label, rival)
        power = base.pow(gamma)
        slope = gamma * power / base * of_label  # d / d p_y; d / d p_j is its negative
        weights = slope * of_label.exp() - power, -slope * rival
        places = torch.cat([place, runner_up], dim=1)
        ctx.save_for_backward(logits, log_p, places, torch.cat(weights, dim=1))
        ctx.settings = gamma, as_published
        return (-power * of_label)[:, 0]

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, None, None]:
        logits, log_p, places, weights = ctx.saved_tensors
        gamma, as_published = ctx.settings
        if torch.is_grad_enabled():

            def plain(at: Tensor) -> Tensor:
                label, rival = torch.log_softmax(at, dim=1).gather(1, places).unbind(dim=1)
                return -_base(label, _rival(label, rival, as_published)).pow(gamma) * label

            return differentiable_gradient(plain, logits, grad_output), None, None, None
        pulls = weights * grad_output[:, None]
        slope = log_p.exp().mul_(-pulls.sum(dim=1, keepdim=True))
        return slope.scatter_add_(1, places, pulls), None, None, None


def _base(of_label: Tensor, rival: Tensor) -> Tensor:
    """Return 1 - p_y + p_j."""
    return (rival - torch.expm1(of_label)).clamp(min=SMALLEST)


def _rival(of_label: Tensor, of_rival: Tensor, as_published: bool) -> Tensor:
    """Return p_j, which is 0 with ``as_published`` if no class is less probable than the label."""
    if as_published:
        return torch.where(of_rival >= of_label, 0.0, of_rival.exp())
    return of_rival.exp()
