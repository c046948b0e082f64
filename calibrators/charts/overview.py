"""The overview of a report: verdict, ECE with its noise floor, and reliability diagrams."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from calibrators.charts.reliability import SIZE, panels
from calibrators.charts.theme import ACCENT, BAND, INK, MUTED, Spec, finished, percent

if TYPE_CHECKING:
    from calibrators.report.report import Report

LONGEST_LINE = 100


def before_after(report: Report) -> Spec:
    """Draw the overview of a report: verdict, ECE with interval and noise floor, and reliability.

    >>> from calibrators.report.report import evaluate
    >>> chart = before_after(evaluate([[0.9, 0.1], [0.6, 0.4]], [0, 1], draws=10))
    >>> len(chart["vconcat"])
    2
    """
    sides = len(report.sides)
    return finished(
        {
            "title": _title(report),
            "spacing": 26,
            "vconcat": [
                _errors(report, SIZE if sides == 1 else 2 * SIZE + 85),
                {"hconcat": panels(report), "spacing": 28},
            ],
        },
        f"Calibration of {report.n} rows: expected calibration error and reliability diagrams",
    )


def _title(report: Report) -> Spec:
    rows = f"{report.n:,} rows, {report.k:,} classes"
    if report.verdict is None:
        return {"text": "calibration", "subtitle": rows, "fontSize": 16}
    words = report.verdict.value.replace("_", " ")
    lines = textwrap.wrap(report.verdict_sentence, LONGEST_LINE)
    return {"text": words, "subtitle": [*lines, rows], "fontSize": 16}


def _errors(report: Report, width: int) -> Spec:
    values = []
    for name, side in report.sides.items():
        ece = side.intervals["ece"]
        values.append(
            {
                "side": name,
                "ece": ece.value,
                "low": ece.low,
                "high": ece.high,
                "floor": side.noise_floor.mean,
                "floor_high": side.noise_floor.quantile95,
                "text": percent(ece.value),
            }
        )
    axis = {
        "title": [
            "expected calibration error",
            "grey: noise floor of a perfectly calibrated model",
        ],
        "format": ".1%",
        "tickCount": 6,
    }
    x = {"field": "ece", "type": "quantitative", "scale": {"zero": True}, "axis": axis}
    y = {
        "field": "side",
        "type": "nominal",
        "sort": None,
        "axis": {"title": None, "ticks": False, "domain": False, "labelFontSize": 12},
    }
    if report.before is None:
        y["axis"] = None
    return {
        "width": width,
        "height": {"step": 34},
        "data": {"values": values},
        "layer": _error_layers(x, y, report.level),
    }


def _error_layers(x: Spec, y: Spec, level: float) -> list[Spec]:
    shown = [
        {"field": "side", "type": "nominal", "title": "side"},
        *(
            {"field": field, "type": "quantitative", "title": title, "format": ".2%"}
            for field, title in (
                ("ece", "ECE"),
                ("low", f"{100 * level:g} % interval, from"),
                ("high", "to"),
                ("floor", "noise floor, mean"),
                ("floor_high", "noise floor, 95 % quantile"),
            )
        ),
    ]
    return [
        {
            "mark": {"type": "bar", "color": BAND, "height": 22},
            "encoding": {"x": {**x, "field": "floor_high"}, "y": y, "tooltip": shown},
        },
        {
            "mark": {"type": "tick", "color": MUTED, "height": 22, "thickness": 1.5},
            "encoding": {"x": {**x, "field": "floor"}, "y": y, "tooltip": shown},
        },
        {
            "mark": {"type": "rule", "color": ACCENT, "strokeWidth": 2},
            "encoding": {"x": {**x, "field": "low"}, "x2": {"field": "high"}, "y": y},
        },
        {
            "mark": {"type": "point", "color": ACCENT, "filled": True, "size": 60, "opacity": 1},
            "encoding": {"x": x, "y": y, "tooltip": shown},
        },
        {
            "mark": {"type": "text", "align": "left", "dx": 8, "color": INK, "fontSize": 12},
            "encoding": {"x": {**x, "field": "high"}, "y": y, "text": {"field": "text"}},
        },
    ]
