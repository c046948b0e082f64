"""SECA: each class's own mean prediction as a second, soft label."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from calibrators.losses.base import Loss


@dataclass(eq=False, repr=False)
class SECALoss(Loss):
    """``-sum_c (1[c = y] + mu_yc) log p_c``, mu_j the mean of p over class j.

    No parameter to tune. mu carries no gradient, and the target sums to 2 on purpose: the gradient
    with respect to the logits is ``2 p - (onehot + mu)``. Means are over the batch, with
    ``all_ranks`` over the batches of all ranks of torch.distributed.

    >>> round(SECALoss()(torch.tensor([[2.0, 0.0]]), torch.tensor([0])).item(), 4)
    0.4923
    """

    all_ranks: bool = False

    name: ClassVar[str] = "seca"

    def losses(self, logits: Tensor, labels: Tensor, **more: Any) -> Tensor:
        """The loss of each row."""
        found: Tensor = _SelfGuided.apply(logits, labels, self.all_ranks)  # type: ignore[no-untyped-call]
        return found


class _SelfGuided(torch.autograd.Function):
    """The loss with its gradient worked out beside it: half the passes that autograd takes."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, all_ranks: bool) -> Tensor:
        place = labels[:, None]
        largest, top = logits.max(dim=1, keepdim=True)
        p = torch.softmax(logits, dim=1)
        target = _means(p, labels, all_ranks)[labels]
        behind = (logits - largest).clamp_(min=-1e30)  # -inf is legal where mu is 0
        # the target sums to 2, and log sum exp of what is behind is -log p of the largest
        losses = -2 * p.gather(1, top).log() - behind.gather(1, place)
        losses -= torch.linalg.vecdot(target, behind)[:, None]
        slope = p.mul_(2).sub_(target)
        slope.scatter_add_(1, place, -torch.ones_like(largest))
        ctx.save_for_backward(slope)
        return losses[:, 0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor, None, None]:
        (slope,) = ctx.saved_tensors
        return slope * given[:, None], None, None


def _means(p: Tensor, labels: Tensor, all_ranks: bool) -> Tensor:
    """The mean of p over the samples of each class (k, k); 0 for a class that is not there."""
    classes = p.shape[1]
    sums = p.new_zeros(classes, classes).index_add_(0, labels, p)
    counts = torch.bincount(labels, minlength=classes).to(p.dtype)
    if all_ranks and torch.distributed.is_initialized():
        torch.distributed.all_reduce(sums)
        torch.distributed.all_reduce(counts)
    return sums.div_(counts.clamp(min=1)[:, None])
