"""What a bootstrap cannot see: rows that are all right, or all wrong, show no spread at all."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from calibrators.measurement import Bin
from calibrators.metrics import Interval, wilson


def cautious(squared_error: Interval, bins: Iterable[Bin], level: float) -> Interval:
    """The interval of the squared calibration error, widened where the bootstrap is blind.

    Upwards: the error is at least the gap of all rows together (Jensen), so it may be as large as
    the largest such gap that Wilson's interval of the accuracy allows. Downwards: a bin of equal
    outcomes counts with the part of its gap that Wilson's interval leaves no doubt of.

    >>> all_right = Bin(0.0, 1.0, 100.0, 0.999, 1.0, 0.001, 0.963, 1.0)
    >>> found = cautious(Interval(1e-6, 1e-6, 1e-6, 0.95), [all_right], 0.95)
    >>> found.low, round(found.high**0.5, 3)
    (0.0, 0.036)
    """
    rows, right, claimed, doubtful = 0.0, 0.0, 0.0, 0.0
    seen = [one for one in bins if one.accuracy is not None and one.confidence is not None]
    for one in seen:
        rows += one.count
        right += one.count * (one.accuracy or 0.0)
        claimed += one.count * (one.confidence or 0.0)
        doubtful += one.count * _doubtful(one)
    low, high = wilson(np.array([right / rows]), np.array([rows]), level)
    gap = max(claimed / rows - float(low[0]), float(high[0]) - claimed / rows)
    return Interval(
        squared_error.value,
        squared_error.low - doubtful / rows,
        max(gap**2, squared_error.high),
        squared_error.level,
    )


def _doubtful(one: Bin) -> float:
    """The part of a bin's squared gap that chance alone may have made, if it has no spread."""
    if one.accuracy not in (0.0, 1.0) or one.confidence is None or one.gap is None:
        return 0.0
    low, high = one.accuracy_low or 0.0, one.accuracy_high or 0.0
    certain = max(0.0, one.confidence - high, low - one.confidence)
    return max(0.0, one.gap**2 - certain**2)
