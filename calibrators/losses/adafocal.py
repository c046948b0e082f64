"""AdaFocal: a focal loss whose strength in each bin of confidence follows the calibration there."""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrators.adafocal import AdaFocalState, Settings
from calibrators.errors import DataError, ParameterError

Reduction = Literal["mean", "sum", "none"]

# where 1 - p is less, its power has no gradient worth the name (and at 0 none at all)
SMALLEST = 1e-12


class AdaFocalLoss(torch.nn.Module):
    """``-(1 - p)^g log p`` for gamma g >= 0, ``-(1 + p)^|g| log p`` below; p is the label's.

    Which gamma a sample gets is decided by the bin of ``state`` into which its p falls; neither
    bin nor gamma carries a gradient. Logits are (n, k), or (n, k, d1, ...) as in segmentation,
    labels (n,) or (n, d1, ...), as torch's ``cross_entropy`` takes them. The mean is over the
    labels that are not ``ignore_index``. The state is part of ``state_dict``, so that a checkpoint
    resumes it. Settings are those of ``calibrators.adafocal.Settings``.

    Reference: Ghosh et al., AdaFocal: calibration-aware adaptive focal loss, 2022.

    >>> from calibrators.adafocal import BinStatistics
    >>> loss = AdaFocalLoss()
    >>> round(loss(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1])).item(), 4)
    0.0497
    >>> loss.state = loss.state.update(BinStatistics.from_confidences([0.9, 0.8], [True, False]))
    """

    def __init__(
        self,
        state: AdaFocalState | None = None,
        *,
        reduction: Reduction = "mean",
        ignore_index: int = -100,
        **settings: Any,
    ) -> None:
        super().__init__()
        if reduction not in ("mean", "sum", "none"):
            raise ParameterError(
                "bad_parameter", f"reduction must be mean, sum or none, got {reduction!r}"
            )
        if state is not None and settings:
            raise ParameterError("bad_parameter", "give a state or settings, not both")
        self.reduction = reduction
        self.ignore_index = ignore_index
        self.state = AdaFocalState.begin(Settings(**settings)) if state is None else state

    @property
    def state(self) -> AdaFocalState:
        """The edges and gammas in force: set it after each update."""
        return self._state

    @state.setter
    def state(self, state: AdaFocalState) -> None:
        if not isinstance(state, AdaFocalState):
            raise ParameterError(
                "bad_parameter", f"state must be an AdaFocalState, got {type(state).__name__}"
            )
        self._state = state
        self._tables: dict[tuple[torch.device, torch.dtype], tuple[Tensor, ...]] = {}

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of a batch."""
        if labels.is_floating_point():
            raise DataError(
                "labels_not_integers", f"labels must be class indices, got {labels.dtype}"
            )
        surprise = F.cross_entropy(
            logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits,
            labels,
            reduction="none",
            ignore_index=self.ignore_index,
        )
        gamma = self._gammas(torch.exp(-surprise.detach()))
        doubt = -torch.expm1(-surprise)  # 1 - p, exact where p is near 1
        base = torch.where(gamma >= 0, doubt.clamp(min=SMALLEST), 2 - doubt)
        losses = base.pow(gamma.abs()) * surprise
        if self.reduction == "none":
            return losses
        if self.reduction == "sum":
            return losses.sum()
        return losses.sum() / (labels != self.ignore_index).sum().clamp(min=1)

    def get_extra_state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return self.state.to_dict()

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.state = AdaFocalState.from_dict(state)

    def extra_repr(self) -> str:
        """What ``repr`` shows."""
        return f"bins={self.state.settings.bins}, step={self.state.step}"

    def _gammas(self, probability: Tensor) -> Tensor:
        """The gamma of each sample from the probability of its label."""
        edges, gammas, accuracy = self._on(probability)
        place = torch.bucketize(probability, edges, right=True)
        settings = self.state.settings
        if settings.rule == "calfocal_per_sample" and self.state.step:
            exponent = settings.rate * (probability - accuracy[place])
            return exponent.exp().clamp(max=settings.gamma_max)
        return gammas[place]

    def _on(self, like: Tensor) -> tuple[Tensor, ...]:
        """Inner edges, gammas and accuracies on the device and in the type of the batch."""
        place = (like.device, like.dtype)
        if place not in self._tables:
            state = self.state
            self._tables[place] = tuple(
                torch.tensor(array, dtype=like.dtype, device=like.device)
                for array in (state.edges[1:-1], state.gammas, state.accuracy)
            )
        return self._tables[place]
