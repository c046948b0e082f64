"""What a validation pass leaves behind: three numbers of every row, and then their counts."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrators import DataError
from calibrators.adafocal import BinStatistics, RowTerms, observed
from calibrators.data import check_labelled, check_rows
from calibrd.io.arrays import Array, as_array

if TYPE_CHECKING:
    from torch import Tensor

IGNORED = -100
AT_ONCE = 1 << 16


class Tally:
    """Counts of all rows so far; rows are counted many at a time, as each count costs the same."""

    def __init__(self) -> None:
        self._counted = BinStatistics.empty()
        self._waiting: list[RowTerms] = []
        self._rows = 0

    def add(self, rows: RowTerms) -> None:
        """Add the rows of a batch."""
        self._waiting.append(rows)
        self._rows += len(rows.odds)
        if self._rows >= AT_ONCE:
            self.total()

    def total(self) -> BinStatistics:
        """The statistics of all rows so far."""
        if self._rows:
            columns = [np.concatenate(parts) for parts in zip(*self._waiting, strict=True)]
            self._counted += BinStatistics.from_log_odds(*columns)
        self._waiting, self._rows = [], 0
        return self._counted


def reduced(logits: Any, labels: Any, ignore_index: int = IGNORED) -> RowTerms:
    """Three numbers of each row of logits (n, k) or (n, k, d1, ...) and labels (n, d1, ...).

    Logits (n,) or (n, 1) are those of class 1. Labels equal to ``ignore_index`` are left out.
    Tensors are reduced on their own device; whatever else holds numbers is taken as numpy does.

    >>> reduced([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]], [0, 1, -100]).odds.tolist()
    [2.0, 1.0]
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(logits, torch.Tensor):
        return _of_tensors(logits, torch.as_tensor(labels), ignore_index)
    return _of_arrays(as_array(logits, "logits"), as_array(labels, "labels"), ignore_index)


def statistics_of(logits: Any, labels: Any, ignore_index: int = IGNORED) -> BinStatistics:
    """The statistics of one batch."""
    return BinStatistics.from_log_odds(*reduced(logits, labels, ignore_index))


def _of_arrays(logits: Array, labels: Array, ignore_index: int) -> RowTerms:
    _check_shapes(logits.shape, labels.shape)
    if logits.ndim > 1:
        logits = np.moveaxis(logits, 1, -1).reshape(-1, logits.shape[1])
        labels = labels.reshape(-1)
    kept = labels != ignore_index
    logits, labels = logits[kept], labels[kept]
    if not len(labels):
        return NOTHING
    return observed(logits, labels)


def _of_tensors(logits: Tensor, labels: Tensor, ignore_index: int) -> RowTerms:
    import torch

    if labels.is_floating_point() or labels.is_complex():
        raise DataError("labels_not_integers", f"labels must be class indices, got {labels.dtype}")
    with torch.no_grad(), torch.autocast(logits.device.type, enabled=False):
        _check_shapes(tuple(logits.shape), tuple(labels.shape))
        scores = logits.detach()
        if scores.ndim == 1 or scores.shape[1:] == (1,):
            scores = scores.reshape(-1, 1)
            scores = torch.cat([torch.zeros_like(scores), scores], dim=1)
        scores = scores.movedim(1, -1).reshape(-1, scores.shape[1])
        truth = labels.to(scores.device, torch.int64).reshape(-1)
        kept = truth != ignore_index
        if not bool(kept.all()):
            scores, truth = scores[kept], truth[kept]
        if not len(truth):
            return NOTHING
        return _on_device(scores.to(torch.promote_types(scores.dtype, torch.float32)), truth)


def _on_device(scores: Tensor, truth: Tensor) -> RowTerms:
    import torch

    classes = scores.shape[1]
    outside = (truth < 0) | (truth >= classes)
    count = int(outside.sum())
    if count:
        first, rule = int(outside.int().argmax()), f"labels must lie in 0..{classes - 1}"
        raise DataError("label_out_of_range", rule, rows=count, first=first)
    largest, top = scores.max(dim=1)
    check_rows(largest.cpu().numpy())
    true = scores.gather(1, truth[:, None])[:, 0]
    check_labelled(true.cpu().numpy())
    odds = largest - scores.scatter(1, top[:, None], -torch.inf).logsumexp(dim=1)
    nll = largest - true + torch.nn.functional.softplus(-odds)
    return RowTerms(*(one.cpu().numpy() for one in (odds, top == truth, nll)))


def _check_shapes(logits: tuple[int, ...], labels: tuple[int, ...]) -> None:
    is_of_one = len(logits) == 1 or logits[1:] == (1,)
    is_of_many = len(logits) > 1 and logits[1] > 1
    if not (is_of_one or is_of_many) or labels != (logits[0], *logits[2:]):
        raise DataError(
            "bad_shape",
            "logits must be (n, k) or (n, k, d1, ...) of k > 1 classes, or (n,) or (n, 1), and "
            f"labels (n,) or (n, d1, ...), got {logits} and {labels}",
        )


NOTHING = RowTerms(np.empty(0), np.empty(0, dtype=bool), np.empty(0))
