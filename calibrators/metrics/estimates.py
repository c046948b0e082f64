"""Closed-form intervals for means, for shares, and for paired changes in shares.

The bootstrap of a mean needs no draws, as its percentiles are known up to terms of order 1/n.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from calibrators.errors import ParameterError
from calibrators.metrics._inputs import Floats

__all__ = ["Interval", "deviations", "fold_factor", "mean_interval", "wilson"]

Range = tuple[float, float]
ANY: Range = (-math.inf, math.inf)
SHARE: Range = (0.0, 1.0)


@dataclass(frozen=True)
class Interval:
    """A point estimate with the bounds of its confidence interval."""

    value: float
    low: float
    high: float
    level: float

    def widened(self, factor: float) -> Interval:
        """Return the same estimate with bounds that are ``factor`` times as far from it.

        >>> Interval(1.0, 0.5, 2.0, 0.95).widened(2.0)
        Interval(value=1.0, low=0.0, high=3.0, level=0.95)
        """
        low, high = (self.value + factor * (bound - self.value) for bound in (self.low, self.high))
        return Interval(self.value, low, high, self.level)


MAX_LEVEL = 1 - 1e-9


def check_level(level: float) -> None:
    """Raise unless a normal interval of this level is finite: 0 < level <= 1 - 1e-9."""
    if not 0 < level <= MAX_LEVEL:
        raise ParameterError(
            "bad_parameter", f"level must be above 0 and at most 1 - 1e-9, got {level!r}"
        )


def deviations(level: float) -> float:
    """Return the half-width of a two-sided normal interval, in standard deviations.

    >>> round(deviations(0.95), 2)
    1.96
    """
    return NormalDist().inv_cdf((1 + level) / 2)


def fold_factor(folds: int) -> float:
    """Return the factor that widens the interval of a paired mean for out-of-fold probabilities.

    Fits on overlapping folds are not independent of each other, and each is anti-correlated with
    the fold it is judged on. The rows alone therefore underestimate the variance by a factor of
    ``1 + folds / (folds - 1)``. Nadeau & Bengio 2003.

    >>> fold_factor(1), fold_factor(5)
    (1.0, 1.5)
    """
    return 1.0 if folds < 2 else math.sqrt(1 + folds / (folds - 1))


def mean_interval(values: Floats, level: float, limits: Range = ANY) -> Interval:
    """Return the confidence interval of the mean of ``values`` (n,), clipped to ``limits``.

    The bounds are ``mean + s / sqrt(n) (+-z + g (z^2 - 1) / (6 sqrt(n)))``, where s is the standard
    deviation and g the skewness. This is the Cornish-Fisher expansion of the percentile bootstrap,
    which matches its percentiles up to terms of order 1/n. Hall 1992, The Bootstrap and Edgeworth
    Expansion, ch. 2 and 3.

    >>> found = mean_interval(np.arange(100.0), 0.95)
    >>> found.value, round(found.low, 2), round(found.high, 2)
    (49.5, 43.84, 55.16)
    """
    n = values.size
    mean = float(values.mean())
    off = values - mean
    squares = off * off
    error = math.sqrt(float(squares.mean()) / n)
    if error == 0.0:
        return Interval(mean, mean, mean, level)
    skewness = float(np.einsum("i,i", squares, off)) / n / (error * math.sqrt(n)) ** 3
    z = deviations(level)
    bend = skewness * (z**2 - 1) / (6 * math.sqrt(n))
    low, high = np.clip((mean + error * (bend - z), mean + error * (bend + z)), *limits)
    return Interval(mean, float(low), float(high), level)


def share_interval(hits: int, n: int, level: float) -> Interval:
    """Return Wilson's interval for the share ``hits / n``.

    >>> found = share_interval(50, 100, 0.95)
    >>> found.value, round(found.low, 3), round(found.high, 3)
    (0.5, 0.404, 0.596)
    """
    low, high = wilson(np.array([hits / n]), np.array([float(n)]), level)
    return Interval(hits / n, float(low[0]), float(high[0]), level)


def share_change_interval(gained: int, lost: int, n: int, level: float) -> Interval:
    """Return the interval of ``(gained - lost) / n``, the paired change in a proportion.

    ``gained`` counts the rows whose flag became true, and ``lost`` those whose flag became false.
    Half a row is added to each cell of the 2 x 2 table, so that a few lost rows alone are not
    significant. By convention, the interval is [0, 0] if no row changed. Agresti & Min 2005.

    >>> share_change_interval(0, 0, 100, 0.95)
    Interval(value=0.0, low=0.0, high=0.0, level=0.95)
    >>> few, many = (share_change_interval(0, lost, 200, 0.95) for lost in (4, 9))
    >>> few.high > 0 > many.high
    True
    """
    if gained == lost == 0:
        return Interval(0.0, 0.0, 0.0, level)
    up, down, size = gained + 0.5, lost + 0.5, n + 2
    centre = (up - down) / size
    half = deviations(level) * math.sqrt(max(0.0, (up + down) / size - centre**2) / size)
    low, high = np.clip((centre - half, centre + half), -1.0, 1.0)
    return Interval((gained - lost) / n, float(low), float(high), level)


def wilson(share: Floats, count: Floats, level: float) -> tuple[Floats, Floats]:
    """Return the bounds of Wilson's score interval for a share of ``count`` rows; NaN for no rows.

    Wilson 1927.

    >>> low, high = wilson(np.array([0.5]), np.array([100.0]), 0.95)
    >>> round(float(low[0]), 3), round(float(high[0]), 3)
    (0.404, 0.596)
    """
    z = deviations(level)
    size = np.where(count > 0, count, np.nan)
    share = np.clip(share, 0, 1)
    centre = (share + z**2 / (2 * size)) / (1 + z**2 / size)
    half = z * np.sqrt(share * (1 - share) / size + z**2 / (4 * size**2)) / (1 + z**2 / size)
    return np.maximum(centre - half, 0), np.minimum(centre + half, 1)
