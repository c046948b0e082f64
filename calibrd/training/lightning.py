"""Callbacks for PyTorch Lightning, both ``lightning.pytorch`` and ``pytorch_lightning``.

``validation_step`` must return ``{"logits": ..., "labels": ...}`` or ``(logits, labels)``. Every
validation pass of ``fit``, except the sanity check, is a step. The trainer's checkpoints hold the
state, and ``fit(..., ckpt_path=...)`` continues from it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import TYPE_CHECKING, Any

from calibrd.training.callback_base import (
    CallbackBase,
    MonitoringCallback,
    SteeringCallback,
    callback_class,
)

__all__ = ["AdaFocalCallback", "MonitorCallback"]

NAMES = ("lightning.pytorch", "pytorch_lightning")
HINT = "validation_step must return {'logits': ..., 'labels': ...} or (logits, labels)"


def bases() -> tuple[type, ...]:
    """Return the Callback classes of the imported packages, or else of all installed ones."""
    loaded = [name for name in NAMES if sys.modules.get(name) is not None]
    found = loaded or [name for name in NAMES if importlib.util.find_spec(name.partition(".")[0])]
    if not found:
        raise ModuleNotFoundError(
            "calibrd.training.lightning needs lightning or pytorch_lightning", name="lightning"
        )
    return tuple(importlib.import_module(name).Callback for name in found)


class _Hooks(CallbackBase):
    """Lightning callback that forwards events to the observer."""

    hint = HINT

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Create the observer, now that ranks and checkpoint are known."""
        self._attached.begin()

    def on_validation_batch_end(
        self,
        trainer: Any,
        pl_module: Any,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Observe a batch."""
        if not trainer.sanity_checking:
            self._attached.observe(*_parts(outputs))

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """End the validation pass."""
        if not trainer.sanity_checking:
            self._attached.step()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Notify the loss of the end of the epoch."""
        if self.loss is not None:
            self.loss.next_epoch()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Close the observer after a failure or Ctrl-C."""
        self._attached.end()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Close the observer at the end of training."""
        self._attached.end()

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return self._attached.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        self._attached.load_state_dict(state_dict)


class _AdaFocal(SteeringCallback, _Hooks):
    """Callback that adapts ``callback.loss`` after each validation pass; train with that loss.

    The arguments are the same as for ``calibrd.training.AdaFocal``.
    """


class _Monitor(MonitoringCallback, _Hooks):
    """Callback that streams the calibration of every validation pass, for any loss.

    The arguments are the same as for ``calibrd.training.Monitor``. To train with a loss from
    ``make_loss``, pass its name as ``loss``, and its parameters, to the callback, and use
    ``callback.loss`` in the module; the loss is notified at the end of each epoch.
    """


def _parts(outputs: Any) -> tuple[Any, Any]:
    if isinstance(outputs, dict) and "logits" in outputs and "labels" in outputs:
        return outputs["logits"], outputs["labels"]
    if isinstance(outputs, tuple | list) and len(outputs) == 2:
        return outputs[0], outputs[1]
    raise TypeError(f"{HINT}, got {type(outputs).__name__}")


CALLBACKS: dict[str, type] = {"AdaFocalCallback": _AdaFocal, "MonitorCallback": _Monitor}
if TYPE_CHECKING:
    AdaFocalCallback, MonitorCallback = _AdaFocal, _Monitor


def __getattr__(name: str) -> Any:
    globals()[name] = found = callback_class(__name__, name, CALLBACKS, bases)
    return found
