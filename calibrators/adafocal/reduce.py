"""Reduction of each row of logits to the three numbers needed for bin statistics."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrators.data import CalibrationSet
from calibrators.numerics.parallel import Scratch, map_blocks

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


class RowTerms(NamedTuple):
    """Log odds of each row's predicted class, its correctness, and -log p of the label."""

    odds: Floats
    correct: Bools
    nll: Floats


def row_terms(logits: ArrayLike, labels: ArrayLike) -> RowTerms:
    """Reduce logits (n, k), or (n,) of class 1, and labels (n,) to three numbers per row.

    The log odds are computed from the logits, because a probability may round to 1.

    >>> row_terms([[90.0, 0.0, 0.0], [0.0, 1.0, 0.0]], [0, 0]).odds.round(3).tolist()
    [89.307, 0.307]
    """
    data = CalibrationSet(logits, labels)
    terms = RowTerms(np.empty(data.n), np.empty(data.n, dtype=np.bool_), np.empty(data.n))

    def work(start: int, stop: int, scratch: Scratch) -> None:
        part = slice(start, stop)
        scores, truth = data.logits[part].astype(np.float64), data.labels[part]
        row, top = np.arange(len(truth)), scores.argmax(axis=1)
        largest, true = scores[row, top], scores[row, truth]
        scores[row, top] = -np.inf
        second = scores.max(axis=1).clip(min=-1e300)  # -inf if all others are -inf
        with np.errstate(divide="ignore"):
            rest = np.log(np.exp(scores - second[:, np.newaxis]).sum(axis=1))
        odds = largest - second - rest
        terms.odds[part], terms.correct[part] = odds, top == truth
        terms.nll[part] = largest - true + np.logaddexp(0.0, -odds)

    map_blocks(work, *data.logits.shape)
    return terms
