"""Losses for training, one file each: torch modules called as ``loss(logits, labels)``.

>>> from calibrators.losses import make_loss
>>> make_loss("focal", gamma=2.0)
FocalLoss(gamma=2.0, reduction='mean', ignore_index=-100)
"""

from calibrators.losses.accuracy_difference import DCALoss, MDCALoss
from calibrators.losses.adafocal import AdaFocalLoss, CalFocalLoss
from calibrators.losses.base import Loss
from calibrators.losses.brier import BrierLoss
from calibrators.losses.correctness_ranking import CorrectnessRankingLoss
from calibrators.losses.cross_entropy import CrossEntropyLoss
from calibrators.losses.dual_focal import DualFocalLoss
from calibrators.losses.focal import FLSD53Loss, FocalLoss, InverseFocalLoss
from calibrators.losses.kde_cross_entropy import KDECrossEntropyLoss
from calibrators.losses.label_smoothing import LabelSmoothingLoss
from calibrators.losses.mmce import MMCELoss
from calibrators.losses.online_label_smoothing import OnlineLabelSmoothingLoss
from calibrators.losses.refcal import RefCalLoss
from calibrators.losses.registry import all_losses, make_loss, needed
from calibrators.losses.seca import SECALoss
from calibrators.losses.selective_risk import AURCLoss, SelectiveRiskLoss

__all__ = [
    "AURCLoss",
    "AdaFocalLoss",
    "BrierLoss",
    "CalFocalLoss",
    "CorrectnessRankingLoss",
    "CrossEntropyLoss",
    "DCALoss",
    "DualFocalLoss",
    "FLSD53Loss",
    "FocalLoss",
    "InverseFocalLoss",
    "KDECrossEntropyLoss",
    "LabelSmoothingLoss",
    "Loss",
    "MDCALoss",
    "MMCELoss",
    "OnlineLabelSmoothingLoss",
    "RefCalLoss",
    "SECALoss",
    "SelectiveRiskLoss",
    "all_losses",
    "make_loss",
    "needed",
]
