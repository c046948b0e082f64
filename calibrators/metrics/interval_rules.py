"""Rules for computing the interval of a metric, from scores per row or from resampled bins."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from calibrators.metrics._inputs import Bools, Floats
from calibrators.metrics.estimates import (
    ANY,
    SHARE,
    Interval,
    Range,
    mean_interval,
    share_change_interval,
    share_interval,
)

if TYPE_CHECKING:
    from calibrators.metrics._resampling import DrawnBins
    from calibrators.metrics.scores import RowScores


class RowRule(ABC):
    """A closed-form interval, computed from the scores of each row."""

    widens_with_folds: ClassVar[bool] = True
    """True if out-of-fold rows underestimate the variance of a change (see ``fold_factor``)."""

    @abstractmethod
    def alone(self, rows: RowScores, level: float) -> Interval | None:
        """Return the interval of the metric; None if it is undefined on these rows."""

    @abstractmethod
    def change(self, before: RowScores, after: RowScores, level: float) -> Interval | None:
        """Return the interval of the change on the same rows; None if it is undefined."""


@dataclass(frozen=True)
class MeanOf(RowRule):
    """Rule for a metric that is the mean of ``values`` (n,) and lies inside ``limits``."""

    values: Callable[[RowScores], Floats]
    limits: Range = ANY

    def alone(self, rows: RowScores, level: float) -> Interval:
        """Return the interval of the metric."""
        return mean_interval(self.values(rows), level, self.limits)

    def change(self, before: RowScores, after: RowScores, level: float) -> Interval:
        """Return the interval of the change, after minus before, on the same rows."""
        return mean_interval(self.values(after) - self.values(before), level)


@dataclass(frozen=True)
class ShareOf(RowRule):
    """Rule for a metric that is the share of rows whose ``flags`` (n,) are set."""

    flags: Callable[[RowScores], Bools]
    widens_with_folds: ClassVar[bool] = False

    def alone(self, rows: RowScores, level: float) -> Interval:
        """Return the interval of the metric."""
        flags = self.flags(rows)
        return share_interval(int(np.count_nonzero(flags)), flags.size, level)

    def change(self, before: RowScores, after: RowScores, level: float) -> Interval:
        """Return the interval of the change, after minus before, on the same rows."""
        old, new = self.flags(before), self.flags(after)
        gained, lost = np.count_nonzero(new & ~old), np.count_nonzero(old & ~new)
        return share_change_interval(int(gained), int(lost), old.size, level)


@dataclass(frozen=True)
class InfluenceOf(RowRule):
    """Rule for a share, ``value``, based on the ``influence`` (n,) of each row on it."""

    value: Callable[[RowScores], float]
    influence: Callable[[RowScores], Floats | None]

    def alone(self, rows: RowScores, level: float) -> Interval | None:
        """Return the interval of the metric."""
        return _around(self.value(rows), self.influence(rows), level, SHARE)

    def change(self, before: RowScores, after: RowScores, level: float) -> Interval | None:
        """Return the interval of the change, after minus before, on the same rows."""
        old, new = self.influence(before), self.influence(after)
        if old is None or new is None:
            return None
        return _around(self.value(after) - self.value(before), new - old, level, ANY)


@dataclass(frozen=True)
class Resampled:
    """Rule for a metric that ``figure`` computes from resampled bins, inside ``limits``."""

    figure: Callable[[DrawnBins], Floats]
    limits: Range = ANY
    widens_with_folds: ClassVar[bool] = False


def _around(value: float, influence: Floats | None, level: float, limits: Range) -> Interval | None:
    """Return the interval of a statistic from the influence of each row on it."""
    if influence is None:
        return None
    error = mean_interval(influence, level)
    low, high = np.clip((value + error.low, value + error.high), *limits)
    return Interval(value, float(low), float(high), level)
