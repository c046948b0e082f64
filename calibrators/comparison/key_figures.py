"""The key metrics for choosing between two maps, each with its interval."""

from __future__ import annotations

from typing import NamedTuple

from calibrators.report.report import MetricRow, Report

DECIDING = ("accuracy", "brier", "nll", "ece", "refinement_auroc")


class Figure(NamedTuple):
    """A row of a report's table; ``is_loss`` is True if its metric is measurably worse."""

    row: MetricRow
    is_loss: bool


def deciding_figures(report: Report) -> list[Figure]:
    """Return the accuracy, Brier score, NLL, ECE and ranking of a report, in this order."""
    rows = {row.metric.name: row for row in report.rows()}
    return [Figure(rows[name], name in report.lost) for name in DECIDING if name in rows]
