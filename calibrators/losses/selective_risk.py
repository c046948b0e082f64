"""Losses for selective classification: cross-entropy weighted by the rank of the confidence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt, Le, Lt
from torch import Tensor

from calibrators.losses.base import Loss

Score = Literal["msp", "margin", "neg_entropy"]

# lower bound of 1 - G, to keep its logarithm finite
SMALLEST = 1e-6


def confidence_score(log_p: Tensor, score: Score) -> Tensor:
    """Return each row's score: largest probability, lead over the second, or minus the entropy."""
    if score == "msp":
        return log_p.amax(dim=1).exp()
    if score == "margin":
        first, second = log_p.topk(2, dim=1).values.exp().unbind(dim=1)
        return first - second
    # log p is bounded, because the product has no gradient at -inf
    return (log_p.exp() * log_p.clamp(min=-1e4)).sum(dim=1)


@dataclass(eq=False, repr=False)
class SelectiveRiskLoss(Loss):
    """AU: the area under the risk-coverage curve, restricted to the less confident rows.

    Each row's cross-entropy is weighted by ``beta = -C ln(1 - G(min(s, tau)))``: s its confidence
    score, G the batch's distribution of s smoothed by ``smoothing`` over ``bins`` equal bins of the
    score's range, tau the ``coverage``-quantile of s, C = 1 / G(tau). Counts, tau and C carry no
    gradient, nor do the weights unless ``weight_gradient`` is set (the paper's form: then the first
    ``warm_up`` batches are plain cross-entropy, because training from scratch gets stuck
    otherwise). The cost is O(n bins), without a sort. Helps when predictions below a threshold are
    deferred: the most confident rows count most, up to tau, beyond which more confidence gains
    nothing. Reference: Zhou et al., Revisiting reweighted risk for calibration: AURC, focal and
    inverse focal loss, 2025.

    >>> logits = torch.tensor([[2.0, 0.0], [0.5, 0.0]])
    >>> round(SelectiveRiskLoss()(logits, torch.tensor([0, 1])).item(), 3)
    0.363
    """

    score: Score = "msp"
    coverage: Annotated[float, Gt(0), Lt(1)] = 0.75
    smoothing: Annotated[float, Gt(0), Le(1)] = 0.1
    bins: Annotated[int, Ge(2), Le(10_000)] = 100
    weight_gradient: bool = False
    warm_up: Annotated[int, Ge(0)] = 0

    name: ClassVar[str] = "selective_risk"
    summary: ClassVar[str] = "area under the risk-coverage curve of the less confident samples (AU)"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.batches = torch.nn.Buffer(torch.tensor(0))

    def losses(self, logits: Tensor, labels: Tensor, **more: Any) -> Tensor:
        """Return the loss of each row."""
        log_p = torch.log_softmax(logits, dim=1)
        surprisal = F.nll_loss(log_p, labels, reduction="none")
        if self.learns and self.warm_up:
            self.batches.add_(1)
            if self.batches <= self.warm_up:
                return surprisal
        with torch.set_grad_enabled(self.weight_gradient and torch.is_grad_enabled()):
            weights = self._weights(confidence_score(log_p, self.score), logits.shape[1])
        return weights * surprisal

    def _weights(self, score: Tensor, classes: int) -> Tensor:
        low, high = (-math.log(classes), 0.0) if self.score == "neg_entropy" else (0.0, 1.0)
        score = score.clamp(low, high)  # rounding may exceed the range of the bins
        fixed = score.detach()
        count = torch.histc(fixed, self.bins, low, high) / len(fixed)
        centres = (
            low + (torch.arange(self.bins, device=score.device) + 0.5) * (high - low) / self.bins
        )
        tau = _quantile(fixed, self.coverage)

        def below(values: Tensor) -> Tensor:
            steps = torch.sigmoid((values[..., None] - centres) / self.smoothing)
            return (steps * count).sum(dim=-1)

        share = below(torch.minimum(score, tau))
        return -torch.log((1 - share).clamp(min=SMALLEST)) / below(tau).clamp(min=SMALLEST)


def _quantile(values: Tensor, share: float) -> Tensor:
    """Return torch.quantile, without its sort and its row limit."""
    place = share * (len(values) - 1)
    low, high = (values.kthvalue(int(one) + 1).values for one in (place, math.ceil(place)))
    return torch.lerp(low, high, place - int(place))


@dataclass(eq=False, repr=False)
class AURCLoss(Loss):
    """Cross-entropy weighted by ``-ln(1 - rank / (n + 1))`` of the confidence (n: the highest).

    Its mean approaches the area under the risk-coverage curve of cross-entropy as the risk. Tied
    rows share their mean rank; the weights carry no gradient. Helps when the order of the
    confidences matters more than their values.
    Reference: Zhou et al., A novel characterization of the population area under the risk-coverage
    curve, 2024.

    >>> logits = torch.tensor([[2.0, 0.0], [0.5, 0.0]])
    >>> round(AURCLoss()(logits, torch.tensor([0, 1])).item(), 3)
    0.267
    """

    score: Score = "msp"

    name: ClassVar[str] = "aurc"
    summary: ClassVar[str] = "cross-entropy weighted by the rank of the confidence"

    def losses(self, logits: Tensor, labels: Tensor, **more: Any) -> Tensor:
        """Return the loss of each row."""
        log_p = torch.log_softmax(logits, dim=1)
        with torch.no_grad():
            score = confidence_score(log_p, self.score)
            ordered = score.sort().values
            before, until = (torch.searchsorted(ordered, score, right=end) for end in (False, True))
            behind = len(score) + 1 - (before + 1 + until).double() / 2  # float32: exact to 2^24
            weights = (math.log(len(score) + 1) - torch.log(behind)).to(logits.dtype)
        return weights * F.nll_loss(log_p, labels, reduction="none")
