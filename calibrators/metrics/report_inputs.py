"""Everything a report needs of probabilities, from one check and one sort."""

from __future__ import annotations

from dataclasses import dataclass

import numpy.typing as npt

from calibrators.metrics._inputs import Array, checked
from calibrators.metrics.classwise import ClassTable, class_table_of
from calibrators.metrics.scores import RowScores, missed_of, row_scores_of

MOST_GUESSES = 5


@dataclass(frozen=True, eq=False)
class Scored:
    """Probabilities (n, k), what they say of each row and of each class, and the top-5 error.

    `top_5_error` is None where there are at most five classes.
    """

    probabilities: Array
    rows: RowScores
    classes: ClassTable
    top_5_error: float | None


def scored(probabilities: npt.ArrayLike, labels: npt.ArrayLike, *, bins: int = 15) -> Scored:
    """Score probabilities (n, k), or (n,) for binary, against labels (n,).

    >>> found = scored([[0.8, 0.2], [0.8, 0.2]], [0, 1])
    >>> found.rows.top.accuracy, found.classes.labelled.tolist(), found.top_5_error
    (0.5, [1, 1], None)
    """
    data = checked(probabilities, labels)
    many = data.classes > MOST_GUESSES
    return Scored(
        data.probabilities,
        row_scores_of(data),
        class_table_of(data, bins),
        missed_of(data, MOST_GUESSES) / data.labels.size if many else None,
    )
