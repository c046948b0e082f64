"""Callbacks for the Trainer of Hugging Face transformers.

Every evaluation of ``train`` is a step. Checkpoints hold where it is in the trainer's state, and
``train(resume_from_checkpoint=...)`` goes on from there.
"""

from __future__ import annotations

import importlib
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from calibrators.losses import Loss
from calibrd.io.arrays import as_array
from calibrd.training.callback_base import Attaching, Steering, Watching, callback_class
from calibrd.training.observer import is_distributed, statistics_of

__all__ = ["AdaFocalCallback", "MonitorCallback"]


def bases() -> tuple[type, ...]:
    """The class that callbacks of transformers are of."""
    return (importlib.import_module("transformers").TrainerCallback,)


class _Hooks(Attaching):
    """The trainer's events, told to what is attached."""

    @property
    def _key(self) -> str:
        return f"calibrd-{self.kind}-{self.run}"

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Training begins: its ranks, its device and its checkpoint are known."""
        if self.loss is not None:
            self.loss.to(args.device)
        self._attached.load_state_dict(state.stateful_callbacks.get(self._key, {}))
        self._attached.begin()

    def on_evaluate(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Step, if it is part of training."""
        if self._attached.is_on:
            self._attached.step()
            state.stateful_callbacks[self._key] = self._attached.state_dict()
        else:
            self._attached.discard()

    def on_predict(self, args: Any, state: Any, control: Any, *_: Any, **others: Any) -> None:
        """Forget what was observed: it was no evaluation."""
        self._attached.discard()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Tell the loss."""
        if self.loss is not None:
            self.loss.next_epoch()

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Training has ended."""
        self._attached.end()

    def compute_loss(
        self, outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """The loss of a batch, for ``compute_loss_func``; an evaluation has no gradients."""
        if self.loss is None:
            raise ValueError("which loss? MonitorCallback(..., loss='seca'), for example")
        logits = _classes_second(_logits_of(outputs))
        self.loss.train(torch.is_grad_enabled())
        if not self.loss.training:
            self._seen(logits, labels)
        mean: Tensor = self.loss(logits, labels)
        if num_items_in_batch is None:
            return mean
        # the trainer's batch may be one of several whose gradients are summed
        return mean * (labels != self.loss.ignore_index).sum() / num_items_in_batch

    def _seen(self, logits: Tensor, labels: Tensor) -> None:
        """A batch of an evaluation was given to the loss."""

    def _check(self, loss: Loss) -> None:
        if loss.reduction != "mean":
            raise ValueError(f"the loss must have reduction 'mean', got {loss.reduction!r}")
        if loss.takes:
            raise ValueError(
                f"{loss.name} takes {' and '.join(sorted(loss.takes))}, which the Trainer has not"
            )


class _AdaFocal(Steering, _Hooks):
    """Steers the loss by the evaluations of training; give ``compute_loss`` to the Trainer.

    ``Trainer(..., callbacks=[callback], compute_loss_func=callback.compute_loss)``. Arguments are
    those of ``calibrd.training.AdaFocal``. Labels are one for each logits' row, as in
    classification of sequences, images or tokens (not shifted, as in language modelling).
    """

    hint = "give Trainer(..., compute_loss_func=callback.compute_loss)"

    def _seen(self, logits: Tensor, labels: Tensor) -> None:
        self._attached.observe(logits, labels)


class _Monitor(Watching, _Hooks):
    """Streams the calibration of every evaluation of training, which goes on with any loss.

    ``Trainer(..., callbacks=[callback], compute_metrics=callback.compute_metrics)``. Arguments are
    those of ``calibrd.training.Monitor``, and ``loss``, a name of ``make_loss``, with its
    parameters: then give ``compute_loss_func=callback.compute_loss`` as well. Losses that learn
    over the epochs begin anew when a training is resumed.
    """

    hint = "give Trainer(..., compute_metrics=callback.compute_metrics)"

    def compute_metrics(self, predicted: Any) -> dict[str, float]:
        """ECE, AdaECE, NLL, accuracy and confidence of an evaluation, which also is observed."""
        logits = _classes_second(as_array(_first(predicted.predictions), "predictions"))
        labels = as_array(_first(predicted.label_ids), "label_ids")
        # every rank is given all predictions
        if not is_distributed() or torch.distributed.get_rank() == 0:
            self._attached.observe(logits, labels)
        summary = asdict(statistics_of(logits, labels, self.ignore_index).summary())
        return {name: value for name, value in summary.items() if name != "rows"}


def _first(values: Any) -> Any:
    return values[0] if isinstance(values, tuple) else values


def _logits_of(outputs: Any) -> Tensor:
    """Of a model's output; it was called without labels, so the first is not the loss."""
    if isinstance(outputs, dict):
        found: Tensor = outputs["logits"]
        return found
    first: Tensor = _first(outputs)
    return first


def _classes_second(logits: Any) -> Any:
    """Models give (n, tokens, k), losses take (n, k, tokens)."""
    return logits.swapaxes(1, 2) if logits.ndim == 3 else logits


CALLBACKS: dict[str, type] = {"AdaFocalCallback": _AdaFocal, "MonitorCallback": _Monitor}
if TYPE_CHECKING:
    AdaFocalCallback, MonitorCallback = _AdaFocal, _Monitor


def __getattr__(name: str) -> Any:
    globals()[name] = found = callback_class(__name__, name, CALLBACKS, bases)
    return found
