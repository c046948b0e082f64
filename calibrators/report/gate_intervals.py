"""Conservative intervals for gates, for cases in which a bootstrap fails.

If the rows of a bin are all correct or all wrong, resampling them shows no spread. The bootstrap of
an ECE is biased, because noise inflates any ECE.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from calibrators.metrics import Interval, wilson
from calibrators.numerics.parallel import Floats
from calibrators.report.measurement import Bin

DRAWS = 2000
SIGNIFICANT = 2.5


def cautious(squared_error: Interval, bins: Iterable[Bin], level: float) -> Interval:
    """Return the interval of the squared calibration error, widened where rows show no spread.

    The error is at least the overall gap between accuracy and mean confidence (Jensen's
    inequality). The upper bound is therefore at least the square of the largest overall gap that
    Wilson's interval for the accuracy allows. In the lower bound, a bin whose outcomes are all
    equal contributes only the part of its gap that lies outside Wilson's interval.

    >>> all_right = Bin(0.0, 1.0, 100.0, 0.999, 1.0, 0.001, 0.963, 1.0)
    >>> found = cautious(Interval(1e-6, 1e-6, 1e-6, 0.95), [all_right], 0.95)
    >>> found.low, round(found.high**0.5, 3)
    (0.0, 0.036)
    """
    filled = [one for one in bins if one.accuracy is not None]
    doubtful = sum(one.count * _doubtful(one) for one in filled) / sum(one.count for one in filled)
    return Interval(
        squared_error.value,
        squared_error.low - doubtful,
        max(_largest_gap(*_sums(filled), level) ** 2, squared_error.high),
        squared_error.level,
    )


def cautious_ece(bins: Iterable[Bin], level: float, seed: int = 0) -> Interval:
    """Return the interval of the ECE that decides a gate, from an equal-width table.

    The value is the ECE itself, which noise inflates. The lower bound is the ECE minus an upper
    quantile of the noise, where only gaps beyond 2.5 standard errors are taken as real and all
    other bins as calibrated. The lower bound is 0 if a calibrated model could have such an ECE by
    chance. The upper bound is not corrected for noise: it is the ECE plus a quantile of its spread,
    and at least the largest overall gap that Wilson's interval for the accuracy allows. The numbers
    of correct rows are drawn from binomial distributions; confidences and bins stay fixed.

    >>> calibrated = [Bin(0.8, 1.0, 1000.0, 0.9, 0.91, 0.01, 0.89, 0.93)]
    >>> found = cautious_ece(calibrated, 0.95)
    >>> found.value, found.low, 0.02 < found.high < 0.035
    (0.01, 0.0, True)
    """
    rows, right, claimed = _sums(bins)
    total, confidence = rows.sum(), claimed / rows
    value = float(np.abs(right - claimed).sum() / total)
    random = np.random.default_rng(seed)

    def drawn(chance: Floats) -> Floats:
        hits = random.binomial(
            np.rint(rows).astype(np.int64)[:, None],
            np.clip(chance, 0, 1)[:, None],
            (rows.size, DRAWS),
        )
        return np.asarray(np.abs(hits - claimed[:, None]).sum(axis=0) / total)

    below, above = (1 - level) / 2, (1 + level) / 2
    gap = right / rows - confidence
    error = np.sqrt(confidence * (1 - confidence) / rows)
    significant = np.where(np.abs(gap) > SIGNIFICANT * error, gap, 0.0)
    low = 0.0
    if value > np.quantile(drawn(confidence), above):
        added = drawn(confidence + significant) - np.abs(rows * significant).sum() / total
        low = max(0.0, value - float(np.quantile(added, above)))
    # a pseudo-row with the bin's mean confidence gives some spread to bins with equal outcomes
    spread = drawn((right + confidence) / (rows + 1))
    high = value + float(spread.mean() - np.quantile(spread, below))
    high = min(1.0, max(high, _largest_gap(rows, right, claimed, level)))
    return Interval(value, min(low, value), high, level)


def _sums(bins: Iterable[Bin]) -> tuple[Floats, Floats, Floats]:
    """Return the row counts, correct-row counts and confidence sums of the non-empty bins."""
    table = np.array([(one.count, one.accuracy or 0.0, one.confidence or 0.0) for one in bins])
    rows, accuracy, confidence = table[table[:, 0] > 0].T
    return rows, rows * accuracy, rows * confidence


def _largest_gap(rows: Floats, right: Floats, claimed: Floats, level: float) -> float:
    """Return the largest overall gap that Wilson's interval for the accuracy allows."""
    total = rows.sum()
    low, high = wilson(np.array([right.sum() / total]), np.array([total]), level)
    mean = float(claimed.sum() / total)
    return max(mean - float(low[0]), float(high[0]) - mean)


def _doubtful(one: Bin) -> float:
    """Return the part of a bin's squared gap that may be due to chance; 0 if it has spread."""
    if one.accuracy not in (0.0, 1.0) or one.confidence is None or one.gap is None:
        return 0.0
    low, high = one.accuracy_low or 0.0, one.accuracy_high or 0.0
    certain = max(0.0, one.confidence - high, low - one.confidence)
    return max(0.0, one.gap**2 - certain**2)
