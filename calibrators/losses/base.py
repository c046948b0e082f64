"""What every loss is made of: a dataclass of its parameters that is a torch module.

A loss is called as ``loss(logits, labels)``: logits (n, k), or (n, k, d1, ...) as in segmentation,
labels (n,) or (n, d1, ...), as torch's ``cross_entropy`` takes them. Half precision is computed in
float32, also under autocast. Labels equal to ``ignore_index`` do not count, neither in a mean nor
in the statistics of a batch that some losses use. A logit of -inf rules a class out; a loss that
asks for some probability of that class is infinite, as cross-entropy is if it is the label.
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
INPUTS = {"embeddings": "row of numbers", "index": "whole number"}
BLOCK = 64


@dataclass(eq=False, repr=False)
class Loss(torch.nn.Module):
    """Base of all losses: ``losses`` gives one number for each row that counts.

    A term that belongs to the whole batch is added to the number of every row, so that the mean,
    the sum and the single numbers agree.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    takes: ClassVar[frozenset[str]] = frozenset()  # what it is given beside logits and labels
    quadratic: ClassVar[bool] = False  # whether its cost grows with the square of the rows

    _: KW_ONLY
    reduction: Reduction = "mean"
    ignore_index: int = -100

    def __post_init__(self) -> None:
        torch.nn.Module.__init__(self)
        check_fields(self)

    @abstractmethod
    def losses(self, logits: Tensor, labels: Tensor, **more: Any) -> Tensor:
        """The loss of each row (n,), from logits (n, k) and labels (n,) that all count."""

    def forward(self, logits: Tensor, labels: Tensor, **more: Any) -> Tensor:
        """The loss of a batch; ``more`` are ``embeddings`` or ``index``, for those that take them.

        Others are given them in vain, so that every loss can be called alike.
        """
        check_batch(logits, labels)
        _check_beside(more)
        _check_range(logits, labels, self.ignore_index)
        rows, flat = _rows(logits), labels.reshape(-1).long()
        beside = {
            name: _beside(name, value, labels) for name, value in more.items() if name in self.takes
        }
        counts = flat != self.ignore_index
        with torch.autocast(logits.device.type, enabled=False):
            if len(flat) and bool(counts.all()):
                found = self.losses(rows, flat, **beside)
            else:
                found = self._counted(rows, flat, beside, counts)
        return self._reduced(found.reshape(labels.shape), counts)

    def _counted(
        self, rows: Tensor, labels: Tensor, beside: dict[str, Tensor], counts: Tensor
    ) -> Tensor:
        """The losses of the rows that count, and 0 for the others."""
        some = rows[counts]
        found = some.sum(dim=1)  # if there is none: no row, but a gradient to go back
        if len(some) or self.meets:
            chosen = {name: value[counts] for name, value in beside.items()}
            found = self.losses(some, labels[counts], **chosen)
        return rows.new_zeros(labels.shape).masked_scatter(counts, found)

    @property
    def learns(self) -> bool:
        """Whether a batch is one of training, of which a loss with a memory takes note."""
        return self.training and torch.is_grad_enabled()

    @property
    def meets(self) -> bool:
        """Whether all ranks must take part in each batch, also those without a row that counts."""
        return False

    def next_epoch(self) -> None:
        """Call it after each epoch: losses that learn from the epochs so far take note."""

    def _reduced(self, losses: Tensor, counts: Tensor) -> Tensor:
        if self.reduction == "none":
            return losses
        if self.reduction == "sum":
            return losses.sum()
        return losses.sum() / counts.sum().clamp(min=1)

    @classmethod
    def hyper_parameters(cls) -> dict[str, Any]:
        """The annotated types of its parameters by name, those of every loss last."""
        kind: Any = cls
        base: Any = Loss
        own = {
            name: hint for name, hint in field_hints(kind).items() if name not in field_hints(base)
        }
        return {**own, **field_hints(base)}

    def extra_repr(self) -> str:
        """What ``repr`` shows: the parameters."""
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in self.hyper_parameters())


@dataclass(eq=False, repr=False)
class WeightedCrossEntropy(Loss):
    """Base of losses that are a function of the label's probability alone.

    They need no more than torch's fused cross-entropy, and take little longer.
    """

    @abstractmethod
    def weighed(self, surprise: Tensor) -> Tensor:
        """The losses of rows whose labels have the probability exp(-surprise)."""

    def losses(self, logits: Tensor, labels: Tensor, **more: Any) -> Tensor:
        """The loss of each row."""
        return self.weighed(F.cross_entropy(logits, labels, reduction="none"))

    def forward(self, logits: Tensor, labels: Tensor, **more: Any) -> Tensor:
        """The loss of a batch."""
        check_batch(logits, labels)
        _check_beside(more)
        _check_range(logits, labels, self.ignore_index)
        surprise = F.cross_entropy(
            widened(logits),
            labels.long(),
            reduction="none",
            ignore_index=self.ignore_index,
        )
        counts = labels != self.ignore_index
        return self._reduced(torch.where(counts, self.weighed(surprise), 0.0), counts)


def widened(logits: Tensor) -> Tensor:
    """Logits in float32 at least."""
    return logits.float() if logits.dtype in HALF else logits


def argmax(values: Tensor) -> Tensor:
    """The first largest column of each row (n,).

    torch finds largest values ten times faster than their places: so first the block of columns
    in which the largest lies, then the place within it.
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
    """Raise if these are no logits of two classes at least and labels that go with them."""
    for name, value in (("logits", logits), ("labels", labels)):
        if not isinstance(value, Tensor):
            raise DataError("bad_input", f"{name} must be a tensor, got {type(value).__name__}")
    if labels.is_floating_point():
        raise DataError("labels_not_integers", f"labels must be class indices, got {labels.dtype}")
    shape = tuple(logits.shape)
    if logits.dim() < 2 or logits.shape[1] < 2 or shape[:1] + shape[2:] != tuple(labels.shape):
        raise DataError(
            "bad_shape",
            "logits must be (n, k, ...) with a column for each of two classes or more, and labels "
            f"(n, ...), got {shape} and {tuple(labels.shape)}",
        )


def gradient_again(plain: Callable[[Tensor], Tensor], at: Tensor, given: Tensor) -> Tensor:
    """The gradient of ``plain`` as one that can be differentiated again.

    For losses whose gradient is worked out beside the value, when a second derivative is asked for.
    """
    (slope,) = torch.autograd.grad(plain(at), at, given, create_graph=True)
    return slope


def _rows(logits: Tensor) -> Tensor:
    """Logits, or embeddings, as (n, k)."""
    wide = widened(logits)
    return wide if wide.dim() == 2 else wide.movedim(1, -1).reshape(-1, wide.shape[1])


def _check_range(logits: Tensor, labels: Tensor, ignore_index: int) -> None:
    """Raise if a label is no class; on a GPU torch says so, as asking would wait for it."""
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
            f"labels must be from 0 to {logits.shape[1] - 1}, or ignore_index {ignore_index}: "
            f"{int(wrong.sum())} are not, the first is {int(labels[wrong][0])}",
        )


def _check_beside(more: dict[str, Any]) -> None:
    if unknown := more.keys() - INPUTS.keys():
        raise DataError(
            "unknown_input",
            f"a loss takes {' and '.join(sorted(INPUTS))} beside logits and labels, got "
            f"{', '.join(sorted(unknown))}",
        )


def _beside(name: str, value: Any, labels: Tensor) -> Tensor:
    """Embeddings (n, d, ...) as rows, or places (n, ...) in one line."""
    shape = tuple(getattr(value, "shape", ()))
    wanted = tuple(labels.shape)
    if isinstance(value, Tensor) and value.is_floating_point() == (name == "embeddings"):
        if name == "embeddings" and value.dim() > 1 and shape[:1] + shape[2:] == wanted:
            return _rows(value)
        if name == "index" and shape == wanted:
            return value.reshape(-1).long()
    raise DataError(
        "bad_shape",
        f"{name} must be a tensor with a {INPUTS[name]} for each label, got "
        f"{shape or type(value).__name__} for labels {wanted}",
    )
