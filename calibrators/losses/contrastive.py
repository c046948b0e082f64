"""The supervised contrastive loss, and the first stage of RefCal's two-stage form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from annotated_types import Gt
from torch import Tensor

from calibrators.errors import DataError, ParameterError
from calibrators.fitting.parameters import check_fields
from calibrators.losses.base import widened

SMALLEST = 1e-6  # embeddings with a smaller norm are not scaled to unit length


def contrastive(embeddings: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Return the supervised contrastive loss of each anchor (n,), on L2-normalised embeddings.

    It is ``-1/|P| sum over positives of log(exp(e_i e_p / t) / sum over others exp(e_i e_a / t))``,
    or 0 for an anchor without a positive.

    Reference: Khosla et al., Supervised contrastive learning, 2020.
    """
    unit = F.normalize(embeddings, dim=1, eps=SMALLEST)
    similar = unit @ unit.T / temperature
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    log_share = torch.log_softmax(similar.masked_fill(itself, -torch.inf), dim=1)
    positive = (labels[:, None] == labels) & ~itself
    sums = torch.where(positive, log_share, 0.0).sum(dim=1)
    return -sums / positive.sum(dim=1).clamp(min=1)


@dataclass(eq=False, repr=False)
class SupervisedContrastive(torch.nn.Module):
    """The supervised contrastive loss of two augmented views of a batch: RefCal's first stage.

    Call it as ``loss(first, second, labels)`` with the outputs (n, d) of the projection head for
    both views, and labels (n,). All 2n embeddings are L2-normalised. The positives of a view are
    the other view of the same sample, and both views of every other sample with the same label. In
    the second stage, the encoder is frozen, the projection head is discarded, and a linear head is
    trained with any loss from ``make_loss`` (see the guide on training). ``RefCalLoss`` uses the
    same term in a single stage. With several ranks, each rank contrasts only its own batch. The
    cost is quadratic in the batch size.

    References: Khosla et al., Supervised contrastive learning, 2020, Eq. 2 (the authors' code
    multiplies it by t / 0.07); Hebbalaguppe et al., Enhancing deep neural network reliability with
    refinement and calibration, 2026.

    >>> loss = SupervisedContrastive(temperature=0.5)
    >>> round(loss(torch.eye(2), torch.eye(2), torch.tensor([0, 1])).item(), 4)
    0.2395
    """

    temperature: Annotated[float, Gt(0)] = 0.1

    def __post_init__(self) -> None:
        torch.nn.Module.__init__(self)
        check_fields(self)

    def forward(self, first: Tensor, second: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss of both views of all samples."""
        if first.dim() != 2 or first.shape != second.shape or labels.shape != first.shape[:1]:
            raise DataError(
                "bad_shape",
                "first and second must be the embeddings (n, d) of two views, and labels (n,), got "
                f"{tuple(first.shape)}, {tuple(second.shape)} and {tuple(labels.shape)}",
            )
        if labels.is_floating_point():
            raise DataError(
                "labels_not_integers", f"labels must be class indices, got {labels.dtype}"
            )
        with torch.autocast(first.device.type, enabled=False):
            both = torch.cat([widened(first), widened(second)])
            return contrastive(both, labels.repeat(2), self.temperature).mean()

    def extra_repr(self) -> str:
        """Return the text inside ``repr``."""
        return f"temperature={self.temperature!r}"


def projection_head(width: int, size: int = 128) -> torch.nn.Sequential:
    """Return the network between an encoder and the contrastive loss: linear, ReLU, linear.

    ``width`` is the width of the encoder's output and of the hidden layer. The network is used only
    in the first stage.

    >>> projection_head(16)(torch.zeros(2, 16)).shape
    torch.Size([2, 128])
    """
    if width < 1 or size < 1:
        raise ParameterError(
            "bad_parameter", f"width and size must be at least 1, got {width} and {size}"
        )
    return torch.nn.Sequential(
        torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, size)
    )
