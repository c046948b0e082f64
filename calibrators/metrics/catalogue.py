"""The metrics of a report, found by scanning this folder for instances of Metric."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from calibrators.metrics.estimates import Interval
from calibrators.metrics.interval_rules import Resampled, RowRule
from calibrators.scan import instances_of

if TYPE_CHECKING:
    from calibrators.metrics.report_inputs import ScoredRows


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric of a report: how it is measured, shown and defined.

    ``measure`` takes the shared inputs of a report. It returns None if the metric does not apply to
    the data, and NaN if it is undefined for these rows. ``function`` is the public form, which
    takes probabilities and labels. ``position`` determines the order in the table. ``percent`` is
    True for shares, which are shown in percent, and False for plain numbers. ``meaning`` is a short
    definition. ``interval`` is the rule for the metric's interval, if it has one.

    >>> all_metrics()["ece"].title
    'ECE, equal-width bins'
    """

    name: str
    title: str
    meaning: str
    function: Callable[..., float]
    measure: Callable[[ScoredRows], float | None]
    position: int
    percent: bool = True
    digits: int = 2
    higher_is_better: bool = False
    interval: RowRule | Resampled | None = None

    def text(self, value: float | None, *, signed: bool = False) -> str:
        """Format a value for display; return an empty string if it is None.

        >>> ece = all_metrics()["ece"]
        >>> ece.text(0.0452), ece.text(-0.01, signed=True)
        ('4.52 %', '-1.00 %')
        """
        return "" if value is None else self._number(value, signed) + (" %" if self.percent else "")

    def bounds(self, interval: Interval, *, signed: bool = False) -> str:
        """Format the bounds of an interval for display.

        >>> all_metrics()["nll"].bounds(Interval(0.5, 0.4, 0.6, 0.95))
        '[0.4000, 0.6000]'
        """
        return f"[{self._number(interval.low, signed)}, {self._number(interval.high, signed)}]"

    def change(self, interval: Interval) -> str:
        """Format a change and its bounds, with more digits if it would be rounded to 0.

        >>> all_metrics()["accuracy"].change(Interval(-0.025, -0.031, -0.019, 0.95))
        '-2.50 points [-3.10, -1.90]'
        >>> all_metrics()["nll"].change(Interval(0.0012, 0.0004, 0.002, 0.95))
        '+0.0012 [+0.0004, +0.0020]'
        """
        size = abs(interval.value) * (100 if self.percent else 1)
        digits = self.digits
        if 0 < size < math.inf:
            digits = max(digits, 1 - math.floor(math.log10(size)))
        value, low, high = (
            self._number(one, True, digits) for one in (interval.value, interval.low, interval.high)
        )
        return f"{value}{' points' if self.percent else ''} [{low}, {high}]"

    def _number(self, value: float, signed: bool, digits: int | None = None) -> str:
        shown = self.digits if digits is None else digits
        scaled = round(100 * value if self.percent else value, shown) + 0.0
        return f"{scaled:{'+' if signed and scaled else ''}.{shown}f}"


@cache
def all_metrics() -> dict[str, Metric]:
    """Return all metrics of a report by name, in the order of the report's table.

    >>> list(all_metrics())[:2]
    ['ece', 'ada_ece']
    """
    package = importlib.import_module("calibrators.metrics")
    found = sorted(instances_of(package, Metric), key=lambda one: (one.position, one.name))
    return {one.name: one for one in found}
