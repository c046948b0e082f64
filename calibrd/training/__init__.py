"""Train with calibration feedback, recorded as a run on the service.

``AdaFocal`` adapts a focal loss during training, and ``make_loss`` creates any loss by name; both
need torch. ``Monitor`` observes training with any loss and needs only numpy. Callbacks are in
``calibrd.training.lightning`` and ``calibrd.training.huggingface``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from calibrd.training.monitor import Monitor

if TYPE_CHECKING:
    from calibrators.losses import make_loss
    from calibrd.training.adafocal import AdaFocal

__all__ = ["AdaFocal", "Monitor", "make_loss"]


def __getattr__(name: str) -> Any:
    # imported on first use, because torch is optional
    if name == "AdaFocal":
        from calibrd.training.adafocal import AdaFocal

        return AdaFocal
    if name == "make_loss":
        try:
            from calibrators.losses import make_loss
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "calibrd.training.make_loss needs torch: pip install 'calibrd[train]'",
                name=error.name,
            ) from error

        return make_loss
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
