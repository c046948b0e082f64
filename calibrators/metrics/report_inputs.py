"""Inputs to a report, computed from probabilities with a single check and a single sort."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy.typing as npt

from calibrators.metrics._inputs import Checked, at_least, checked
from calibrators.metrics.bins import BinTable
from calibrators.metrics.classwise import ClassTable, class_table_of
from calibrators.metrics.scores import RowScores, missed_of, row_scores_of
from calibrators.metrics.selective import ood_auroc

__all__ = ["Scored", "ScoredRows", "scored"]

MAX_GUESSES = 5


@dataclass(frozen=True, eq=False)
class ScoredRows:
    """The inputs shared by all metrics of a report: row scores and bin tables.

    `classes` and `top_5_error` are None, because they need the probabilities of all classes; see
    `Scored`.
    """

    rows: RowScores
    bins: int

    @cached_property
    def equal_width(self) -> BinTable:
        """The reliability table of equal-width bins."""
        return self.rows.top.equal_width(self.bins)

    @cached_property
    def equal_mass(self) -> BinTable:
        """The reliability table of equal-mass bins."""
        return self.rows.top.equal_mass(self.bins)

    @property
    def classes(self) -> ClassTable | None:
        """The calibration of each class's probability; None if unknown."""
        return None

    @property
    def top_5_error(self) -> float | None:
        """The top-5 error; None if it is unknown or there are at most five classes."""
        return None

    @property
    def ood_auroc(self) -> float | None:
        """The AUROC of out-of-distribution rows; None if there are none."""
        return None


@dataclass(frozen=True, eq=False)
class Scored(ScoredRows):
    """The inputs to all metrics, including the probabilities and labels themselves."""

    data: Checked
    ood: npt.ArrayLike | None = None

    @cached_property
    def classes(self) -> ClassTable:
        """The calibration of each class's probability."""
        return class_table_of(self.data, self.bins)

    @cached_property
    def top_5_error(self) -> float | None:
        """The top-5 error; None if there are at most five classes."""
        if self.data.classes <= MAX_GUESSES:
            return None
        return missed_of(self.data, MAX_GUESSES) / self.data.labels.size

    @cached_property
    def ood_auroc(self) -> float | None:
        """The AUROC of out-of-distribution rows; None if there are none."""
        return None if self.ood is None else ood_auroc(self.data.probabilities, self.ood)


def scored(
    probabilities: npt.ArrayLike,
    labels: npt.ArrayLike,
    *,
    bins: int = 15,
    ood: npt.ArrayLike | None = None,
) -> Scored:
    """Score probabilities (n, k), or (n,) if binary, against labels (n,).

    ``ood`` (m, k) are probabilities of out-of-distribution rows.

    >>> found = scored([[0.8, 0.2], [0.8, 0.2]], [0, 1])
    >>> found.rows.top.accuracy, found.classes.labelled.tolist(), found.top_5_error
    (0.5, [1, 1], None)
    """
    at_least("bins", bins, 1)
    data = checked(probabilities, labels)
    return Scored(row_scores_of(data), bins, data, ood)
