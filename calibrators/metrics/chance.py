"""Test whether probabilities say more about the labels than random labels would."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from calibrators.metrics._inputs import Checked, Floats, Integers, checked
from calibrators.numerics.parallel import row_blocks

__all__ = ["ChanceTest", "chance_test"]

LEVEL = 0.99
MIN_ROWS = 1000
MAX_RANKS = 1 << 18


@dataclass(frozen=True)
class ChanceTest:
    """A one-sided permutation test of the labels of ``rows`` rows, at the 99 % level.

    ``auroc`` is how well the probability of a class separates its rows from the others: the AUROC
    of one class against the rest, averaged over the classes with weights n_c (n - n_c). It is 0.5
    on average if the labels are permuted, whatever their frequencies, and at most ``limit`` in 99 %
    of all permutations. ``accuracy`` is the share of correct rows. ``accuracy_by_chance`` is what
    permuted labels would give: the sum over classes of the frequency among the predictions times
    the frequency among the labels.
    """

    rows: int
    auroc: float
    limit: float
    accuracy: float
    accuracy_by_chance: float

    @property
    def is_above_chance(self) -> bool:
        """Whether the probabilities rank the labels measurably better than chance."""
        return self.auroc > self.limit


def chance_test(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> ChanceTest | None:
    """Test whether the labels depend on the probabilities; None if all labels are equal.

    Ranking decides, not accuracy, which for rare classes hardly exceeds the share of the largest
    class even if the model is good. The mean and variance of the sum of ranks over all permutations
    of the labels are exact; its distribution is taken to be normal (Hoeffding 1951). Ties share
    their mean rank. With two classes this is the Mann-Whitney test. For large sets, evenly spaced
    rows are used: at least 1,000, and at most 2**18 divided by the number of classes with rows.

    >>> rng = np.random.default_rng(0)
    >>> p = rng.dirichlet([0.5, 0.5, 0.5], size=500)
    >>> labels = (p.cumsum(axis=1) < rng.random((500, 1))).sum(axis=1)
    >>> chance_test(p, labels).is_above_chance
    True
    >>> chance_test(p, rng.permutation(labels)).is_above_chance
    False
    """
    return chance_test_of(checked(probabilities, labels))


def chance_test_of(data: Checked) -> ChanceTest | None:
    """Return the test of validated probabilities; None if all labels are equal."""
    rows = spaced_rows(data.labels)
    present, place, counts = np.unique(data.labels[rows], return_inverse=True, return_counts=True)
    n = rows.size
    if present.size < 2:
        return None
    own, mean, squares = np.empty(n), np.zeros(n), np.zeros(n)
    for number, (label, count) in enumerate(zip(present.tolist(), counts.tolist(), strict=True)):
        ranks = _mid_ranks(data.probabilities[rows, label])
        here = place == number
        own[here] = ranks[here]
        mean += count / n * ranks
        squares += count / n * ranks**2
    pairs = float(n) ** 2 - float((counts.astype(np.float64) ** 2).sum())  # twice the pairs
    variance = n / (n - 1) * float(np.maximum(squares - mean**2, 0.0).sum())
    spread = np.sqrt(variance) / pairs
    return ChanceTest(
        rows=n,
        auroc=0.5 + float((own - (n + 1) / 2).sum()) / pairs,
        limit=0.5 + NormalDist().inv_cdf(LEVEL) * float(spread),
        accuracy=float(data.correct[rows].mean()),
        accuracy_by_chance=float((_predicted(data, rows)[present] / n * counts / n).sum()),
    )


def spaced_rows(labels: Integers) -> Integers:
    """Return the positions of the rows that a test uses: all, or as many as it can rank fast."""
    most = max(MIN_ROWS, MAX_RANKS // np.unique(labels).size)
    if labels.size <= most:
        return np.arange(labels.size)
    return np.linspace(0, labels.size - 1, most).astype(np.intp)


def _predicted(data: Checked, rows: Integers) -> Integers:
    """Count the rows of each predicted class."""
    found = np.zeros(data.classes, dtype=np.intp)
    for block in row_blocks(rows.size, data.classes):
        np.add.at(found, data.probabilities[rows[block]].argmax(axis=1), 1)
    return found


def _mid_ranks(values: npt.NDArray[np.floating]) -> Floats:
    """Return the ranks from 1; equal values share their mean rank."""
    ordered = np.sort(values)
    below, until = (np.searchsorted(ordered, values, side=side) for side in ("left", "right"))
    return (below + until + 1) / 2
