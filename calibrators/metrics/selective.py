"""Ranking metrics: several kinds of AUROC, and areas under risk-coverage curves."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from calibrators.errors import DataError
from calibrators.metrics._inputs import Array, Bools, Floats, checked, checked_probabilities
from calibrators.metrics._sorted import Ranked
from calibrators.metrics.catalogue import Metric
from calibrators.metrics.interval_rules import InfluenceOf
from calibrators.metrics.toplabel import Scores, TopLabel, as_top_label
from calibrators.numerics.parallel import row_blocks

__all__ = [
    "aurc",
    "aurc_influence",
    "auroc_influence",
    "best_aurc",
    "classwise_auroc",
    "e_aurc",
    "one_vs_one_auroc",
    "ood_auroc",
    "refinement_auroc",
]


def refinement_auroc(probabilities: Scores, labels: npt.ArrayLike | None = None) -> float:
    """Return the AUROC of the confidence for separating correct from wrong predictions.

    `P(c_right > c_wrong) + P(c_right = c_wrong) / 2`, or NaN if all rows are correct or all are
    wrong. An increasing map of the confidence does not change it. Hendrycks & Gimpel 2017.

    >>> refinement_auroc([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4]], [0, 1, 1])
    1.0
    """
    return _auroc(as_top_label(probabilities, labels).ranked)


REFINEMENT_AUROC = Metric(
    name="refinement_auroc",
    title="AUROC of correct vs. wrong",
    meaning="How well confidence separates correct from wrong predictions: the probability that a "
    "correct prediction has the higher confidence.",
    function=refinement_auroc,
    measure=lambda scored: scored.rows.ranking.auroc,
    position=120,
    higher_is_better=True,
    interval=InfluenceOf(
        lambda rows: rows.ranking.auroc, lambda rows: rows.ranking.auroc_influence
    ),
)


def classwise_auroc(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Return the unweighted mean over classes of the one-vs-rest AUROC of `p_c`.

    Convention: classes that have no rows or all rows are left out; NaN if none remains.

    >>> classwise_auroc([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4]], [0, 0, 1])
    1.0
    """
    data = checked(probabilities, labels)
    areas = []
    for index in np.unique(data.labels):
        column = np.clip(data.probabilities[:, index].astype(np.float64), 0.0, 1.0)
        areas.append(_auroc(Ranked.of(column, data.labels == index)))
    defined = np.asarray(areas)[~np.isnan(areas)]
    return float(defined.mean()) if defined.size else float("nan")


def one_vs_one_auroc(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Return the unweighted mean AUROC over ordered pairs of classes.

    For a pair (a, b), it is the AUROC of `p_a` for separating rows of a from rows of b. The RefCal
    code reports this as refinement, while `refinement_auroc` separates correct from wrong
    predictions. Convention: ties count half; pairs in which a class has no rows are left out; NaN
    if fewer than two classes have rows. The cost is O(n k log n), too much for reports. Hand & Till
    2001 (M); Hebbalaguppe et al. 2026.

    >>> one_vs_one_auroc([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4]], [0, 0, 1])
    1.0
    """
    data = checked(probabilities, labels)
    present, place, rows = np.unique(data.labels, return_inverse=True, return_counts=True)
    if present.size < 2:
        return float("nan")
    total = 0.0
    for number, index in enumerate(present.tolist()):
        column = data.probabilities[:, index].astype(np.float64)
        own = np.sort(column[place == number])
        below, until = (np.searchsorted(own, column, side=side) for side in ("left", "right"))
        above = own.size - (below + until) / 2
        wins = np.bincount(place, above, present.size) / (rows * own.size)
        total += wins.sum() - wins[number]
    return float(total / (present.size * (present.size - 1)))


def ood_auroc(probabilities_in: npt.ArrayLike, probabilities_out: npt.ArrayLike) -> float:
    """Return the AUROC of the entropy for separating out-of-distribution rows from the others.

    >>> ood_auroc([[0.9, 0.1], [0.8, 0.2]], [[0.5, 0.5], [0.6, 0.4]])
    1.0
    """
    inside = checked_probabilities(probabilities_in, "probabilities_in")
    outside = checked_probabilities(probabilities_out, "probabilities_out")
    if inside.shape[1] != outside.shape[1]:
        raise DataError(
            "bad_input",
            "probabilities_out must have the same number of classes as probabilities_in, got "
            f"{outside.shape[1]} and {inside.shape[1]}",
        )
    entropy = np.concatenate((_entropy(inside), _entropy(outside)))
    scaled = np.clip(entropy / (2 * np.log(inside.shape[1])), 0.0, 1.0)
    return _auroc(Ranked.of(scaled, np.arange(entropy.size) >= inside.shape[0]))


OOD_AUROC = Metric(
    name="ood_auroc",
    title="AUROC of out-of-distribution rows",
    meaning="How well the entropy of the probabilities separates out-of-distribution rows from "
    "the others: the chance that such a row has the higher entropy. Only with `ood`.",
    function=ood_auroc,
    measure=lambda scored: scored.ood_auroc,
    position=125,
    higher_is_better=True,
)


def aurc(probabilities: Scores, labels: npt.ArrayLike | None = None) -> float:
    """Return the area under the risk-coverage curve.

    `(1/n) sum_i (errors among the i most confident rows) / i`. Convention: the value is the
    expectation over all orders of tied rows, so it does not depend on the order of the rows.
    Geifman & El-Yaniv 2017.

    >>> round(aurc([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4]], [0, 0, 1]), 4)
    0.1111
    """
    return float(_risk(as_top_label(probabilities, labels).ranked).mean())


AURC = Metric(
    name="aurc",
    title="AURC (risk-coverage)",
    meaning="The error rate of the most confident rows, averaged over all shares of rows that can "
    "be kept.",
    function=aurc,
    measure=lambda scored: scored.rows.ranking.aurc,
    position=130,
    percent=False,
    digits=5,
    interval=InfluenceOf(lambda rows: rows.ranking.aurc, lambda rows: rows.ranking.aurc_influence),
)


def e_aurc(probabilities: Scores, labels: npt.ArrayLike | None = None) -> float:
    """Return the excess AURC: `aurc` minus the AURC of the best possible order.

    Convention: the area of the best order is the exact finite sum, not the limit
    `r + (1 - r) log(1 - r)`, so that a perfect order scores exactly 0. Geifman et al. 2019.

    >>> e_aurc([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4]], [0, 0, 1])
    0.0
    """
    top = as_top_label(probabilities, labels)
    return aurc(top) - best_aurc(top.correct)


E_AURC = Metric(
    name="e_aurc",
    title="excess AURC",
    meaning="The AURC minus the AURC of the best possible order of these rows, in which all "
    "correct rows come first.",
    function=e_aurc,
    measure=lambda scored: scored.rows.ranking.aurc - best_aurc(scored.rows.top.correct),
    position=140,
    percent=False,
    digits=5,
)


def best_aurc(correct: Bools) -> float:
    """Return the smallest `aurc` of any order of these rows: all correct rows come first.

    >>> round(best_aurc(np.array([True, False, True])), 4)
    0.1111
    """
    covered = np.arange(1, correct.size + 1)
    return float((np.maximum(covered - np.count_nonzero(correct), 0) / covered).mean())


def auroc_influence(top: TopLabel) -> Floats | None:
    """Return the influence of each row on `refinement_auroc` (n,), in the order of the rows.

    A correct row contributes the share of wrong rows below it, a wrong row the share of correct
    rows above it; ties count half. The influence is this share minus the area, divided by the share
    of rows of the same kind. Its mean square divided by n is DeLong's variance of the area. The
    difference of two such arrays gives the variance of a paired change, even if the predictions
    differ. Return None unless at least two rows are correct and two are wrong. DeLong et al. 1988.

    >>> found = auroc_influence(TopLabel([0.9, 0.8, 0.7, 0.6], [True, False, True, False]))
    >>> found.round(3)
    array([ 0.707, -0.707, -0.707,  0.707])
    """
    ranked = top.ranked
    n, right = ranked.score.size, int(ranked.hits_below[-1])
    wrong = n - right
    if min(right, wrong) < 2:
        return None
    ties = ranked.ties
    hits = ranked.hits_below[ties]
    below = (hits[:-1] + hits[1:]) / 2
    misses = (ties[:-1] + ties[1:]) / 2 - below
    sizes = np.diff(ties)
    area = float((np.diff(hits) * misses).sum() / (right * wrong))
    # n - 1 in place of n for each kind, as in DeLong's variance
    of_right = (misses / wrong - area) * (n / right * np.sqrt(right / (right - 1)))
    of_wrong = (1 - below / right - area) * (n / wrong * np.sqrt(wrong / (wrong - 1)))
    return _by_row(ranked, np.repeat(of_right, sizes), np.repeat(of_wrong, sizes))


def aurc_influence(top: TopLabel) -> Floats:
    """Return the influence of each row on `aurc` (n,), in the order of the rows; the mean is 0.

    Let r_i be the error rate of the i most confident rows. The j-th of these rows, with error e_j,
    is kept for every i >= j, so its influence is `r_j - aurc + sum_{i >= j} (e_j - r_i) / i`. The
    mean square divided by n estimates the variance of the AURC.

    >>> aurc_influence(TopLabel([0.9, 0.8], [True, False])).round(3)
    array([-0.5,  0.5])
    """
    return _aurc_influence(top.ranked, _risk(top.ranked))


class Ranking(NamedTuple):
    """AUROC (correct against wrong) and AURC, with the influence of each row on both."""

    auroc: float
    auroc_influence: Floats | None
    aurc: float
    aurc_influence: Floats


def ranking_of(top: TopLabel) -> Ranking:
    """Return both ranking metrics and the influence of each row on them."""
    risk = _risk(top.ranked)
    return Ranking(
        _auroc(top.ranked),
        auroc_influence(top),
        float(risk.mean()),
        _aurc_influence(top.ranked, risk),
    )


def _aurc_influence(ranked: Ranked, risk: Floats) -> Floats:
    share = 1 / np.arange(1, risk.size + 1)
    covered = np.cumsum(share[::-1])
    share *= risk
    others = (risk - risk.mean())[::-1] - np.cumsum(share[::-1])
    sizes = np.diff(ranked.ties)
    if sizes.size < risk.size:
        begin = ranked.ties[:-1]
        others, covered = (
            np.repeat(np.add.reduceat(one, begin) / sizes, sizes) for one in (others, covered)
        )
    covered += others
    return _by_row(ranked, others, covered)


def _by_row(ranked: Ranked, of_right: Floats, of_wrong: Floats) -> Floats:
    """Return values in the order of the rows: ``of_right`` for correct rows, else ``of_wrong``."""
    values: Floats = np.empty(ranked.score.size)
    np.copyto(of_wrong, of_right, where=ranked.hit)
    values[ranked.order] = of_wrong
    return values


def _risk(ranked: Ranked) -> Floats:
    """Return the error rate among the i most confident rows, for i from 1 to n.

    Within a tie, the number of errors rises by the same amount from row to row.
    """
    count = ranked.score.size
    below = np.arange(count + 1) - ranked.hits_below
    sizes = np.diff(ranked.ties)
    tied = np.flatnonzero(sizes > 1)
    if tied.size:
        begin, size = ranked.ties[tied], sizes[tied]
        step = (below[begin + size] - below[begin]) / size
        place = np.arange(size.sum()) - np.repeat(np.cumsum(size) - size, size)
        below[np.repeat(begin, size) + place] = np.repeat(below[begin], size) + place * np.repeat(
            step, size
        )
    return np.asarray((below[-1] - below[-2::-1]) / np.arange(1, count + 1))


def _auroc(ranked: Ranked) -> float:
    """Return the Mann-Whitney statistic of the flags; ties count half."""
    ties = ranked.ties
    right = ranked.hits_below[ties]
    wrong = ties - right
    pairs = right[-1] * wrong[-1]
    if pairs == 0:
        return float("nan")
    return float(np.sum(np.diff(right) * (wrong[:-1] + wrong[1:])) / (2 * pairs))


def _entropy(matrix: Array) -> Floats:
    entropy = np.empty(matrix.shape[0])
    for block in row_blocks(*matrix.shape):
        values = np.clip(matrix[block].astype(np.float64), 0.0, 1.0)
        logs = np.log(values, out=np.zeros_like(values), where=values > 0)
        entropy[block] = -(values * logs).sum(axis=1)
    return entropy
