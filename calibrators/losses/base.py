"""What every loss is made of: a dataclass of its parameters that is a torch module.

A loss is called as ``loss(logits, labels)``: logits (n, k), or (n, k, d1, ...) as in segmentation,
labels (n,) or (n, d1, ...), as torch's ``cross_entropy`` takes them. Half precision is computed in
float32. Labels equal to ``ignore_index`` do not count, neither in a mean nor in the statistics of a
batch that some losses use.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrators.constraints import check_fields, field_hints
from calibrators.errors import DataError

Reduction = Literal["mean", "sum", "none"]
HALF = (torch.float16, torch.bfloat16)
BLOCK = 64


@dataclass(eq=False, repr=False)
class Loss(torch.nn.Module):
    """Base of all losses: ``losses`` gives one number for each row that counts.

    A term that belongs to the whole batch is added to the number of every row, so that the mean,
    the sum and the single numbers agree.
    """

    name: ClassVar[str]
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
        """The loss of a batch."""
        rows, flat = _rows(logits, labels)
        counts = flat != self.ignore_index
        if bool(counts.all()):
            found = self.losses(rows, flat, **more)
        else:
            chosen = {name: _chosen(value, counts) for name, value in more.items()}
            found = rows.new_zeros(flat.shape)
            if bool(counts.any()):
                found = found.masked_scatter(
                    counts, self.losses(rows[counts], flat[counts], **chosen)
                )
            else:
                found = found + 0 * rows.sum()  # no row, but a gradient to go back
        return self._reduced(found.reshape(labels.shape), counts)

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
        surprise = F.cross_entropy(
            widened(logits),
            labels,
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
    if labels.is_floating_point():
        raise DataError("labels_not_integers", f"labels must be class indices, got {labels.dtype}")
    shape = tuple(logits.shape)
    if logits.dim() < 2 or logits.shape[1] < 2 or shape[:1] + shape[2:] != tuple(labels.shape):
        raise DataError(
            "bad_shape",
            "logits must be (n, k, ...) with a column for each of two classes or more, and labels "
            f"(n, ...), got {shape} and {tuple(labels.shape)}",
        )


def _rows(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Logits as (n, k) and labels as (n,)."""
    check_batch(logits, labels)
    wide = widened(logits)
    if logits.dim() > 2:
        wide = wide.movedim(1, -1).reshape(-1, logits.shape[1])
    return wide, labels.reshape(-1)


def _chosen(value: Any, counts: Tensor) -> Any:
    return value[counts] if isinstance(value, Tensor) and len(value) == len(counts) else value
