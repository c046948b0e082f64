"""Base classes for losses: torch modules that are dataclasses of their parameters.

A loss is called as ``loss(logits, labels)``. As in torch's ``cross_entropy``, logits are (n, k), or
(n, k, d1, ...) for segmentation, and labels are (n,) or (n, d1, ...). Half precision is computed in
float32, even under autocast. Rows labelled ``ignore_index`` are excluded from means and from the
batch statistics that some losses use. A class whose logit is -inf has probability 0; a loss that
needs this probability to be positive is then infinite, like cross-entropy for the label.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrators.errors import DataError
from calibrators.fitting.parameters import check_fields, field_hints

Reduction = Literal["mean", "sum", "none"]
HALF = (torch.float16, torch.bfloat16)
INPUTS = {"embeddings": "a row of numbers", "index": "an integer"}
BLOCK = 64


@dataclass(eq=False, repr=False)
class Loss(torch.nn.Module):
    """Base class for all losses; ``losses`` returns one loss per row that is not ignored.

    A term for the whole batch is added to the loss of every row, so that the reductions "mean",
    "sum" and "none" agree.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    takes: ClassVar[frozenset[str]] = frozenset()  # inputs in addition to logits and labels
    quadratic: ClassVar[bool] = False  # whether the cost grows with the square of the batch size

    _: KW_ONLY
    reduction: Reduction = "mean"
    ignore_index: int = -100

    def __post_init__(self) -> None:
        torch.nn.Module.__init__(self)
        check_fields(self)

    @abstractmethod
    def losses(self, logits: Tensor, labels: Tensor, **more: Any) -> Tensor:
        """Return the losses (n,), given logits (n, k) and labels (n,) without ignored rows."""

    def forward(self, logits: Tensor, labels: Tensor, **more: Any) -> Tensor:
        """Return the loss of a batch; ``more`` may contain ``embeddings`` and ``index``.

        Losses ignore inputs that they do not need, so that all losses can be called in the same
        way.
        """
        check_batch(logits, labels)
        _check_names(more)
        _check_range(logits, labels, self.ignore_index)
        rows, flat = _rows(logits), labels.reshape(-1).long()
        extra = {
            name: _extra_input(name, value, labels)
            for name, value in more.items()
            if name in self.takes
        }
        counts = flat != self.ignore_index
        with torch.autocast(logits.device.type, enabled=False):
            if len(flat) and bool(counts.all()):
                losses = self.losses(rows, flat, **extra)
            else:
                losses = self._masked_losses(rows, flat, extra, counts)
        return self._reduce(losses.reshape(labels.shape), counts)

    def _masked_losses(
        self, rows: Tensor, labels: Tensor, extra: dict[str, Tensor], counts: Tensor
    ) -> Tensor:
        """Return the losses of all rows, which are 0 for ignored rows."""
        some = rows[counts]
        losses = some.sum(dim=1)  # empty if no row counts, but it has a gradient
        if len(some) or self.needs_all_ranks:
            chosen = {name: value[counts] for name, value in extra.items()}
            losses = self.losses(some, labels[counts], **chosen)
        return rows.new_zeros(labels.shape).masked_scatter(counts, losses)

    @property
    def learns(self) -> bool:
        """True in training mode; losses with a memory record only training batches."""
        return self.training and torch.is_grad_enabled()

    @property
    def needs_all_ranks(self) -> bool:
        """True if all ranks must take part in each batch, even ranks that ignore all rows."""
        return False

    def next_epoch(self) -> None:
        """Mark the end of an epoch, for losses that learn from past epochs."""

    def _reduce(self, losses: Tensor, counts: Tensor) -> Tensor:
        if self.reduction == "none":
            return losses
        if self.reduction == "sum":
            return losses.sum()
        return losses.sum() / counts.sum().clamp(min=1)

    @classmethod
    def hyper_parameters(cls) -> dict[str, Any]:
        """Return the annotated types of the parameters by name, the shared ones last."""
        kind: Any = cls
        base: Any = Loss
        own = {
            name: hint for name, hint in field_hints(kind).items() if name not in field_hints(base)
        }
        return {**own, **field_hints(base)}

    def extra_repr(self) -> str:
        """Return the text inside ``repr``: the parameters."""
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in self.hyper_parameters())


@dataclass(eq=False, repr=False)
class WeightedCrossEntropy(Loss):
    """Base class for losses that only depend on the probability of the label.

    They use torch's fused cross-entropy and are about as fast.
    """

    @abstractmethod
    def weighted(self, surprisal: Tensor) -> Tensor:
        """Return the losses (n,), given the surprisals -log p of the labels."""

    def losses(self, logits: Tensor, labels: Tensor, **more: Any) -> Tensor:
        """Return the loss of each row."""
        return self.weighted(F.cross_entropy(logits, labels, reduction="none"))

    def forward(self, logits: Tensor, labels: Tensor, **more: Any) -> Tensor:
        """Return the loss of a batch."""
        check_batch(logits, labels)
        _check_names(more)
        _check_range(logits, labels, self.ignore_index)
        surprisal = F.cross_entropy(
            widened(logits),
            labels.long(),
            reduction="none",
            ignore_index=self.ignore_index,
        )
        counts = labels != self.ignore_index
        return self._reduce(torch.where(counts, self.weighted(surprisal), 0.0), counts)


def widened(logits: Tensor) -> Tensor:
    """Return logits in at least float32."""
    return logits.float() if logits.dtype in HALF else logits


def argmax(values: Tensor) -> Tensor:
    """Return the column of the largest value in each row (n,), or the first of tied columns.

    torch's ``amax`` is ten times faster than its ``argmax``. The block of columns that contains the
    maximum is therefore found first, then the position within it.
    """
    blocks = values.shape[1] // BLOCK
    if blocks < 2:
        return values.argmax(dim=1)
    whole: Tensor = values[:, : blocks * BLOCK].view(-1, blocks, BLOCK)
    rows = torch.arange(len(values), device=values.device)
    block = whole.amax(dim=2).argmax(dim=1)
    place = block * BLOCK + whole[rows, block].argmax(dim=1)
    if blocks * BLOCK == values.shape[1]:
        return place
    rest = blocks * BLOCK + values[:, blocks * BLOCK :].argmax(dim=1)
    return torch.where(values[rows, rest] > values[rows, place], rest, place)


def check_batch(logits: Tensor, labels: Tensor) -> None:
    """Raise unless ``logits`` have at least two classes and ``labels`` match them."""
    for name, value in (("logits", logits), ("labels", labels)):
        if not isinstance(value, Tensor):
            raise DataError("bad_input", f"{name} must be a tensor, got {type(value).__name__}")
    if labels.is_floating_point():
        raise DataError("labels_not_integers", f"labels must be class indices, got {labels.dtype}")
    shape = tuple(logits.shape)
    if logits.dim() < 2 or logits.shape[1] < 2 or shape[:1] + shape[2:] != tuple(labels.shape):
        raise DataError(
            "bad_shape",
            "logits must be (n, k, ...) with at least two classes, and labels "
            f"(n, ...), got {shape} and {tuple(labels.shape)}",
        )


def differentiable_gradient(
    plain: Callable[[Tensor], Tensor], at: Tensor, grad_output: Tensor
) -> Tensor:
    """Return the gradient of ``plain`` in a form that can be differentiated again.

    Losses with an explicit gradient use it if a second derivative is needed.
    """
    (slope,) = torch.autograd.grad(plain(at), at, grad_output, create_graph=True)
    return slope


def _rows(logits: Tensor) -> Tensor:
    """Return logits or embeddings as a float tensor (n, k)."""
    wide = widened(logits)
    return wide if wide.dim() == 2 else wide.movedim(1, -1).reshape(-1, wide.shape[1])


def _check_range(logits: Tensor, labels: Tensor, ignore_index: int) -> None:
    """Raise if a label is out of range. On a GPU, torch raises, as a check here would sync."""
    if labels.device.type != "cpu" or not labels.numel():
        return
    low, high = (int(one) for one in labels.aminmax())
    if low >= 0 and high < logits.shape[1]:
        return
    wrong = (labels < 0) | (labels >= logits.shape[1])
    wrong &= labels != ignore_index
    if bool(wrong.any()):
        raise DataError(
            "label_out_of_range",
            f"labels must be from 0 to {logits.shape[1] - 1}, or ignore_index {ignore_index}; "
            f"{int(wrong.sum())} are not, the first being {int(labels[wrong][0])}",
        )


def _check_names(more: dict[str, Any]) -> None:
    if unknown := more.keys() - INPUTS.keys():
        raise DataError(
            "unknown_input",
            f"a loss takes only {' and '.join(sorted(INPUTS))} in addition to logits and labels, "
            f"got {', '.join(sorted(unknown))}",
        )


def _extra_input(name: str, value: Any, labels: Tensor) -> Tensor:
    """Return embeddings (n, d, ...) as rows (n, d), or a flattened index."""
    shape = tuple(getattr(value, "shape", ()))
    wanted = tuple(labels.shape)
    if isinstance(value, Tensor) and value.is_floating_point() == (name == "embeddings"):
        if name == "embeddings" and value.dim() > 1 and shape[:1] + shape[2:] == wanted:
            return _rows(value)
        if name == "index" and shape == wanted:
            return value.reshape(-1).long()
    raise DataError(
        "bad_shape",
        f"{name} must be a tensor with {INPUTS[name]} for each label, got "
        f"{shape or type(value).__name__} for labels {wanted}",
    )
