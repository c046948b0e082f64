"""Focal losses: cross-entropy weighted by a power of the label's probability."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Le
from torch import Tensor

from calibrators.errors import CalibrationWarning
from calibrators.losses.base import WeightedCrossEntropy, differentiable_gradient

# smallest value of 1 - p: below it, the gradient of the power is negligible, and undefined at 0
SMALLEST = 1e-12
# the minimum over p of (1 + p) / (-p log p)
STEEPEST_INVERSE = 3.591


def powered(surprisal: Tensor, gamma: Tensor | float) -> Tensor:
    """Return ``-(1 - p)^gamma log p``, or ``-(1 + p)^-gamma log p`` where gamma is negative.

    Gamma carries no gradient.
    """
    losses: Tensor = _Powered.apply(surprisal, gamma)  # type: ignore[no-untyped-call]
    return losses


class _Powered(torch.autograd.Function):
    """The loss of ``powered`` with an explicit derivative, three times as fast as autograd."""

    @staticmethod
    def forward(ctx: Any, surprisal: Tensor, gamma: Tensor | float) -> Tensor:
        strength = torch.as_tensor(gamma, dtype=surprisal.dtype, device=surprisal.device)
        log_base = _log_base(surprisal, strength)
        power = torch.exp(strength.abs() * log_base)
        tilt = (torch.exp(-surprisal) * surprisal).nan_to_num(nan=0.0)  # p log p is 0 at p = 0
        slope = power * (1 + strength * tilt / log_base.exp())
        ctx.save_for_backward(surprisal, strength, slope)
        return power * surprisal

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        surprisal, strength, slope = ctx.saved_tensors
        if torch.is_grad_enabled():

            def plain(at: Tensor) -> Tensor:
                return torch.exp(strength.abs() * _log_base(at, strength)) * at

            return differentiable_gradient(plain, surprisal, grad_output), None
        return grad_output * slope, None


def _log_base(surprisal: Tensor, strength: Tensor) -> Tensor:
    """Return log(1 - p), or log(1 + p) where gamma is negative.

    The result is accurate for p near 1, and also for p near 0, which matters if gamma is very
    large.
    """
    p = torch.exp(-surprisal)
    of_likely = (-torch.expm1(-surprisal)).clamp(min=SMALLEST).log()
    of_unlikely = torch.log1p(-p.clamp(max=0.5))
    doubt = torch.where(p < 0.5, of_unlikely, of_likely)
    return torch.where(strength >= 0, doubt, torch.log1p(p))


class WrongWayGradients(CalibrationWarning):
    """Warning that the loss pushes some samples away from their labels."""

    code = "wrong_way_gradients"


@dataclass(eq=False, repr=False)
class FocalLoss(WeightedCrossEntropy):
    """``-(1 - p)^gamma log p``, which gives less weight to confident samples.

    Use it against overconfidence; if training is short, it leads to underconfidence. gamma = 0 is
    cross-entropy.

    References: Lin et al., Focal loss for dense object detection, 2017; Mukhoti et al.,
    Calibrating deep neural networks using focal loss, 2020.

    >>> round(FocalLoss()(torch.tensor([[2.0, 0.0]]), torch.tensor([0])).item(), 6)
    0.000215
    """

    gamma: Annotated[float, Ge(0), Le(100)] = 3.0

    name: ClassVar[str] = "focal"
    summary: ClassVar[str] = "cross-entropy weighted by a power of 1 - p"

    def weighted(self, surprisal: Tensor) -> Tensor:
        """Return the losses (n,) of rows whose labels have these surprisals."""
        return powered(surprisal, self.gamma)


@dataclass(eq=False, repr=False)
class FLSD53Loss(WeightedCrossEntropy):
    """Focal loss, ``-(1 - p)^gamma log p``, with gamma 5 where p < 0.2 and 3 elsewhere.

    Use it in the same cases as focal loss; it gives less weight to samples with improbable labels.

    Reference: Mukhoti et al., Calibrating deep neural networks using focal loss, 2020.

    >>> round(FLSD53Loss()(torch.tensor([[0.0, 2.0]]), torch.tensor([0])).item(), 4)
    1.1275
    """

    name: ClassVar[str] = "flsd_53"
    summary: ClassVar[str] = "focal loss with a larger gamma for unlikely labels"

    def weighted(self, surprisal: Tensor) -> Tensor:
        """Return the losses (n,) of rows whose labels have these surprisals."""
        gamma = torch.where(torch.exp(-surprisal.detach()) < 0.2, 5.0, 3.0)
        return powered(surprisal, gamma)


@dataclass(eq=False, repr=False)
class InverseFocalLoss(WeightedCrossEntropy):
    """``-(1 + p)^gamma log p``, which gives more weight to confident samples.

    Use it if a network is underconfident. After temperature scaling, its ECE is above that of
    cross-entropy, both in docs/studies/losses.md and in the AU paper (appendix, Table 4). Above
    gamma = 3.591, the gradient has the wrong sign for some p.

    Reference: Wang et al., Rethinking calibration of deep neural networks, 2021.

    >>> round(InverseFocalLoss()(torch.tensor([[2.0, 0.0]]), torch.tensor([0])).item(), 4)
    0.449
    """

    gamma: Annotated[float, Ge(0), Le(100)] = 2.0

    name: ClassVar[str] = "inverse_focal"
    summary: ClassVar[str] = "cross-entropy weighted by a power of 1 + p"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gamma > STEEPEST_INVERSE:
            warnings.warn(
                f"with gamma {self.gamma}, some samples are pushed away from their labels: "
                f"use a gamma below {STEEPEST_INVERSE}",
                WrongWayGradients,
                stacklevel=3,
            )

    def weighted(self, surprisal: Tensor) -> Tensor:
        """Return the losses (n,) of rows whose labels have these surprisals."""
        return powered(surprisal, -self.gamma)
