"""Fits on few rows: ECE above its noise floor by the number of fit rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kept import Found
from posthoc_report import called, grouped, mean

from calibrators.charts.theme import finished

CHART = "posthoc_few_rows.svg"
MIN_SHOWN = 0.05


def _whole(found: Sequence[Found]) -> list[Found]:
    """Return the fits on sets that have enough rows for every planned size."""
    short = {one["plan"]["data"] for one in found if one["rows"] < one["plan"]["rows"]}
    return [one for one in found if one["plan"]["data"] not in short]


def _curves(found: Sequence[Found], name: str) -> dict[str, dict[int, float]]:
    """Return each method's curve by number of rows, averaged over splits, then over sets."""
    curves: dict[str, dict[int, float]] = {}
    for method, ones in grouped(found, called).items():
        for rows, at in grouped(ones, lambda plan: str(plan["rows"])).items():
            curves.setdefault(method, {})[int(rows)] = mean(at, name)
    return curves


def few_rows_table(found: Sequence[Found]) -> str:
    """Return error above the floor, and NLL: one row per method, one column per number of rows."""
    whole = _whole(found)
    sets = len({one["plan"]["data"] for one in whole})
    above, likelihood = (_curves(whole, name) for name in ("above", "nll"))
    sizes = sorted({rows for curve in above.values() for rows in curve})
    lines = [f"Means over the {sets} sets with at least {max(sizes):,} rows to fit on.", ""]
    for title, curves, digits in (
        ("ECE-15 minus floor, percent", above, 2),
        ("NLL", likelihood, 3),
    ):
        lines += [f"| {title} | {' | '.join(f'{rows:,}' for rows in sizes)} |"]
        lines += ["|---|" + "---:|" * len(sizes)]
        for method, curve in curves.items():
            cells = [f"{curve[rows]:.{digits}f}" for rows in sizes]
            lines.append(f"| {method} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def few_rows_chart(found: Sequence[Found]) -> dict[str, Any]:
    """Draw the error above the floor by the number of rows, one line per method.

    The axis is logarithmic: values below MIN_SHOWN, or negative, are drawn at MIN_SHOWN.
    """
    values = [
        {"method": method, "rows": rows, "above": max(value, MIN_SHOWN)}
        for method, curve in _curves(_whole(found), "above").items()
        for rows, value in curve.items()
    ]
    return finished(
        {
            "data": {"values": values},
            "width": 520,
            "height": 320,
            "mark": {"type": "line", "point": True},
            "encoding": {
                "x": {
                    "field": "rows",
                    "type": "quantitative",
                    "scale": {"type": "log", "nice": False},
                    "title": "rows to fit on",
                },
                "y": {
                    "field": "above",
                    "type": "quantitative",
                    "scale": {"type": "log"},
                    "title": "ECE-15 minus noise floor, percent",
                },
                "color": {"field": "method", "type": "nominal", "title": "method"},
            },
        },
        "Calibration error above its noise floor by the number of fit rows, for each method",
    )
