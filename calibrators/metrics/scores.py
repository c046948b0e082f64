"""Scores that are means over rows: NLL, Brier, accuracy, top-k error."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from calibrators.metrics._inputs import (
    Checked,
    Floats,
    at_least,
    checked,
)
from calibrators.metrics.catalogue import Metric
from calibrators.metrics.interval_rules import MeanOf, ShareOf
from calibrators.metrics.selective import Ranking, ranking_of
from calibrators.metrics.toplabel import Scores, TopLabel, as_top_label, of_checked
from calibrators.numerics.parallel import Scratch, map_blocks, oriented, row_blocks

__all__ = ["RowScores", "accuracy", "brier", "nll", "row_scores", "top_k_error"]

SMALLEST_PROBABILITY = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True, eq=False)
class RowScores:
    """Scores per row: top label, negative log-likelihood and Brier score.

    They are computed with a single check of the input, and are all that the bootstrap needs.
    """

    top: TopLabel
    nll: Floats
    brier: Floats

    @cached_property
    def ranking(self) -> Ranking:
        """AUROC and AURC, with the influence of each row."""
        return ranking_of(self.top)


def row_scores(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> RowScores:
    """Return the scores of probabilities (n, k), or (n,) if binary, against labels (n,).

    >>> rows = row_scores([[0.8, 0.2], [0.8, 0.2]], [0, 1])
    >>> rows.brier.round(2)
    array([0.08, 1.28])
    """
    return row_scores_of(checked(probabilities, labels))


def row_scores_of(data: Checked) -> RowScores:
    """Return the RowScores of checked input."""
    own = data.of_label
    return RowScores(of_checked(data), _nll(own), _brier(data, own))


def nll(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Return the negative log-likelihood `-(1/n) sum_i log p_i[y_i]`, in nats.

    Convention: a probability below 1.2e-38, the smallest normal float32, is replaced by that value.
    A row with an underflow then has an NLL of 87.3 nats instead of infinity, and the results of
    float32 and float64 agree.

    >>> round(nll([[0.8, 0.2], [0.8, 0.2]], [0, 1]), 4)
    0.9163
    """
    return float(_nll(checked(probabilities, labels).of_label).mean())


NLL = Metric(
    name="nll",
    title="NLL",
    meaning="Negative log-likelihood: the mean of -log(probability of the true label), in nats. "
    "It measures calibration and discrimination together.",
    function=nll,
    measure=lambda scored: float(scored.rows.nll.mean()),
    position=80,
    percent=False,
    digits=4,
    interval=MeanOf(lambda rows: rows.nll, (0.0, math.inf)),
)


def brier(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Return the Brier score `(1/n) sum_i sum_c (p_ic - 1[y_i = c])^2`.

    Convention: it is summed over the classes, as in Brier 1950, and lies between 0 and 2. For
    binary problems, it is twice the score of a single column.

    >>> round(brier([[0.8, 0.2], [0.8, 0.2]], [0, 1]), 6)
    0.68
    """
    data = checked(probabilities, labels)
    return float(_brier(data, data.of_label).mean())


BRIER = Metric(
    name="brier",
    title="Brier score",
    meaning="The mean squared distance between the probabilities and the truth, summed over the "
    "classes: from 0 to 2.",
    function=brier,
    measure=lambda scored: float(scored.rows.brier.mean()),
    position=90,
    percent=False,
    digits=4,
    interval=MeanOf(lambda rows: rows.brier, (0.0, 2.0)),
)


def accuracy(probabilities: Scores, labels: npt.ArrayLike | None = None) -> float:
    """Return the share of rows whose prediction is the label; ties go to the first column.

    >>> accuracy([[0.8, 0.2], [0.5, 0.5]], [0, 1])
    0.5
    """
    return as_top_label(probabilities, labels).accuracy


ACCURACY = Metric(
    name="accuracy",
    title="accuracy",
    meaning="The share of rows whose label has the largest probability.",
    function=accuracy,
    measure=lambda scored: scored.rows.top.accuracy,
    position=100,
    higher_is_better=True,
    interval=ShareOf(lambda rows: rows.top.correct),
)


def top_k_error(probabilities: npt.ArrayLike, labels: npt.ArrayLike, *, k: int = 5) -> float:
    """Return the share of rows whose label is not among the k largest columns.

    Convention: ties are ranked by column order; with at most k classes the error is 0.

    >>> top_k_error([[0.5, 0.3, 0.2], [0.5, 0.25, 0.25]], [1, 2], k=2)
    0.5
    """
    at_least("k", k, 1)
    data = checked(probabilities, labels)
    return missed_of(data, k) / data.labels.size


def missed_of(data: Checked, k: int) -> int:
    """Count the rows whose label is not among the k largest columns."""
    missed = 0
    column = np.arange(data.classes)
    for block in row_blocks(data.labels.size, data.classes):
        values, label = data.probabilities[block], data.labels[block, None]
        own = np.take_along_axis(values, label, axis=1)
        ahead = (values > own) | ((values == own) & (column < label))
        missed += int(np.count_nonzero(np.count_nonzero(ahead, axis=1) >= k))
    return missed


TOP_5_ERROR = Metric(
    name="top_5_error",
    title="top-5 error",
    meaning="The share of rows whose label is not among the five largest probabilities.",
    function=top_k_error,
    measure=lambda scored: scored.top_5_error,
    position=110,
)


def _nll(own: Floats) -> Floats:
    return -np.log(np.clip(own, SMALLEST_PROBABILITY, 1.0))


def _brier(data: Checked, own: Floats) -> Floats:
    squares = np.empty(data.labels.size)

    def work(start: int, stop: int, scratch: Scratch) -> None:
        values, axis = oriented(data.probabilities[start:stop], scratch)
        values = values.astype(np.float64)
        values *= values
        np.add.reduce(values, axis=axis, out=squares[start:stop])

    map_blocks(work, data.labels.size, data.classes)
    return squares - 2 * own + 1
