"""The metrics that ``calibrd promote`` shows before it moves an alias."""

from __future__ import annotations

from typing import Any, NamedTuple

from calibrators import Report
from calibrators.comparison.key_figures import deciding_figures
from calibrd.cli.output import table
from calibrd.client import Client
from calibrd.errors import Refused
from calibrd.models import Version


class Figures(NamedTuple):
    """A comparison of a version with the version ``against``, or with the model itself (None)."""

    against: int | None
    number: int
    report: Report

    @classmethod
    def of(cls, client: Client, version: Version, alias: str) -> Figures | None:
        """Compare a version with the alias's current version or, failing that, with the model."""
        compared = _compared(client, version, alias)
        if compared is not None:
            return compared
        report = version.report
        known = report is not None and report.before is not None
        return cls(None, version.number, report) if report is not None and known else None

    @property
    def document(self) -> dict[str, Any]:
        """The figures as a JSON document."""
        return {
            "against": self.against,
            "rows": self.report.n,
            "metrics": {
                one.row.metric.name: {
                    "before": self.report.before
                    and self.report.before.metrics[one.row.metric.name],
                    "after": self.report.metrics[one.row.metric.name],
                    "change": self.report.change.get(one.row.metric.name),
                    "worse": one.is_loss,
                }
                for one in deciding_figures(self.report)
            },
        }

    @property
    def lines(self) -> list[str]:
        """The figures as a table for terminals."""
        first = "model" if self.against is None else f"version {self.against}"
        level = f"{100 * self.report.level:g} % interval"
        head = ("", first, f"version {self.number}", "difference", level, "")
        rows = [
            (one.row.metric.title, *one.row[1:], "worse" if one.is_loss else "")
            for one in deciding_figures(self.report)
        ]
        return [f"on {self.report.n:,} judged rows", table(head, rows), ""]


def _compared(client: Client, version: Version, alias: str) -> Figures | None:
    """Compare a version with the alias's current version.

    Return None if they are the same version or there is no verdict.
    """
    try:
        there = client.get_alias(version.calibrator, alias).version
        if there == version.number:
            return None
        found = client.compare(version.calibrator, there, version.number)
    except Refused:
        return None
    return Figures(there, version.number, found.report) if found.verdict is not None else None
