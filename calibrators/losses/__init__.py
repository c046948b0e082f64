"""Losses for training, one file each: torch modules called as ``loss(logits, labels)``."""

from calibrators.losses.adafocal import AdaFocalLoss

__all__ = ["AdaFocalLoss"]
