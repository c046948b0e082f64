"""CRL: cross-entropy plus a loss that ranks confidence by how often samples were correct."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor

from calibrators.errors import DataError
from calibrators.losses.base import Loss
from calibrators.losses.selective_risk import Score, confidence_score


@dataclass(eq=False, repr=False)
class CorrectnessRankingLoss(Loss):
    """Cross-entropy + weight * ``max(0, |h_i - h_j| - sign(h_i - h_j)(s_i - s_j))``.

    i is a sample and j the next sample in the batch. h is the share of epochs so far in which the
    network classified a training sample correctly, and s is its confidence score. Pass the samples'
    positions in the training set as ``loss(logits, labels, index=index)``, and call
    ``next_epoch()`` after each epoch. The history is part of ``state_dict``. After ``eval()``,
    ``index`` may be left out for samples that are not in the training set; the loss is then
    cross-entropy. Use it if confidence must separate correct from incorrect predictions.

    Reference: Moon et al., Confidence-aware learning for deep neural networks, 2020.

    >>> loss = CorrectnessRankingLoss(samples=2)
    >>> logits, labels = torch.tensor([[2.0, 0.0], [0.5, 0.0]]), torch.tensor([0, 1])
    >>> round(loss(logits, labels, index=torch.tensor([0, 1])).item(), 4)
    0.5505
    >>> loss.next_epoch()
    >>> round(loss(logits, labels, index=torch.tensor([0, 1])).item(), 4)
    1.2922
    """

    samples: Annotated[int, Ge(1)]
    weight: Annotated[float, Ge(0)] = 1.0
    score: Score = "msp"

    name: ClassVar[str] = "correctness_ranking"
    summary: ClassVar[str] = (
        "ranks confidence by how often a sample has been classified correctly; takes `index=`; "
        "call `next_epoch()`"
    )
    takes: ClassVar[frozenset[str]] = frozenset({"index"})

    def __post_init__(self) -> None:
        super().__post_init__()
        self.right = torch.nn.Buffer(torch.zeros(self.samples, dtype=torch.int32))
        self.epochs = torch.nn.Buffer(torch.tensor(0, dtype=torch.int32))

    def losses(
        self, logits: Tensor, labels: Tensor, index: Tensor | None = None, **more: Any
    ) -> Tensor:
        """Return the loss of each row; ``index`` (n,) holds positions in the training set."""
        if index is None and self.training:
            raise DataError(
                "no_index", "call loss(logits, labels, index=...) with the index of each sample"
            )
        log_p = torch.log_softmax(logits, dim=1)
        hard = F.nll_loss(log_p, labels, reduction="none")
        if index is None:  # samples without a history
            return hard
        if len(index) and not 0 <= int(index.min()) <= int(index.max()) < self.samples:
            raise DataError(
                "index_out_of_range",
                f"index must be from 0 to {self.samples - 1}, got {int(index.min())} to "
                f"{int(index.max())}: set samples to the size of the training set",
            )
        past = self.right[index].to(logits.dtype) / self.epochs.clamp(min=1)
        if self.learns:
            correct = (logits.argmax(dim=1) == labels).to(torch.int32)
            self.right.index_add_(0, index, correct)
        score = confidence_score(log_p, self.score)
        lead = past - past.roll(-1)
        ranked = torch.relu(lead.abs() - lead.sign() * (score - score.roll(-1)))
        return hard + self.weight * ranked

    def next_epoch(self) -> None:
        """Mark the end of an epoch, whose results become part of the history."""
        self.epochs.add_(1)
