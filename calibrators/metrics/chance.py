"""Test whether probabilities predict the labels better than chance."""

from __future__ import annotations

import math
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
SIGMAS = 4.0


@dataclass(frozen=True)
class ChanceTest:
    """Results of one-sided permutation tests on ``rows`` rows, at the 99 % level.

    ``auroc`` is the AUROC of each class's probability for separating the class from the rest,
    averaged with weights n_c (n - n_c). With permuted labels, it is 0.5 on average, whatever the
    class frequencies, and at most ``limit`` in 99 % of all permutations. ``accuracy`` is the share
    of correct rows. ``accuracy_by_chance`` is the mean accuracy over permutations: the sum over
    classes of the frequency among predictions times the frequency among labels. In 99 % of all
    permutations, the accuracy is at least ``accuracy_limit``. ``reordered_accuracy`` is the
    accuracy after reordering the columns; the order is fitted to every second row and judged on the
    others. It is None unless the gain is large, overall or for the classes in
    ``reordered_classes``, which is empty if the gain is overall.
    """

    rows: int
    auroc: float
    limit: float
    accuracy: float
    accuracy_by_chance: float
    accuracy_limit: float
    reordered_accuracy: float | None
    reordered_classes: tuple[int, ...] = ()

    @property
    def is_above_chance(self) -> bool:
        """True if the labels are ranked better than by chance and no columns seem permuted."""
        return self.auroc > self.limit and not self.is_misnumbered

    @property
    def is_misnumbered(self) -> bool:
        """True if the order of the columns seems to differ from the numbering of the labels.

        This is the case if fewer predictions are correct than by chance, or if many more would be
        correct after reordering all columns or some of them. The labels may still be ranked better
        than by chance, because they do depend on the probabilities.
        """
        return self.accuracy < self.accuracy_limit or self.reordered_accuracy is not None


def chance_test(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> ChanceTest | None:
    """Test whether the labels depend on the probabilities; return None if all labels are equal.

    Ranking is tested, not accuracy: with rare classes, the accuracy of even a good model hardly
    exceeds the share of the largest class. Probabilities with columns in the wrong order also fail
    the test.

    The mean and variance of the sum of ranks over all permutations of the labels are exact; its
    distribution is assumed normal (Hoeffding 1951). Ties share their mean rank. With two
    classes, this is the Mann-Whitney test. Large sets are reduced to evenly spaced rows: at most
    2**18 divided by the number of classes that have rows, but at least 1,000.

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
    """Return the test for validated input; None if all labels are equal."""
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
    predicted = _predictions(data, rows)
    shares = np.bincount(predicted, minlength=data.classes)[present] / n
    by_chance, deviation = _permuted_accuracy(shares, counts / n, n)
    reordered, moved = _reordered(predicted, data.labels[rows])
    return ChanceTest(
        rows=n,
        auroc=0.5 + float((own - (n + 1) / 2).sum()) / pairs,
        limit=0.5 + NormalDist().inv_cdf(LEVEL) * float(spread),
        accuracy=float(data.correct[rows].mean()),
        accuracy_by_chance=by_chance,
        accuracy_limit=by_chance - NormalDist().inv_cdf(LEVEL) * deviation,
        reordered_accuracy=reordered,
        reordered_classes=moved,
    )


def _permuted_accuracy(predicted: Floats, labelled: Floats, n: int) -> tuple[float, float]:
    """Return the mean and standard deviation of the accuracy over all permutations of the labels.

    Both arrays hold the frequencies of the classes that occur among the labels.
    """
    mean = float(predicted @ labelled)
    variance = mean - float(predicted @ labelled**2 + predicted**2 @ labelled) + mean**2
    return mean, float(np.sqrt(max(variance, 0.0) / (n - 1)))


def spaced_rows(labels: Integers) -> Integers:
    """Return the positions of the rows to test: all, or an evenly spaced subset of a large set."""
    most = max(MIN_ROWS, MAX_RANKS // np.unique(labels).size)
    if labels.size <= most:
        return np.arange(labels.size)
    return np.linspace(0, labels.size - 1, most).astype(np.intp)


def _reordered(predicted: Integers, labels: Integers) -> tuple[float | None, tuple[int, ...]]:
    """Return the accuracy after a far better reordering of the classes, and the classes it moves.

    The accuracy is None if no order is far better, and the classes are empty if the gain is
    overall. The new order is found on every second row and judged on the others, so that it cannot
    profit from noise. It is far better if it exceeds chance by clearly more than twice as much as
    the given order. Otherwise, the cycles of the new order are tested one by one.
    """
    order = _best_order(predicted[::2], labels[::2])
    found, true = predicted[1::2], labels[1::2]
    renumbered = _renumbered(found, order)
    if _is_far_better(_excess(renumbered, true), _excess(found, true), renumbered, found, true):
        return float((renumbered == true).mean()), ()
    moved = {
        one: label
        for cycle in _cycles(order)
        if all(_is_permuted(predicted[half::2], labels[half::2], cycle) for half in (0, 1))
        for one, label in cycle.items()
    }
    if not moved:
        return None, ()
    renumbered = _renumbered(found, {one: moved.get(one, one) for one in np.unique(found).tolist()})
    return float((renumbered == true).mean()), tuple(sorted(moved))


def _is_far_better(
    reordered: float, given: float, renumbered: Integers, found: Integers, true: Integers
) -> bool:
    """Return whether the accuracy ``reordered`` is clearly more than twice ``given``.

    Both are accuracies, or their excess over chance.
    """
    hits = int((found == true).sum()) + int((renumbered == true).sum())
    return reordered > 2 * max(given, 0.0) + SIGMAS * math.sqrt(hits) / true.size


def _is_permuted(predicted: Integers, labels: Integers, cycle: dict[int, int]) -> bool:
    """Return whether each class in a cycle is predicted where the next class is the label.

    For every class predicted, the next class must be the label more than twice as often as the
    class itself, and clearly so for the cycle as a whole. Neither shifted priors nor a model that
    prefers some classes can cause this: both multiply the counts in a row or a column of the
    confusion matrix, which leaves the product of the ratios along a cycle unchanged. That product
    exceeds 1 only if the model confuses the classes of the cycle more than it separates them.
    """
    chosen = np.isin(predicted, [*cycle])
    found, true = predicted[chosen], labels[chosen]
    if not found.size:
        return False
    renumbered = _renumbered(found, cycle)
    for one in cycle:
        here = found == one
        if (renumbered[here] == true[here]).sum() <= 2 * (true[here] == one).sum():
            return False
    shares = float((renumbered == true).mean()), float((found == true).mean())
    return _is_far_better(*shares, renumbered, found, true)


def _cycles(order: dict[int, int]) -> list[dict[int, int]]:
    """Return the cycles of an order, each of which permutes two or more classes.

    >>> _cycles({0: 1, 1: 0, 2: 2, 3: 4, 4: 5})
    [{0: 1, 1: 0}]
    """
    cycles, seen = [], set()
    for start in order:
        path: dict[int, int] = {}
        one = start
        while one in order and one not in seen:
            seen.add(one)
            path[one] = order[one]
            one = order[one]
        if one == start and len(path) > 1:
            cycles.append(path)
    return cycles


def _renumbered(predicted: Integers, order: dict[int, int]) -> Integers:
    """Return the predictions with their classes renumbered; -1 for classes without a number."""
    return np.array([order.get(one, -1) for one in predicted.tolist()], dtype=np.int64)


def _best_order(predicted: Integers, labels: Integers) -> dict[int, int]:
    """Match predicted classes to labels, one to one, by how often they coincide beyond chance."""
    pairs, counts = np.unique(np.stack([predicted, labels]), axis=1, return_counts=True)
    (a, in_a), (b, in_b) = (np.unique(one, return_counts=True) for one in (predicted, labels))
    by_chance = in_a[np.searchsorted(a, pairs[0])] * in_b[np.searchsorted(b, pairs[1])]
    gain = counts - by_chance / predicted.size
    order: dict[int, int] = {}
    taken: set[int] = set()
    for place in np.argsort(-gain, kind="stable").tolist():
        one, label = int(pairs[0, place]), int(pairs[1, place])
        if gain[place] > 0 and one not in order and label not in taken:
            order[one] = label
            taken.add(label)
    return order


def _excess(predicted: Integers, labels: Integers) -> float:
    """Return the accuracy minus its expected value with permuted labels."""
    values, counts = np.unique(predicted, return_counts=True)
    labelled, of_label = np.unique(labels, return_counts=True)
    _, at, in_labels = np.intersect1d(values, labelled, return_indices=True)
    by_chance = float(counts[at] @ of_label[in_labels]) / labels.size**2
    return float((predicted == labels).mean()) - by_chance


def _predictions(data: Checked, rows: Integers) -> Integers:
    """Return the predicted class of each given row."""
    blocks = row_blocks(rows.size, data.classes)
    return np.concatenate([data.probabilities[rows[one]].argmax(axis=1) for one in blocks])


def _mid_ranks(values: npt.NDArray[np.floating]) -> Floats:
    """Return the ranks, starting at 1; equal values share their mean rank."""
    ordered = np.sort(values)
    below, until = (np.searchsorted(ordered, values, side=side) for side in ("left", "right"))
    return (below + until + 1) / 2
