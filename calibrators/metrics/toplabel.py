"""The predicted class of each row: its confidence and whether it is correct."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from calibrators.errors import DataError
from calibrators.metrics._inputs import (
    Array,
    Bools,
    Checked,
    Floats,
    at_least,
    checked,
    checked_blocks,
    checked_confidence,
    checked_correct,
)
from calibrators.metrics._sorted import Ranked
from calibrators.metrics.bins import BinTable, Tally, table_of, tabulate, tally
from calibrators.numerics.parallel import Scratch

__all__ = ["TopLabel", "top_label"]


@dataclass(frozen=True, eq=False)
class TopLabel:
    """Confidence (n,) of the predicted class, and correctness (n,) of the prediction.

    All top-label metrics accept a TopLabel in place of probabilities and labels. A report can thus
    read all classes and sort the rows only once.

    >>> top = TopLabel([0.9, 0.6], [True, False])
    >>> top.accuracy
    0.5
    """

    confidence: Floats
    correct: Bools

    def __post_init__(self) -> None:
        confidence = checked_confidence(self.confidence)
        object.__setattr__(self, "confidence", confidence)
        object.__setattr__(self, "correct", checked_correct(self.correct, confidence.size))

    @classmethod
    def trusted(cls, confidence: Floats, correct: Bools) -> TopLabel:
        """Build a TopLabel without checks, from float64 confidences in [0, 1] and booleans."""
        top = cls.__new__(cls)
        object.__setattr__(top, "confidence", confidence)
        object.__setattr__(top, "correct", correct)
        return top

    @property
    def accuracy(self) -> float:
        """Share of correct predictions."""
        return float(np.count_nonzero(self.correct) / self.correct.size)

    @cached_property
    def residual(self) -> Floats:
        """Correctness minus confidence, (n,)."""
        return self.correct - self.confidence

    @cached_property
    def ranked(self) -> Ranked:
        """The rows sorted by confidence."""
        return Ranked.of(self.confidence, self.correct)

    def part(self, rows: Bools) -> TopLabel:
        """Return the rows selected by a mask (n,), sorted by confidence without another sort.

        >>> TopLabel([0.9, 0.6, 0.7], [True, False, True]).part(np.array([1, 0, 1], bool)).correct
        array([ True,  True])
        """
        taken = rows[self.ranked.order]
        top = TopLabel.trusted(self.ranked.score[taken], self.ranked.hit[taken])
        order = np.arange(top.confidence.size)
        # a cached_property keeps its value in the dict of its instance
        top.__dict__["ranked"] = Ranked.of_sorted(order, top.confidence, top.correct)
        return top

    def equal_width(self, bins: int = 15) -> BinTable:
        """Return the reliability table of equal-width bins."""
        at_least("bins", bins, 1)
        return tabulate(self.confidence, self.correct, bins)

    def equal_mass(self, bins: int = 15) -> BinTable:
        """Return the reliability table of equal-mass bins."""
        at_least("bins", bins, 1)
        return self.ranked.equal_mass(bins)


Scores: TypeAlias = npt.ArrayLike | TopLabel


def top_label(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> TopLabel:
    """Return the TopLabel of probabilities (n, k), or (n,) if binary, and labels (n,).

    If several columns are tied for the largest, the first of them is the prediction.

    >>> top = top_label([[0.7, 0.2, 0.1], [0.4, 0.4, 0.2]], [0, 1])
    >>> top.confidence, top.correct
    (array([0.7, 0.4]), array([ True, False]))
    """
    return of_checked(checked(probabilities, labels))


def of_checked(data: Checked) -> TopLabel:
    """Return the TopLabel of checked input."""
    return TopLabel.trusted(data.confidence, data.correct)


def as_top_label(probabilities: Scores, labels: npt.ArrayLike | None) -> TopLabel:
    """Return a TopLabel unchanged, or build one from probabilities and labels."""
    if isinstance(probabilities, TopLabel):
        if labels is not None:
            raise DataError("bad_input", "labels must be omitted if a TopLabel is passed")
        return probabilities
    if labels is None:
        raise DataError("bad_input", "labels are required with probabilities")
    return top_label(probabilities, labels)


def width_table(scores: Scores, labels: npt.ArrayLike | None, bins: int) -> BinTable:
    """Return the equal-width table of a TopLabel, or of probabilities and labels in one pass."""
    if isinstance(scores, TopLabel) or labels is None:
        return as_top_label(scores, labels).equal_width(bins)

    def summarise(largest: Array, right: Bools, scratch: Scratch) -> Tally:
        return tally(largest, right, bins, scratch)

    return table_of(checked_blocks(scores, labels, summarise))
