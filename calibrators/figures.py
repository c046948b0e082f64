"""The few figures that a decision between two maps rests on, each with its interval."""

from __future__ import annotations

from typing import NamedTuple

from calibrators.metrics import Interval
from calibrators.report import MetricRow, Report

DECIDING = ("accuracy", "brier", "nll", "ece", "refinement_auroc")


class Figure(NamedTuple):
    """A line of a report's table; ``is_loss`` if the whole interval of the change is for worse."""

    row: MetricRow
    is_loss: bool


def deciding_figures(report: Report) -> list[Figure]:
    """Return accuracy, Brier score, NLL, ECE and ranking of a report, in this order."""
    rows = {row.metric.name: row for row in report.rows()}
    return [
        Figure(row, is_loss(report.change.get(name), higher=row.metric.higher_is_better))
        for name, row in ((name, rows[name]) for name in DECIDING if name in rows)
    ]


def is_loss(change: Interval | None, *, higher: bool) -> bool:
    """Whether a change is measurably for worse; ``higher`` says which way is better.

    >>> is_loss(Interval(-0.2, -0.3, -0.1, 0.95), higher=True), is_loss(None, higher=True)
    (True, False)
    """
    if change is None:
        return False
    return change.high < 0 if higher else change.low > 0
