"""Callbacks for the Trainer of Hugging Face transformers.

Every evaluation during ``train`` is a step. Checkpoints hold the state as part of the trainer's
state, and ``train(resume_from_checkpoint=...)`` continues from it.
"""

from __future__ import annotations

import importlib
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from calibrators.losses import Loss
from calibrd.io.arrays import as_array
from calibrd.training.callback_base import (
    CallbackBase,
    MonitoringCallback,
    SteeringCallback,
    callback_class,
)
from calibrd.training.observer import is_distributed, statistics_of

__all__ = ["AdaFocalCallback", "MonitorCallback"]


def bases() -> tuple[type, ...]:
    """Return the base class of transformers' callbacks."""
    return (importlib.import_module("transformers").TrainerCallback,)


class _Hooks(CallbackBase):
    """Forwards the trainer's events to the observer."""

    @property
    def _key(self) -> str:
        return f"calibrd-{self.kind}-{self.run}"

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Create the observer, now that ranks, device and checkpoint are known."""
        if self.loss is not None:
            self.loss.to(args.device)
        self._attached.load_state_dict(state.stateful_callbacks.get(self._key, {}))
        self._attached.begin()

    def on_evaluate(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """End the validation pass, if the evaluation is part of training."""
        if self._attached.is_on:
            self._attached.step()
            state.stateful_callbacks[self._key] = self._attached.state_dict()
        else:
            self._attached.discard()

    def on_predict(self, args: Any, state: Any, control: Any, *_: Any, **others: Any) -> None:
        """Discard the observed batches: a prediction is not an evaluation."""
        self._attached.discard()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Notify the loss of the end of the epoch."""
        if self.loss is not None:
            self.loss.next_epoch()

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Close the observer at the end of training."""
        self._attached.end()

    def compute_loss(
        self, outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """Return the loss of a batch, for ``compute_loss_func``; observe it in evaluations."""
        if self.loss is None:
            raise ValueError("pass a loss, for example MonitorCallback(..., loss='seca')")
        logits = _classes_second(_logits_of(outputs))
        self.loss.train(torch.is_grad_enabled())
        if not self.loss.training:
            self._observe_batch(logits, labels)
        mean: Tensor = self.loss(logits, labels)
        if num_items_in_batch is None:
            return mean
        # the batch may be one of several whose gradients the trainer sums
        return mean * (labels != self.loss.ignore_index).sum() / num_items_in_batch

    def _observe_batch(self, logits: Tensor, labels: Tensor) -> None:
        """Observe a batch of an evaluation, unless the callback does so elsewhere."""

    def _check(self, loss: Loss) -> None:
        if loss.reduction != "mean":
            raise ValueError(f"the loss must have reduction 'mean', got {loss.reduction!r}")
        if loss.takes:
            raise ValueError(
                f"{loss.name} takes {' and '.join(sorted(loss.takes))}, "
                "which the Trainer does not provide"
            )


class _AdaFocal(SteeringCallback, _Hooks):
    """Steers the loss with the evaluations during training; pass ``compute_loss`` to the Trainer.

    ``Trainer(..., callbacks=[callback], compute_loss_func=callback.compute_loss)``. The arguments
    are the same as for ``calibrd.training.AdaFocal``. There is one label for each row of logits, as
    in classification of sequences, images or tokens (labels are not shifted as in language
    modelling).
    """

    hint = "use Trainer(..., compute_loss_func=callback.compute_loss)"

    def _observe_batch(self, logits: Tensor, labels: Tensor) -> None:
        self._attached.observe(logits, labels)


class _Monitor(MonitoringCallback, _Hooks):
    """Streams the calibration of every evaluation, for training with any loss.

    ``Trainer(..., callbacks=[callback], compute_metrics=callback.compute_metrics)``. The arguments
    are the same as for ``calibrd.training.Monitor``, and ``loss``, a name for ``make_loss``, with
    its parameters: if you use it, pass ``compute_loss_func=callback.compute_loss`` as well. Losses
    that learn over the epochs start over when training is resumed.
    """

    hint = "use Trainer(..., compute_metrics=callback.compute_metrics)"

    def compute_metrics(self, predicted: Any) -> dict[str, float]:
        """Observe an evaluation; return its ECE, AdaECE, NLL, accuracy and confidence."""
        logits = _classes_second(as_array(_first(predicted.predictions), "predictions"))
        labels = as_array(_first(predicted.label_ids), "label_ids")
        # every rank gets all predictions
        if not is_distributed() or torch.distributed.get_rank() == 0:
            self._attached.observe(logits, labels)
        summary = asdict(statistics_of(logits, labels, self.ignore_index).summary())
        return {name: value for name, value in summary.items() if name != "rows"}


def _first(values: Any) -> Any:
    return values[0] if isinstance(values, tuple) else values


def _logits_of(outputs: Any) -> Tensor:
    """Return the logits in a model's output, which has no loss: it was called without labels."""
    if isinstance(outputs, dict):
        found: Tensor = outputs["logits"]
        return found
    first: Tensor = _first(outputs)
    return first


def _classes_second(logits: Any) -> Any:
    """Turn a model's (n, tokens, k) into the (n, k, tokens) that losses take."""
    return logits.swapaxes(1, 2) if logits.ndim == 3 else logits


CALLBACKS: dict[str, type] = {"AdaFocalCallback": _AdaFocal, "MonitorCallback": _Monitor}
if TYPE_CHECKING:
    AdaFocalCallback, MonitorCallback = _AdaFocal, _Monitor


def __getattr__(name: str) -> Any:
    globals()[name] = found = callback_class(__name__, name, CALLBACKS, bases)
    return found
