"""Estimate the probabilities missing from lists that were truncated to their top classes.

Services often return only the five most probable of many classes, divided by their sum, and a
probability of zero for all others. The labels show how often one of these other classes is correct.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from calibrators.arrays import Labels
from calibrators.numerics.parallel import Floats, row_blocks
from calibrators.rounding import Zeros

ITERATIONS = 50
# evenly spaced rows with this many values in total are enough
MAX_NUMBERS = 1 << 19
MIN_GAIN = 3.0
# for rounded lists: the minimum share of rows in which all kept values are positive
MIN_FULL = 0.1
RATIOS = (1e-12, 0.9)


def find_cut(zeros: Zeros, probabilities: Floats, labels: Labels) -> Zeros:
    """Return ``zeros``, with ``ratio`` and ``kept`` set if the rows (n, k) are cut lists.

    Two conditions must hold. First, every row has zeros. Second, replacing a zero by ``ratio``
    times the smallest positive value of its row makes the labels at least ``e^3`` times as likely
    as replacing it by the value from ``zeros``, each at its best temperature.
    """
    n, k = probabilities.shape
    if not (probabilities[np.arange(n), labels] <= 0).any():
        return zeros
    positive = np.concatenate(
        [np.count_nonzero(probabilities[block] > 0, axis=1) for block in row_blocks(n, k)]
    )
    kept = int(positive.max())
    if kept in (0, k) or (zeros.rounding and (positive == kept).mean() < MIN_FULL):
        return zeros
    rows = np.arange(0, n, math.ceil(n * (kept + 1) / MAX_NUMBERS))
    unit = zeros._replace(ratio=1.0, kept=kept)
    *_, before = _Tails(zeros, probabilities, labels, rows, kept).fit(free=1)
    beta, gamma, after = _Tails(unit, probabilities, labels, rows, kept).fit(free=2)
    if beta <= 0 or not before - after >= MIN_GAIN:
        return zeros
    low, high = np.log(RATIOS)
    return unit._replace(ratio=math.exp(np.clip(gamma / beta, low, high)))


class _Tails:
    """Likelihood of labels under ``p^beta``, where all zeros of a row form one outcome.

    A zero has weight ``z^beta e^gamma``, where z is the value from ``zeros`` and beta is
    1 / temperature. The log likelihood is concave in beta and gamma.
    """

    def __init__(
        self,
        zeros: Zeros,
        probabilities: Floats,
        labels: Labels,
        rows: NDArray[np.intp],
        kept: int,
    ) -> None:
        parts = []
        for block in row_blocks(len(rows), probabilities.shape[1]):
            chosen = rows[block]
            parts.append(_outcomes(zeros, probabilities[chosen], labels[chosen], kept))
        whole = [np.concatenate(part) for part in zip(*parts, strict=True)]
        self._values, self._counts, self._label_values, self._is_cut = whole

    def fit(self, free: int) -> tuple[float, float, float]:
        """Return the best beta and gamma (0 if ``free`` is 1), and the negative log likelihood."""
        point = np.array([1.0, 0.0])
        value, gradient, hessian = self._derivatives(point)
        for _ in range(ITERATIONS):
            ridge = 1e-9 * (1 + np.trace(hessian)) * np.eye(free)
            step = np.zeros(2)
            step[:free] = np.linalg.solve(hessian[:free, :free] + ridge, gradient[:free])
            following = self._derivatives(point - step)
            while following[0] > value and np.abs(step).max() > 1e-7:
                step /= 2
                following = self._derivatives(point - step)
            if np.abs(step).max() <= 1e-7:
                break
            point = point - step
            value, gradient, hessian = following
        return float(point[0]), float(point[1]), value

    def _derivatives(
        self, point: NDArray[np.float64]
    ) -> tuple[float, NDArray[np.float64], NDArray[np.float64]]:
        """Return the negative log likelihood, its gradient and its Hessian."""
        beta, gamma = point
        values = self._values
        shifted = beta * values
        shifted[:, -1] += gamma
        shifted[self._counts == 0] = -np.inf
        largest = shifted.max(axis=1, keepdims=True)
        shares = self._counts * np.exp(shifted - largest)
        total = shares.sum(axis=1, keepdims=True)
        shares /= total
        tail, mean = shares[:, -1], np.vecdot(shares, values)
        value = (largest + np.log(total)).sum()
        value -= beta * self._label_values.sum() + gamma * self._is_cut.sum()
        gradient = np.array([(mean - self._label_values).sum(), (tail - self._is_cut).sum()])
        mixed = (tail * (values[:, -1] - mean)).sum()
        spread = (np.vecdot(shares, values**2) - mean**2).sum()
        hessian = np.array([[spread, mixed], [mixed, (tail * (1 - tail)).sum()]])
        return float(value), gradient, hessian


def _outcomes(zeros: Zeros, rows: Floats, labels: Labels, kept: int) -> tuple[Floats, ...]:
    """Return the possible outcomes of each row and the outcome of its label, as four arrays.

    1. The logarithms (n, kept + 1) of the ``kept`` largest values and of the row's zeros, relative
       to the largest value.
    2. The number of classes (n, kept + 1) that have each of these values.
    3. The logarithm (n,) of the label's value.
    4. True where the label's value is a zero (n,).
    """
    index, k = np.arange(len(rows)), rows.shape[1]
    is_zero = rows <= 0
    count = is_zero.sum(axis=1, keepdims=True)
    logs = np.log(zeros.filled(rows)[0].astype(np.float64))
    logs -= logs.max(axis=1, keepdims=True)
    zero = np.where(is_zero, logs, 0).min(axis=1, keepdims=True)
    is_positive = np.arange(k - kept, k) >= count
    values = np.hstack([np.sort(logs, axis=1)[:, k - kept :], zero])
    return values, np.hstack([is_positive, count]), logs[index, labels], is_zero[index, labels]
