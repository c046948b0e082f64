"""Losses for selective classification: cross-entropy weighted by the rank of the confidence."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt, Le, Lt
from torch import Tensor

from calibrators.errors import ParameterError
from calibrators.losses.base import Loss
from calibrators.losses.focal import WrongWayGradients

Score = Literal["msp", "margin", "neg_entropy"]

# lower bound of 1 - G, to keep its logarithm finite
SMALLEST = 1e-6


def confidence_score(log_p: Tensor, score: Score) -> Tensor:
    """Return each row's score: the largest probability, the margin, or minus the entropy."""
    if score == "msp":
        return log_p.amax(dim=1).exp()
    if score == "margin":
        first, second = log_p.topk(2, dim=1).values.exp().unbind(dim=1)
        return first - second
    # log p is clamped because the product has no gradient at -inf
    return (log_p.exp() * log_p.clamp(min=-1e4)).sum(dim=1)


@dataclass(eq=False, repr=False)
class SelectiveRiskLoss(Loss):
    """AU: the mean selective risk over the thresholds below tau, where coverage is high.

    The cross-entropy of each row is weighted by ``beta = -C ln(1 - G(min(s, tau)))``. Here s is the
    confidence score of the row, G the distribution of s in the batch, smoothed by ``smoothing``
    (nu) over ``bins`` equal bins of the score's range, tau the ``coverage``-quantile of s, and
    C = 1 / G(tau). The cost is O(n bins), without a sort. The weight rises with the confidence up
    to tau and is constant beyond it. Use it to improve calibration, not ranking: in
    docs/studies/losses.md, the area under the risk-coverage curve hardly changes.

    Counts and C carry no gradient. The weights carry one with ``weight_gradient``, as in the paper
    (Eq. 36), and tau with ``threshold_gradient``. A network that is trained from scratch with
    ``weight_gradient`` can get stuck, because it reduces its weights by reducing its confidence. To
    avoid this, set ``warm_up``, the number of initial batches that use plain cross-entropy.

    With the score ``msp``, the label's logit is pushed down in correctly classified rows where
    ``-s ln(s) G'(s) / (1 - G(s)) > -ln(1 - G(s))``. Because ``G' <= G (1 - G) / nu``,
    ``G <= -ln(1 - G)`` and ``-s ln(s) <= 1/e``, this does not happen if ``nu >= 1/e``. Training
    with a smaller nu issues a ``WrongWayGradients`` warning. See ``safe_smoothing`` for other
    scores.

    ``normalise=False`` leaves out C. ``accumulate`` counts the scores of all training batches since
    ``next_epoch()``. ``second_softmax`` computes the score from the softmax of p. The authors' code
    uses 64 bins and all of these options at the same time: ``weight_gradient``,
    ``threshold_gradient``, ``accumulate``, ``second_softmax`` (for ``neg_entropy``, it divides the
    score by ln k instead, so that its nu is nu ln k here) and ``normalise=False``. The authors'
    code also clips G to [1/(n + 1), n/(n + 1)] for batches of n rows.

    Reference: Zhou et al., Revisiting reweighted risk for calibration: AURC, focal and inverse
    focal loss, 2025, Eq. 19 to 23 and 36.

    >>> logits = torch.tensor([[2.0, 0.0], [0.5, 0.0]])
    >>> round(SelectiveRiskLoss()(logits, torch.tensor([0, 1])).item(), 3)
    0.363
    """

    score: Score = "msp"
    coverage: Annotated[float, Gt(0), Lt(1)] = 0.75
    smoothing: Annotated[float, Gt(0), Le(1)] = 0.1
    bins: Annotated[int, Ge(2), Le(10_000)] = 100
    weight_gradient: bool = False
    threshold_gradient: bool = False
    normalise: bool = True
    accumulate: bool = False
    second_softmax: bool = False
    warm_up: Annotated[int, Ge(0)] = 0

    name: ClassVar[str] = "selective_risk"
    summary: ClassVar[str] = (
        "mean selective risk over the thresholds of the less confident samples (AU)"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threshold_gradient and not self.weight_gradient:
            raise ParameterError(
                "bad_parameter",
                "threshold_gradient needs weight_gradient=True, as the threshold is part of the "
                "weights",
            )
        self.batches = torch.nn.Buffer(torch.tensor(0))
        self.counts = torch.nn.Buffer(torch.zeros(self.bins, dtype=torch.int64))
        self._is_checked = False

    def losses(self, logits: Tensor, labels: Tensor, **more: Any) -> Tensor:
        """Return the loss of each row."""
        log_p = torch.log_softmax(logits, dim=1)
        surprisal = F.nll_loss(log_p, labels, reduction="none")
        if self.learns:
            self._check_smoothing(logits.shape[1])
        if self.learns and self.warm_up:
            self.batches.add_(1)
            if self.batches <= self.warm_up:
                return surprisal
        with torch.set_grad_enabled(self.weight_gradient and torch.is_grad_enabled()):
            scored = torch.log_softmax(log_p.exp(), dim=1) if self.second_softmax else log_p
            score = confidence_score(scored, self.score)
        return self._weights(score, logits.shape[1]) * surprisal

    def next_epoch(self) -> None:
        """Mark the end of an epoch and reset the accumulated counts."""
        self.counts.zero_()

    def _weights(self, score: Tensor, classes: int) -> Tensor:
        low, high = (-math.log(classes), 0.0) if self.score == "neg_entropy" else (0.0, 1.0)
        score = score.clamp(low, high)  # rounding may exceed the range of the bins
        share = self._share_of_bins(score.detach(), low, high)
        centres = (
            low + (torch.arange(self.bins, device=score.device) + 0.5) * (high - low) / self.bins
        )
        tau = _quantile(score if self.threshold_gradient else score.detach(), self.coverage)

        def below(values: Tensor) -> Tensor:
            steps = torch.sigmoid((values[..., None] - centres) / self.smoothing)
            return (steps * share).sum(dim=-1)

        rank = below(torch.where(score < tau, score, tau))
        weights = -torch.log((1 - rank).clamp(min=SMALLEST))
        return weights / below(tau.detach()).clamp(min=SMALLEST) if self.normalise else weights

    def _share_of_bins(self, score: Tensor, low: float, high: float) -> Tensor:
        """Return the share of scores in each bin, for this batch or the epoch so far."""
        counts = torch.histc(score, self.bins, low, high)
        if not self.accumulate:
            return counts / len(score)
        counts = self.counts + counts.long()
        if self.learns:
            self.counts.copy_(counts)
        return counts.to(score.dtype) / counts.sum()

    def _check_smoothing(self, classes: int) -> None:
        """Warn in the first training batch if correct rows can be pushed away from their labels."""
        if self._is_checked or not self.weight_gradient:
            return
        self._is_checked = True
        needed = safe_smoothing(self.score, classes, second_softmax=self.second_softmax)
        if needed is not None and self.smoothing < needed:
            warnings.warn(
                f"with smoothing {self.smoothing}, the weight gradient can push correctly "
                f"classified samples away from their labels: use at least {needed:.3f} "
                f"(score {self.score}, {classes} classes), or weight_gradient=False",
                WrongWayGradients,
                stacklevel=6,
            )


def safe_smoothing(score: Score, classes: int, *, second_softmax: bool = False) -> float | None:
    """Return the smallest smoothing known not to push correct rows away from their labels.

    It is ``a/e``, where a is such that the score s grows by at most ``a p (1 - p)`` per unit of the
    label's logit: 1 for ``msp`` and 2 for ``margin``, or e / (e + k - 1) and (e + 1) / (e + k - 1)
    with a second softmax. It is None for ``neg_entropy``, for which no bound is known. The bound
    holds if tau carries no gradient.

    >>> round(safe_smoothing("msp", 10), 3), round(safe_smoothing("margin", 10), 3)
    (0.368, 0.736)
    >>> round(safe_smoothing("msp", 10, second_softmax=True), 3)
    0.085
    """
    if score == "neg_entropy":
        return None
    if second_softmax:
        slope = (math.e + (score == "margin")) / (math.e + classes - 1)
    else:
        slope = 1.0 if score == "msp" else 2.0
    return slope / math.e


def _quantile(values: Tensor, share: float) -> Tensor:
    """Return the same value as ``torch.quantile``, without sorting and without its row limit."""
    place = share * (len(values) - 1)
    low, high = (values.kthvalue(int(one) + 1).values for one in (place, math.ceil(place)))
    return torch.lerp(low, high, place - int(place))


@dataclass(eq=False, repr=False)
class AURCLoss(Loss):
    """Cross-entropy weighted by ``-ln(1 - rank / (n + 1))``; the highest confidence has rank n.

    The mean approaches the area under the risk-coverage curve with cross-entropy as the risk. Tied
    rows get their mean rank; the weights carry no gradient. Use it as a baseline for AU. In
    docs/studies/losses.md, it does not lower the area under the risk-coverage curve of the error.

    Reference: Zhou et al., A novel characterization of the population area under the risk coverage
    curve (AURC) and rates of finite sample estimators, 2025.

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
            # in double, as float32 is exact only up to 2^24
            behind = len(score) + 1 - (before + 1 + until).double() / 2
            weights = (math.log(len(score) + 1) - torch.log(behind)).to(logits.dtype)
        return weights * F.nll_loss(log_p, labels, reduction="none")
