"""Rounded probabilities: detect their step, and estimate the values that were rounded to zero."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from calibrators.numerics.parallel import Floats, row_blocks

# float types, each with the maximum number of decimals at which rounding can be detected
TYPES: tuple[tuple[Any, int], ...] = ((np.float16, 2), (np.float32, 6), (np.float64, 12))
FIRST_LOOK = 256
LARGEST_STEP = 0.25
MIN_VALUES = 30
MIN_SHARE = 0.1
# upper limit, in steps, of the mean of the values below half a step
HIGHEST_FLOOR = 0.45
# smallest replacement of a zero; the same for all float types, so that equal values give equal
# results
TINY = float(np.finfo(np.float32).tiny)


class Zeros(NamedTuple):
    """The rule for replacing probabilities of exactly 0.

    ``floor`` is the mean replacement. ``rounding`` is the step that the probabilities were rounded
    to, or 0 if they were not rounded. If they were, a zero may have been any value below half a
    step. The cumulative distribution of these values is assumed to be proportional to ``p^a``, with
    ``a`` chosen to give the mean ``floor``. ``ratio`` is positive for lists cut to their ``kept``
    largest values: a zero is then replaced by ``ratio`` times the smallest value kept in its row
    (see ``calibrators.cut_lists``).
    """

    floor: float = 0.0
    rounding: float = 0.0
    ratio: float = 0.0
    kept: int = 0

    @classmethod
    def of(cls, probabilities: Floats, rounding: float) -> Zeros:
        """Estimate the rule for the zeros in probabilities (n, k).

        ``rounding`` is 0 for probabilities that were not rounded; their ``floor`` is half the
        smallest positive value. For rounded values, ``a`` follows from the numbers of zeros and of
        values equal to one step: among the values below one and a half steps, the share below half
        a step is ``3^-a``. One zero and two values of one step are added, so that ``a`` is 1
        without data. With many classes, the resulting mean is too low; it is therefore raised to
        the average probability that the other values of a row leave for its zeros.
        """
        if rounding == 0:
            return cls(max(_smallest_positive(probabilities) / 2, TINY))
        zeros, ones, left = 1, 2, 0.0
        for block in row_blocks(*probabilities.shape):
            part = probabilities[block]
            below = int(np.count_nonzero(part < rounding / 2))
            zeros += below
            ones += int(np.count_nonzero(part < 1.5 * rounding)) - below
            left += len(part) - float(_before_rounding(part, rounding).sum())
        a = math.log1p(ones / zeros) / math.log(3)
        mean = max(rounding / 2 * a / (a + 1), left / zeros)
        return cls(min(mean, HIGHEST_FLOOR * rounding), rounding)

    def sum_tolerance(self, k: int, least: float) -> float:
        """Return the tolerance for the sum of a row of ``k`` classes, at least ``least``.

        Sums of rounded values differ from 1 by whole steps, and by less than half a step per class.
        """
        return max(least, (k - 0.5) / 2 * self.rounding)

    def restored(self, rows: Floats, is_zero: Floats) -> Floats:
        """Return rows (n, k) in float64, with zeros replaced by estimates of their true values.

        The error of a rounded entry has variance ``step^2 / 12``. Zeros have a prior mean and
        variance; half of the variance is shared by the zeros of a row, since they are smaller in
        confident rows. Each entry is replaced by its mean given that the row sums to 1, clipped to
        the values that round to it. No zero is replaced by more than half the row's smallest
        positive value.
        """
        values = rows.astype(np.float64)
        smallest = np.where(is_zero, 1, values).min(axis=1, keepdims=True)
        if self.ratio:
            return np.where(is_zero, self._cut_values(smallest, is_zero), values)
        means = np.full((len(rows), 1), max(self.floor, TINY))
        if self.rounding:
            count, noise = is_zero.sum(axis=1, keepdims=True), self.rounding**2 / 12
            likely = _before_rounding(values, self.rounding)
            missing = 1 - likely.sum(axis=1, keepdims=True) - count * means
            variance = (count + 1) / 2 * self.variance
            missing /= count * variance + (rows.shape[1] - count) * noise
            means += variance * missing
            means = means.clip(MIN_SHARE * self.floor, self.rounding / 2)
            shift = (noise * missing).clip(-self.rounding / 2, self.rounding / 2)
            values = np.maximum(likely + shift, values / 2)
        means = np.maximum(np.minimum(means, smallest / 2), TINY)
        return np.asarray(np.where(is_zero, means, values))

    def _cut_values(self, smallest: Floats, is_zero: Floats) -> Floats:
        """Return the value (n, 1) that replaces the zeros of each row of a cut list.

        If a row has fewer than ``kept`` positive values, some of the kept ones were rounded to 0.
        """
        if self.rounding:
            is_short = is_zero.shape[1] - is_zero.sum(axis=1, keepdims=True) < self.kept
            smallest = np.where(is_short, self.rounding / 4, smallest)
        return np.maximum(self.ratio * smallest, TINY)

    @property
    def variance(self) -> float:
        """Variance of the values that were rounded to zero."""
        share = 2 * self.floor / self.rounding
        return (self.rounding / 2) ** 2 * share * (1 - share) ** 2 / (2 - share)

    def filled(self, probabilities: Floats) -> tuple[Floats, int]:
        """Return estimates of the unrounded probabilities (n, k), and the number of zeros.

        Rows that sum to 1 and contain no zeros are returned unchanged.
        """
        is_zero = probabilities <= 0
        chosen = is_zero.any(axis=1)
        if self.rounding:
            off = probabilities.sum(axis=1, dtype=np.float64) - 1
            chosen |= np.abs(off) > self.rounding / 2
        rows = np.flatnonzero(chosen)
        if not rows.size:
            return probabilities, 0
        filled = probabilities.copy()
        filled[rows] = self.restored(probabilities[rows], is_zero[rows])
        return filled, int(np.count_nonzero(is_zero))


class GridFinder:
    """Incremental search for a step that divides all probabilities.

    Steps have the form ``j / 10^d``, where d is limited by the precision of the float type. Values
    that can be represented exactly in a narrower type are treated as numbers of that type.

    >>> finder = GridFinder()
    >>> finder.add(np.array([0.07, 0.93, 0.0, 1.0], dtype=np.float32))
    >>> finder.step
    0.01
    >>> finder.add(np.array([1 / 3]))
    >>> finder.step
    0.0
    """

    def __init__(self) -> None:
        self._candidates = [_Decimals(kind, most) for kind, most in TYPES]
        self._values = 0

    @property
    def is_open(self) -> bool:
        """True if the values so far may have a common step."""
        return any(one.fits for one in self._candidates)

    @property
    def step(self) -> float:
        """The common step of all values so far; 0 if there is none."""
        for one in self._candidates:
            if one.fits:
                step = one.divisor / 10**one.digits
                is_certain = self._values >= MIN_VALUES and step <= LARGEST_STEP
                return step if is_certain else float(f"1e-{one.digits}")
        return 0.0

    def add(self, values: Floats) -> None:
        """Add more probabilities, of any shape."""
        flat = np.asarray(values).reshape(-1)
        for part in (flat[:FIRST_LOOK], flat[FIRST_LOOK:]):
            if not self.is_open:
                return
            inside = part[(part > 0) & (part < 1)]
            self._values += inside.size
            for one in self._candidates:
                if one.fits and inside.size:
                    one.add(inside)


class _Decimals:
    """Values in one float type: their number of decimals, and a common divisor of their digits."""

    def __init__(self, kind: Any, most: int) -> None:
        self.fits = True
        self.digits, self.divisor = 1, 10
        self._kind, self._most = kind, most

    def add(self, values: Floats) -> None:
        with np.errstate(over="ignore", under="ignore"):
            narrow = values.astype(self._kind)
        self.fits = bool((narrow == values).all())
        precision, wide = float(np.finfo(self._kind).eps), values.astype(np.float64)
        while self.fits:
            scaled = wide * 10.0**self.digits
            whole = np.rint(scaled)
            # the tolerance is absolute, as 1 - 0.93 is as imprecise as 1; no value may round to 0
            near = np.abs(scaled - whole) <= 1.5 * precision * 10.0**self.digits
            if (near & (whole > 0)).all():
                odd = np.unique(whole[np.fmod(whole, self.divisor) != 0]).astype(np.int64)
                self.divisor = math.gcd(self.divisor, *odd.tolist())
                return
            self.digits, self.divisor = self.digits + 1, self.divisor * 10
            self.fits = self.digits <= self._most


def step_of(probabilities: Floats) -> float:
    """Return the step that divides all probabilities (n, k); 0 if there is none."""
    finder = GridFinder()
    for block in row_blocks(*probabilities.shape):
        if not finder.is_open:
            break
        finder.add(probabilities[block])
    return finder.step


def _before_rounding(values: Floats, step: float) -> Floats:
    """Return the mean, in float64, of the numbers that round to each value.

    Small probabilities are more frequent than large ones. With a density of ``1 / p``, the mean is
    ``v - step^2 / (12 v)`` to second order.
    """
    wide = values.astype(np.float64)
    return np.maximum(wide - step**2 / 12 / np.maximum(wide, step / 2), wide / 2)


def _smallest_positive(values: Floats) -> float:
    smallest = 1.0
    for block in row_blocks(*values.shape):
        part = values[block]
        smallest = float(np.min(part, where=part > 0, initial=smallest))
    return smallest
