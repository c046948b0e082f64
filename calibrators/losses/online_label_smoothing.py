"""Online label smoothing: cross-entropy with soft labels learned in the previous epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from annotated_types import Ge, Le
from torch import Tensor

from calibrators.errors import DataError
from calibrators.losses.base import Loss


@dataclass(eq=False, repr=False)
class OnlineLabelSmoothingLoss(Loss):
    """``hard (-log p_y) + (1 - hard) (-sum_c S_yc log p_c)``, where S_y is a soft label.

    S_y is the mean prediction over the correctly predicted training samples of class y in the
    previous epoch, and uniform in the first epoch. Call ``next_epoch()`` after each epoch. The soft
    labels of this epoch and the next, two k x k tables, are part of ``state_dict``. Use it if
    some classes resemble each other, because most of the smoothing then goes to similar classes.

    Reference: Zhang et al., Delving deep into label smoothing, 2021.

    >>> loss = OnlineLabelSmoothingLoss(classes=2)
    >>> round(loss(torch.tensor([[2.0, 0.0]]), torch.tensor([0])).item(), 4)
    0.6269
    >>> loss.next_epoch()
    >>> round(loss(torch.tensor([[2.0, 0.0]]), torch.tensor([0])).item(), 4)
    0.2461
    """

    classes: Annotated[int, Ge(2)]
    hard: Annotated[float, Ge(0), Le(1)] = 0.5

    name: ClassVar[str] = "online_label_smoothing"
    summary: ClassVar[str] = (
        "soft labels learned in the previous epoch, in two k x k tables; call `next_epoch()`"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.soft = torch.nn.Buffer(torch.full((self.classes, self.classes), 1 / self.classes))
        self.seen = torch.nn.Buffer(torch.zeros(self.classes, self.classes))

    def losses(self, logits: Tensor, labels: Tensor, **more: Any) -> Tensor:
        """Return the loss of each row."""
        if logits.shape[1] != self.classes:
            raise DataError(
                "bad_shape", f"logits must have {self.classes} columns, got {logits.shape[1]}"
            )
        log_p = torch.log_softmax(logits, dim=1)
        if self.learns:
            right = log_p.argmax(dim=1) == labels
            p = log_p[right].detach().exp().to(self.seen.dtype)
            self.seen.index_add_(0, labels[right], p)
        hard = F.nll_loss(log_p, labels, reduction="none")
        share = self.soft[labels].to(log_p.dtype)
        soft = -torch.where(share > 0, share * log_p, 0.0).sum(dim=1)
        return self.hard * hard + (1 - self.hard) * soft

    def _apply(self, *how: Any, **more: Any) -> Any:
        """Move the sums with the network, but in float32, as they stagnate in half precision."""
        super()._apply(*how, **more)  # type: ignore[no-untyped-call]
        self.soft.data, self.seen.data = self.soft.data.float(), self.seen.data.float()
        return self

    def next_epoch(self) -> None:
        """Use the mean predictions of this epoch as the soft labels of the next one."""
        total = self.seen.sum(dim=1, keepdim=True)
        self.soft.copy_(torch.where(total > 0, self.seen / total.clamp(min=1e-12), self.soft))
        self.seen.zero_()
