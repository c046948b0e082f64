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
from torch.utils.hooks import RemovableHandle

from calibrators.losses import Loss
from calibrd.io.arrays import as_array
from calibrd.training.callback_base import (
    CallbackBase,
    MonitoringCallback,
    SteeringCallback,
    callback_class,
)
from calibrd.training.observer import is_distributed, statistics_of
from calibrd.training.reporting.reporter import Service

__all__ = ["AdaFocalCallback", "MonitorCallback"]


def bases() -> tuple[type, ...]:
    """Return the base class of transformers' callbacks."""
    return (importlib.import_module("transformers").TrainerCallback,)


class ModelInputs:
    """Model hooks that capture the inputs of a loss beyond logits and labels.

    The ``index`` column of a batch is not passed on to the model. The embeddings are the input of
    the module named ``head``.
    """

    def __init__(self, head: str | None) -> None:
        self._head = head
        self._model: torch.nn.Module | None = None
        self._hooks: list[RemovableHandle] = []
        self._captured: dict[str, Tensor] = {}

    def watch(self, model: torch.nn.Module) -> None:
        """Capture the inputs of this model instead of any previous one."""
        if model is self._model:
            return
        for hook in self._hooks:
            hook.remove()
        self._hooks = [model.register_forward_pre_hook(self._take_index, with_kwargs=True)]
        if self._head is not None:
            module = _module_of(model, self._head)
            self._hooks.append(
                module.register_forward_pre_hook(self._capture_embeddings, with_kwargs=True)
            )
        self._model = model

    def taken(self) -> dict[str, Tensor]:
        """Return the captured inputs of the last batch and forget them."""
        captured, self._captured = self._captured, {}
        return captured

    def _take_index(
        self, _: torch.nn.Module, args: Any, kwargs: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        self._captured = {name: one for name, one in kwargs.items() if name == "index"}
        return args, {name: one for name, one in kwargs.items() if name != "index"}

    def _capture_embeddings(self, _: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        self._captured["embeddings"] = _classes_second(
            args[0] if args else next(iter(kwargs.values()))
        )


def _module_of(model: torch.nn.Module, name: str) -> torch.nn.Module:
    modules: dict[str, torch.nn.Module] = dict(model.named_modules())
    if not name or name not in modules:
        layers = [one for one, module in modules.items() if isinstance(module, torch.nn.Linear)]
        raise ValueError(
            f"head must be the name of a module of {type(model).__name__}, such as its last layer "
            f"{layers[-1:]}, got {name!r}"
        )
    return modules[name]


class _Hooks(CallbackBase):
    """Trainer callback that forwards events to the observer."""

    _inputs: ModelInputs | None = None  # for a loss that takes more than logits and labels

    @property
    def _key(self) -> str:
        return f"calibrd-{self.kind}-{self.run}"

    def on_init_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Watch the model if the loss takes more than logits and labels."""
        loss = self.loss
        if loss is None or self._inputs is None or others.get("model") is None:
            return  # the model may not be created until training begins
        if _takes_index(loss) and args.remove_unused_columns:
            raise ValueError(
                f"{loss.name} needs the column 'index' with each sample's position in the "
                "training set: pass TrainingArguments(remove_unused_columns=False) to keep it"
            )
        self._inputs.watch(others["model"])

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Create the observer, now that ranks, device and checkpoint are known."""
        self.on_init_end(args, state, control, **others)
        if self.loss is not None:
            self.loss.to(args.device)
        self._attached.load_state_dict(state.stateful_callbacks.get(self._key, {}))
        self._attached.begin()

    def on_evaluate(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """End the validation pass if the evaluation is part of training."""
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
        """Return the loss of a batch for ``compute_loss_func``; in evaluations, also observe it."""
        if self.loss is None:
            raise ValueError("pass a loss, for example MonitorCallback(..., loss='seca')")
        logits = _classes_second(_logits_of(outputs))
        self.loss.train(torch.is_grad_enabled())
        if not self.loss.training:
            self._observe_batch(logits, labels)
        mean: Tensor = self.loss(logits, labels, **self._more(self.loss))
        if num_items_in_batch is None:
            return mean
        # the batch may be one of several whose gradients the trainer sums
        return mean * (labels != self.loss.ignore_index).sum() / num_items_in_batch

    def _more(self, loss: Loss) -> dict[str, Tensor]:
        """Return the captured arguments that the loss takes beyond logits and labels."""
        if self._inputs is None:
            return {}
        more = self._inputs.taken()
        if not loss.training:  # evaluation samples are not in the training set
            more.pop("index", None)
        elif _takes_index(loss) and "index" not in more:
            raise ValueError(
                f"{loss.name} needs a column 'index' with each sample's position in the training "
                "set: use train.add_column('index', range(len(train))), and add this callback to "
                "the Trainer's callbacks"
            )
        return more

    def _observe_batch(self, logits: Tensor, labels: Tensor) -> None:
        """Observe an evaluation batch; a no-op if the callback observes batches elsewhere."""

    def _check(self, loss: Loss) -> None:
        if loss.reduction != "mean":
            raise ValueError(f"loss must have reduction 'mean', got {loss.reduction!r}")


class _AdaFocal(SteeringCallback, _Hooks):
    """Callback that adapts the loss after each evaluation during training.

    Use it as ``Trainer(..., callbacks=[callback], compute_loss_func=callback.compute_loss)``. The
    arguments are the same as for ``calibrd.training.AdaFocal``. Each row of logits must have one
    label, as in the classification of sequences, images or tokens; labels are not shifted as in
    language modelling.
    """

    hint = "use Trainer(..., compute_loss_func=callback.compute_loss)"

    def _observe_batch(self, logits: Tensor, labels: Tensor) -> None:
        self._attached.observe(logits, labels)


class _Monitor(MonitoringCallback, _Hooks):
    """Callback that streams the calibration of every evaluation, for training with any loss.

    Use it as ``Trainer(..., callbacks=[callback], compute_metrics=callback.compute_metrics)``. The
    arguments are the same as for ``calibrd.training.Monitor``. To train with a loss from
    ``make_loss``, pass its name as ``loss``, and its parameters, to the callback, and pass
    ``compute_loss_func=callback.compute_loss`` to the ``Trainer``. Losses that keep state across
    epochs lose it when training is resumed.

    A loss that takes embeddings needs ``head``, the name of the model's last layer, such as
    ``"classifier"``; the input of that layer is used as embeddings. A loss that takes the index of
    each sample needs an ``index`` column in the training set and
    ``TrainingArguments(remove_unused_columns=False)``.
    """

    hint = "use Trainer(..., compute_metrics=callback.compute_metrics)"

    def __init__(
        self, client: Service, run: str, *, head: str | None = None, **options: Any
    ) -> None:
        self._head = head
        super().__init__(client, run, **options)
        if self.loss is not None and self.loss.takes:
            self._inputs = ModelInputs(head)

    def _check(self, loss: Loss) -> None:
        super()._check(loss)
        takes_embeddings = "embeddings" in loss.takes
        if takes_embeddings and self._head is None:
            raise ValueError(
                f"{loss.name} takes embeddings, the input of the model's last layer: pass the name "
                "of that layer as head=, such as 'classifier'"
            )
        if self._head is not None and not takes_embeddings:
            raise ValueError(f"head is only for a loss that takes embeddings, not {loss.name}")

    def compute_metrics(self, predicted: Any) -> dict[str, float]:
        """Observe an evaluation; return its ECE, AdaECE, NLL, accuracy and confidence."""
        logits = _classes_second(as_array(_first(predicted.predictions), "predictions"))
        labels = as_array(_first(predicted.label_ids), "label_ids")
        # every rank gets all predictions
        if not is_distributed() or torch.distributed.get_rank() == 0:
            self._attached.observe(logits, labels)
        summary = asdict(statistics_of(logits, labels, self.ignore_index).summary())
        return {name: value for name, value in summary.items() if name != "rows"}


def _takes_index(loss: Loss) -> bool:
    """Return whether the loss, or the one inside RefCal, needs the index of each sample."""
    inner: Loss = getattr(loss, "calibration", loss)
    return "index" in inner.takes


def _first(values: Any) -> Any:
    return values[0] if isinstance(values, tuple) else values


def _logits_of(outputs: Any) -> Tensor:
    """Return the logits in the output of a model that was called without labels."""
    if isinstance(outputs, dict):
        found: Tensor = outputs["logits"]
        return found
    first: Tensor = _first(outputs)
    return first


def _classes_second(logits: Any) -> Any:
    """Transpose a model's output (n, tokens, k) to (n, k, tokens), as the losses expect."""
    return logits.swapaxes(1, 2) if logits.ndim == 3 else logits


CALLBACKS: dict[str, type] = {"AdaFocalCallback": _AdaFocal, "MonitorCallback": _Monitor}
if TYPE_CHECKING:
    AdaFocalCallback, MonitorCallback = _AdaFocal, _Monitor


def __getattr__(name: str) -> Any:
    globals()[name] = found = callback_class(__name__, name, CALLBACKS, bases)
    return found
