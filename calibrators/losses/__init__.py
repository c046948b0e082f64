"""Training losses, one per file: torch modules that are called with logits and labels.

>>> from calibrators.losses import make_loss
>>> make_loss("focal", gamma=2.0)
FocalLoss(gamma=2.0, reduction='mean', ignore_index=-100)
"""

from calibrators.losses.base import Loss
from calibrators.losses.contrastive import SupervisedContrastive, projection_head
from calibrators.losses.registry import all_losses, make_loss, needed

__all__ = [
    "Loss",
    "SupervisedContrastive",
    "all_losses",
    "make_loss",
    "needed",
    "projection_head",
]
