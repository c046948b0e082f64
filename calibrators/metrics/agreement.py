"""Agreement of predictions with the mean prediction of their class (SECA diagnostics)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from calibrators.metrics._inputs import Floats, Integers

__all__ = ["ClassAgreement"]


@dataclass(frozen=True)
class ClassAgreement:
    """Entropy of predictions, and their agreement with the mean prediction of their class.

    Three quantities are averaged over samples, as in appendix A of the SECA paper, with natural
    logarithms. ``entropy`` is the entropy of the prediction p. ``kl_divergence`` is KL(m || p) as
    in Eq. 9, where m is the mean of p over the *other* samples of the class within the batch;
    samples that are alone in their class are left out. ``cosine`` is the cosine of the angle
    between p and the mean over the whole class within the batch (Eq. 5). Without samples, a
    quantity is NaN. Adding instances combines batches; ``sums`` holds the sums of the three
    quantities.

    Reference: SECA, self-guided model calibration, OpenReview mNQJ9odBvy, 2025.

    >>> logits = np.log([[0.9, 0.1], [0.5, 0.5], [0.2, 0.8]])
    >>> found = ClassAgreement.from_logits(logits, np.array([0, 0, 1]))
    >>> round(found.entropy, 4), round(found.kl_divergence, 4), round(found.cosine, 4)
    (0.5062, 0.4394, 0.9618)
    """

    rows: int = 0
    rows_with_others: int = 0
    sums: tuple[float, float, float] = (0.0, 0.0, 0.0)

    @classmethod
    def from_logits(cls, logits: Floats, labels: Integers) -> ClassAgreement:
        """Return the agreement within one batch of logits (n, k) and labels (n,)."""
        if not len(labels):
            return cls()
        log_p = logits.astype(np.float64)
        log_p -= log_p.max(axis=1, keepdims=True)
        log_p -= np.log(np.exp(log_p).sum(axis=1, keepdims=True))
        p = np.exp(log_p)
        total, count = _of_class(p, labels)
        entropy = -_weighted(p, log_p).sum()
        some = count > 1
        others = np.maximum((total - p)[some] / (count[some] - 1)[:, None], 0.0)
        with np.errstate(invalid="ignore"):  # both are -inf for a class with probability 0
            log_ratio = _log(others) - log_p[some]
        cosine = (p * total).sum(axis=1) / np.sqrt((p**2).sum(axis=1) * (total**2).sum(axis=1))
        sums = float(entropy), float(_weighted(others, log_ratio).sum()), float(cosine.sum())
        return cls(len(labels), int(some.sum()), sums)

    def __add__(self, other: ClassAgreement) -> ClassAgreement:
        """Return the agreement over the batches of both operands."""
        first, second, third = (a + b for a, b in zip(self.sums, other.sums, strict=True))
        return ClassAgreement(
            self.rows + other.rows,
            self.rows_with_others + other.rows_with_others,
            (first, second, third),
        )

    @property
    def entropy(self) -> float:
        """The mean entropy of the predictions."""
        return self._mean(0, self.rows)

    @property
    def kl_divergence(self) -> float:
        """The mean KL divergence from the mean prediction of the other samples of the class."""
        return self._mean(1, self.rows_with_others)

    @property
    def cosine(self) -> float:
        """The mean cosine of the angle between a prediction and its class's mean prediction."""
        return self._mean(2, self.rows)

    def _mean(self, index: int, rows: int) -> float:
        return self.sums[index] / rows if rows else float("nan")


def _of_class(p: Floats, labels: Integers) -> tuple[Floats, Integers]:
    """Return, for each sample, the sum of p over its class (n, k) and its class size (n,)."""
    order = np.argsort(labels, kind="stable")
    _, begin, place, sizes = np.unique(
        labels[order], return_index=True, return_inverse=True, return_counts=True
    )
    back = np.empty_like(order)
    back[order] = place
    return np.add.reduceat(p[order], begin, axis=0)[back], sizes[back]


def _weighted(weight: Floats, value: Floats) -> Floats:
    """Return ``weight * value``, with 0 where the weight is 0."""
    return np.multiply(weight, value, out=np.zeros_like(weight), where=weight > 0)


def _log(values: Floats) -> Floats:
    return np.log(values, out=np.full_like(values, -np.inf), where=values > 0)
