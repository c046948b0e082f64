"""Calibration by class in a report, worst classes first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from calibrators.metrics import ClassTable
from calibrators.report.json_form import rounded

MAX_CLASSES = 50


@dataclass(frozen=True)
class ClassSide:
    """One side of a class: rows predicted as this class, mean probability, class-wise ECE."""

    predicted: int
    probability: float
    ece: float


@dataclass(frozen=True)
class ClassRow:
    """A class: the number and share of rows with this label, and both sides."""

    label: int
    rows: int
    frequency: float
    after: ClassSide
    before: ClassSide | None


def by_class(after: ClassTable, before: ClassTable | None) -> tuple[ClassRow, ...]:
    """Return up to 50 classes with the largest ECE on the after side, worst first.

    >>> from calibrators.metrics import class_table
    >>> found = by_class(class_table([[0.7, 0.2, 0.1], [0.6, 0.3, 0.1]], [0, 1]), None)
    >>> [(row.label, row.rows, row.after.predicted, row.after.ece) for row in found]
    [(0, 1, 2, 0.45), (1, 1, 0, 0.45), (2, 0, 0, 0.1)]
    """
    worst = np.argsort(-after.ece, kind="stable")[:MAX_CLASSES]
    rows = after.labelled.sum()
    return tuple(
        ClassRow(
            label=int(label),
            rows=int(after.labelled[label]),
            frequency=rounded(after.labelled[label] / rows),
            after=_side(after, label),
            before=None if before is None else _side(before, label),
        )
        for label in worst
    )


def _side(table: ClassTable, label: np.intp) -> ClassSide:
    return ClassSide(
        predicted=int(table.predicted[label]),
        probability=rounded(table.mean_probability[label]),
        ece=rounded(table.ece[label]),
    )
