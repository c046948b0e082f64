"""Intervals for metrics, and for their change between two maps on the same rows.

Means (NLL, Brier score), shares (accuracy) and rank statistics (AUROC, AURC) have closed-form
intervals (see `estimates` and `selective`); binned errors are resampled. Noise inflates some
statistics, such as any ECE. The sample is noisy already, and resampling adds noise again, so the
plain percentile interval can lie entirely above the estimate. All draws are therefore shifted so
that their mean is the point estimate, which keeps their spread and removes the second inflation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from calibrators.errors import DataError
from calibrators.metrics._inputs import Floats, at_least, checked
from calibrators.metrics._resampling import Drawn, resampled
from calibrators.metrics.catalogue import all_metrics
from calibrators.metrics.estimates import ANY, Interval, Range, check_level
from calibrators.metrics.interval_rules import Resampled, RowRule
from calibrators.metrics.scores import RowScores
from calibrators.metrics.toplabel import TopLabel

__all__ = [
    "Compared",
    "bootstrap_interval",
    "calibration_intervals",
    "compared_intervals",
    "paired_intervals",
]


class Compared(NamedTuple):
    """Intervals of both sides and of the change, all from the same resampled rows."""

    before: dict[str, Interval]
    after: dict[str, Interval]
    change: dict[str, Interval]


def bootstrap_interval(
    metric: Callable[[npt.NDArray[np.float64], npt.NDArray[np.intp]], float],
    probabilities: npt.ArrayLike,
    labels: npt.ArrayLike,
    *,
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Return the bootstrap interval of any metric `f(probabilities, labels)`.

    The bounds are percentiles of the draws, which are shifted so that their mean is the point
    estimate (see the module docstring). Draws in which the metric is NaN are left out. For built-in
    metrics, `calibration_intervals` is much faster. Efron & Tibshirani 1993.

    >>> from calibrators.metrics import accuracy
    >>> found = bootstrap_interval(accuracy, [[0.8, 0.2]] * 100, [0] * 80 + [1] * 20, draws=200)
    >>> found.value, 0.68 < found.low < 0.76, 0.84 < found.high < 0.92
    (0.8, True, True)
    """
    _check_options(draws, level)
    data = checked(probabilities, labels)
    count = data.labels.size
    random = np.random.default_rng(seed)
    drawn = np.empty(draws)
    for draw in range(draws):
        rows = random.integers(0, count, count)
        drawn[draw] = metric(data.probabilities[rows], data.labels[rows])
    return _interval(metric(data.probabilities, data.labels), drawn, level, ANY)


def calibration_intervals(
    rows: RowScores, *, bins: int = 15, draws: int = 1000, level: float = 0.95, seed: int = 0
) -> dict[str, Interval]:
    """Return the intervals of all metrics that have one, by name.

    `ece` and `debiased_squared_error` are resampled with the bins of the full sample; `draws` and
    `seed` apply only to them. `refinement_auroc` is left out unless at least two rows are correct
    and two are wrong. Bounds are clipped to the range of the metric.

    >>> from calibrators.metrics import row_scores
    >>> rows = row_scores([[0.8, 0.2]] * 100, [0] * 80 + [1] * 20)
    >>> found = calibration_intervals(rows, draws=200)["nll"]
    >>> found.low < found.value < found.high
    True
    """
    _check_options(draws, level)
    (drawn,) = _resampled([rows.top], bins, draws, seed)
    return _alone(rows, drawn, level)


def paired_intervals(
    before: RowScores,
    after: RowScores,
    *,
    bins: int = 15,
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, Interval]:
    """Return the intervals of the changes, after minus before, on the same resampled rows.

    The names are the same as in `calibration_intervals`. An interval that lies entirely below 0
    means that the metric fell. Both sides must hold the same rows in the same order.

    >>> from calibrators.metrics import row_scores
    >>> labels = [0] * 80 + [1] * 20
    >>> before, after = (row_scores([[p, 1 - p]] * 100, labels) for p in (0.99, 0.8))
    >>> paired_intervals(before, after, draws=200)["nll"].high < 0
    True
    """
    compared = compared_intervals(before, after, bins=bins, draws=draws, level=level, seed=seed)
    return compared.change


def compared_intervals(
    before: RowScores,
    after: RowScores,
    *,
    bins: int = 15,
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Compared:
    """Return the intervals of both sides and of the change at once; see `paired_intervals`.

    >>> from calibrators.metrics import row_scores
    >>> rows = row_scores([[0.8, 0.2]] * 100, [0] * 80 + [1] * 20)
    >>> found = compared_intervals(rows, rows, draws=20)
    >>> found.before == found.after, found.change["ece"].value
    (True, 0.0)
    """
    _check_options(draws, level)
    rows = before.nll.size, after.nll.size
    if rows[0] != rows[1]:
        raise DataError(
            "bad_input",
            f"before and after must have the same rows, got {rows[0]} and {rows[1]} rows",
        )
    old, new = _resampled([before.top, after.top], bins, draws, seed)
    change = {}
    for name, metric in all_metrics().items():
        match metric.interval:
            case RowRule() as rule:
                change[name] = rule.change(before, after, level)
            case Resampled():
                moved = new.draws[name] - old.draws[name]
                change[name] = _interval(new.values[name] - old.values[name], moved, level, ANY)
    return Compared(_alone(before, old, level), _alone(after, new, level), _defined(change))


def _resampled(sides: list[TopLabel], bins: int, draws: int, seed: int) -> list[Drawn]:
    figures = {
        name: metric.interval.figure
        for name, metric in all_metrics().items()
        if isinstance(metric.interval, Resampled)
    }
    return resampled(sides, figures, bins, draws, seed)


def _alone(rows: RowScores, drawn: Drawn, level: float) -> dict[str, Interval]:
    intervals = {}
    for name, metric in all_metrics().items():
        match metric.interval:
            case RowRule() as rule:
                intervals[name] = rule.alone(rows, level)
            case Resampled(limits=limits):
                intervals[name] = _interval(drawn.values[name], drawn.draws[name], level, limits)
    return _defined(intervals)


def _defined(intervals: dict[str, Interval | None]) -> dict[str, Interval]:
    return {name: one for name, one in intervals.items() if one is not None}


def _check_options(draws: int, level: float) -> None:
    at_least("draws", draws, 2)
    check_level(level)


def _interval(value: float, drawn: Floats, level: float, limits: Range) -> Interval:
    defined = drawn[~np.isnan(drawn)]
    if defined.size == 0:
        return Interval(float(value), float("nan"), float("nan"), level)
    shifted = defined + (value - defined.mean())
    low, high = np.clip(np.quantile(shifted, [(1 - level) / 2, (1 + level) / 2]), *limits)
    return Interval(float(value), float(low), float(high), level)
