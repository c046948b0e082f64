"""How well the scores rank: AUROC of several kinds, and risk-coverage curves."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from calibrators.blocks import row_blocks
from calibrators.errors import DataError
from calibrators.metrics._inputs import Array, Floats, checked, checked_probabilities
from calibrators.metrics.ranked import Ranked
from calibrators.metrics.toplabel import Scores, as_top_label


def refinement_auroc(probabilities: Scores, labels: npt.ArrayLike | None = None) -> float:
    """AUROC of the confidence separating correct from wrong predictions.

    `P(c_right > c_wrong) + P(c_right = c_wrong) / 2`. NaN if all rows are right or all wrong.
    Unchanged by any rising map of the confidence. Hendrycks & Gimpel 2017.

    >>> refinement_auroc([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4]], [0, 1, 1])
    1.0
    """
    return _auroc(as_top_label(probabilities, labels).ranked)


def classwise_auroc(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Mean over classes of the AUROC of `p_c` separating label c from the rest.

    Convention: one against the rest, unweighted; classes without rows (or with all rows) are
    left out; NaN if none remains.

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


def ood_auroc(probabilities_in: npt.ArrayLike, probabilities_out: npt.ArrayLike) -> float:
    """AUROC of the softmax entropy separating unfamiliar rows (high) from familiar ones (low).

    >>> ood_auroc([[0.9, 0.1], [0.8, 0.2]], [[0.5, 0.5], [0.6, 0.4]])
    1.0
    """
    inside = checked_probabilities(probabilities_in, "probabilities_in")
    outside = checked_probabilities(probabilities_out, "probabilities_out")
    if inside.shape[1] != outside.shape[1]:
        raise DataError(
            "bad_input",
            "probabilities_out must have as many classes as probabilities_in: "
            f"{outside.shape[1]} and {inside.shape[1]}",
        )
    entropy = np.concatenate((_entropy(inside), _entropy(outside)))
    scaled = np.clip(entropy / (2 * np.log(inside.shape[1])), 0.0, 1.0)
    return _auroc(Ranked.of(scaled, np.arange(entropy.size) >= inside.shape[0]))


def aurc(probabilities: Scores, labels: npt.ArrayLike | None = None) -> float:
    """Area under the risk-coverage curve: mean error rate of the i most confident rows.

    `(1/n) sum_i (errors among the i most confident) / i`. Convention: within ties the expectation
    over their orders, so that the value never depends on the order of the rows.
    Geifman & El-Yaniv 2017.

    >>> round(aurc([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4]], [0, 0, 1]), 4)
    0.1111
    """
    ranked = as_top_label(probabilities, labels).ranked
    count = ranked.score.size
    ties = ranked.ties
    errors_below = ties - ranked.hits_below[ties]
    kept = np.arange(1, count + 1)
    errors = errors_below[-1] - np.interp(count - kept, ties, errors_below)
    return float((errors / kept).mean())


def e_aurc(probabilities: Scores, labels: npt.ArrayLike | None = None) -> float:
    """Excess AURC: `aurc` minus that of the same predictions in the best possible order.

    Convention: the best order's area is the exact finite sum, not the limit
    `r + (1 - r) log(1 - r)`, so a perfect order scores exactly 0. Geifman et al. 2019.

    >>> e_aurc([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4]], [0, 0, 1])
    0.0
    """
    top = as_top_label(probabilities, labels)
    kept = np.arange(1, top.correct.size + 1)
    best = np.maximum(kept - np.count_nonzero(top.correct), 0) / kept
    return aurc(top) - float(best.mean())


def _auroc(ranked: Ranked) -> float:
    """Mann-Whitney statistic of the flags, ties counting half."""
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
