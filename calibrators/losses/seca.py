"""SECA: cross-entropy with the mean prediction of each class as a second, soft label."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.distributed
from torch import Tensor

from calibrators.errors import CalibrationWarning
from calibrators.losses.base import Loss

FEWEST = 16  # smaller batches are not checked for classes with a single sample


class AloneInClass(CalibrationWarning):
    """Warning that most samples in a batch are the only ones of their class."""

    code = "alone_in_class"


@dataclass(eq=False, repr=False)
class SECALoss(Loss):
    """``-sum_c (1[c = y] + mu_yc) log p_c``, where mu_j is the mean of p over class j.

    There is no parameter to tune. mu carries no gradient, and the target sums to 2 on purpose: the
    gradient with respect to the logits is ``2 p - (onehot + mu)``. A sample that is the only one of
    its class in the batch gets the gradient of cross-entropy; a warning is issued if this applies
    to most samples of the first training batch. With torch.distributed, training uses the means
    over the batches of all ranks, so all ranks must call the loss the same number of times;
    ``all_ranks=False`` uses the means of each rank's own batch. Use it if a network is trained from
    scratch until it fits its training data, and must be calibrated without a held-out set. A
    network that cannot fit the data ends up underconfident: see docs/studies/recipes.md.

    Reference: SECA, self-guided model calibration, OpenReview mNQJ9odBvy, 2025.

    >>> round(SECALoss()(torch.tensor([[2.0, 0.0]]), torch.tensor([0])).item(), 4)
    0.4923
    """

    all_ranks: bool = True

    name: ClassVar[str] = "seca"
    summary: ClassVar[str] = "cross-entropy plus the class's own mean prediction as a soft label"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._is_checked = False

    @property
    def needs_all_ranks(self) -> bool:
        """True if the class means of this batch are computed over all ranks."""
        return self.all_ranks and self.learns and torch.distributed.is_initialized()

    def losses(self, logits: Tensor, labels: Tensor, **more: Any) -> Tensor:
        """Return the loss of each row."""
        across_ranks = self.needs_all_ranks
        # all ranks must check the same batch, the first one, as the check exchanges counts
        if self.learns and not self._is_checked and (across_ranks or len(labels) >= FEWEST):
            self._is_checked = True
            _warn_if_alone(labels, logits.shape[1], across_ranks)
        losses: Tensor = _SelfGuided.apply(logits, labels, across_ranks)  # type: ignore[no-untyped-call]
        return losses


class _SelfGuided(torch.autograd.Function):
    """The loss with an explicit gradient, which needs half as many passes as autograd."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, all_ranks: bool) -> Tensor:
        p = torch.softmax(logits, dim=1)
        target = _class_means(p, labels, all_ranks)
        place = labels[:, None]
        log_sum = logits.amax(dim=1) - p.amax(dim=1).log()
        agreement = torch.linalg.vecdot(target, logits)
        if not bool(agreement.isfinite().all()):  # -inf is legal where the mean is 0
            agreement = torch.linalg.vecdot(target, torch.where(target > 0, logits, 0.0))
        # the target sums to 2
        losses: Tensor = 2 * log_sum - logits.gather(1, place)[:, 0] - agreement
        slope = p.mul_(2).sub_(target).scatter_add_(1, place, torch.full_like(p[:, :1], -1))
        ctx.save_for_backward(logits, slope)
        return losses

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, None]:
        logits, slope = ctx.saved_tensors
        if torch.is_grad_enabled():  # second derivative: the target is constant
            p = torch.softmax(logits, dim=1)
            slope = slope + 2 * (p - p.detach())
        return slope * grad_output[:, None], None, None


def _warn_if_alone(labels: Tensor, classes: int, across_ranks: bool) -> None:
    """Warn if most samples in a batch are the only ones of their class."""
    counts = torch.bincount(labels, minlength=classes)
    if across_ranks:
        torch.distributed.all_reduce(counts)
    alone = int((counts[labels] == 1).sum())
    if len(labels) >= FEWEST and 2 * alone > len(labels):
        warnings.warn(
            f"{alone} of {len(labels)} samples are the only sample of their class in this batch: "
            "for these, SECA is plain cross-entropy. Use larger batches, or draw several samples "
            "of each class",
            AloneInClass,
            stacklevel=6,
        )


def _class_means(p: Tensor, labels: Tensor, all_ranks: bool) -> Tensor:
    """Return, for each sample, the mean of p over its class, (n, k)."""
    counts = torch.bincount(labels, minlength=p.shape[1])
    if all_ranks:
        torch.distributed.all_reduce(counts)
    present = counts > 0
    group = (present.cumsum(0) - 1)[labels]
    sums = p.new_zeros(int(present.sum()), p.shape[1]).index_add_(0, group, p)
    if all_ranks:
        torch.distributed.all_reduce(sums)
    return sums.div_(counts[present, None]).index_select(0, group)
