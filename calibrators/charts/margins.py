"""Charts by margin: reliability for each third of the margins, and temperature by margin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from calibrators.base import CalibrationMap
from calibrators.charts.reliability import band_layers, bin_values, tooltip
from calibrators.charts.theme import (
    ACCENT,
    INK,
    MUTED,
    Spec,
    counts,
    diagonal,
    finished,
    percent,
    share,
)
from calibrators.errors import DataError
from calibrators.report.by_temperature import TemperatureCell, temperatures_at
from calibrators.report.measurement import THIRDS

if TYPE_CHECKING:
    from calibrators.report.band import BandCell
    from calibrators.report.measurement import MarginThird
    from calibrators.report.report import Report

PANEL = 215
WIDTH = 560


def margin_panels(report: Report, *, thirds: Sequence[str] = THIRDS) -> Spec:
    """Draw the reliability of rows with low, middle and high margins (Figure 1 of the SMART paper).

    Points are equal-mass bins; the axes of a panel begin near its lowest point. With a single
    temperature for all rows, the thirds can be miscalibrated in opposite directions, so that the
    overall diagram looks better than any of the panels.

    >>> from calibrators.report.report import evaluate
    >>> chart = margin_panels(evaluate([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4]], [0, 0, 1], draws=10))
    >>> len(chart["hconcat"])
    3
    """
    panels = [_third(one, report.band) for one in report.by_margin if one.name in thirds]
    return finished(
        {"hconcat": panels, "spacing": 24},
        f"Reliability of {report.n} rows by thirds of the logit margin",
    )


def temperature_curve(fitted: CalibrationMap, logits: ArrayLike) -> Spec:
    """Draw the temperature of a map by margin, above the density of the margins.

    The map must be a temperature-type map. ``logits`` (n, k) is the input of the map: probabilities
    if the map was fitted on probabilities. A band spans the temperatures of the middle 80 % of the
    rows at a margin; it has no width if the temperature depends only on the margin.

    >>> from calibrators.methods.temperature import TemperatureMap
    >>> chart = temperature_curve(TemperatureMap(k=2, temperature=1.5), [[0.0, 1.0], [0.0, 3.0]])
    >>> [layer["mark"]["type"] for layer in chart["vconcat"][0]["layer"]]
    ['line', 'area', 'line', 'point']
    """
    cells = temperatures_at(fitted, logits)
    if not cells:
        raise DataError("no_finite_margin", "logits must contain a row with two finite logits")
    return _temperatures(cells, fitted.method, len(np.atleast_1d(logits)))


def temperatures(report: Report) -> Spec:
    """Draw the temperature by margin from the cells of a report.

    >>> from calibrators.data import CalibrationSet
    >>> from calibrators.fitting.evaluation import fit_and_judge
    >>> from calibrators.methods.temperature import TemperatureScaling
    >>> data = CalibrationSet([[0.0, 1.0], [2.0, 0.0]] * 5, [1, 0] * 4 + [0, 0])
    >>> chart = temperatures(fit_and_judge(TemperatureScaling(), data).report)
    >>> chart["title"]["subtitle"]
    'temperature, over the margins of 10 rows; dashed: unchanged'
    """
    if not report.temperatures:
        raise DataError("no_temperatures", "report must contain temperatures, got none")
    return _temperatures(report.temperatures, str(report.fit.get("method", "")), report.n)


def _temperatures(cells: Sequence[TemperatureCell], method: str, rows: int) -> Spec:
    end = cells[-1].upper
    values = [{**vars(cell), "margin": (cell.lower + cell.upper) / 2} for cell in cells]
    density = counts((WIDTH, 60), _margin("lower", end, labels=True), "rows", _cell_tooltip())
    subtitle = f"over the margins of {rows:,} rows; dashed: unchanged"
    return finished(
        {
            "title": {
                "text": "temperature by margin",
                "subtitle": f"{method}, {subtitle}" if method else subtitle,
            },
            "data": {"values": values},
            "spacing": 8,
            "vconcat": [_curve(end), density],
        },
        f"Temperature by logit margin, {subtitle}",
    )


def _third(third: MarginThird, band: Sequence[BandCell]) -> Spec:
    sides = {"before": third.before, "after": third.after}
    values = [
        {**one, "side": name}
        for name, side in sides.items()
        if side is not None
        for one in bin_values(side.equal_mass)
    ]
    lowest = _lowest(min(min(one["low"], one["confidence"]) for one in values))
    ends = ("infinity" if one is None else f"{one:.2f}" for one in (third.lower, third.upper))
    errors = " → ".join(percent(side.ece) for side in sides.values() if side is not None)
    lines = [
        f"{' to '.join(ends)}; {third.count:,} rows",
        f"ECE {errors}",
        f"noise floor {percent(third.after.noise_floor.mean)}",
        f"axes from {lowest:g}" if lowest else "",
    ]
    return {
        "title": {"text": f"{third.name} margin", "subtitle": lines},
        "width": PANEL,
        "height": PANEL,
        "data": {"values": values},
        "layer": [
            *band_layers(
                [cell for cell in band if cell.confidence >= lowest],
                third.name,
                share("confidence", "confidence", lowest),
                share("accuracy", "accuracy", lowest),
            ),
            diagonal(lowest),
            _whiskers(lowest),
            _points(lowest),
        ],
    }


def _lowest(value: float) -> float:
    """Return the start of a panel's axes, chosen to keep points close to 1 distinct."""
    return next((start for start in (0.99, 0.98, 0.95, 0.9, 0.8, 0.5) if start <= value), 0.0)


def _side() -> Spec:
    scale = {"domain": ["before", "after"], "range": ["#9aa5b0", ACCENT]}
    return {"field": "side", "type": "nominal", "scale": scale}


def _whiskers(lowest: float) -> Spec:
    return {
        "mark": {"type": "rule", "strokeWidth": 1.2, "opacity": 0.7},
        "encoding": {
            "x": share("confidence", "confidence", lowest),
            "y": share("low", "accuracy", lowest),
            "y2": {"field": "high"},
            "color": _side(),
        },
    }


def _points(lowest: float) -> Spec:
    side = {"field": "side", "type": "nominal", "title": "side"}
    return {
        "mark": {"type": "point", "filled": True, "size": 40, "opacity": 0.9},
        "encoding": {
            "x": share("confidence", "confidence", lowest),
            "y": share("accuracy", "accuracy", lowest),
            "color": _side(),
            "tooltip": [side, *tooltip()],
        },
    }


def _margin(field: str, end: float, *, labels: bool) -> Spec:
    axis: Spec = {"title": "margin (largest minus second largest logit)"}
    if not labels:
        axis = {"title": None, "labels": False, "ticks": False}
    scale = {"domain": [0, end], "nice": False}
    return {"field": field, "type": "quantitative", "scale": scale, "axis": axis}


def _curve(end: float) -> Spec:
    x = _margin("margin", end, labels=False)
    y = {
        "field": "temperature",
        "type": "quantitative",
        "scale": {"zero": False, "padding": 12},
        "axis": {"title": "temperature", "tickCount": 6, "grid": True},
    }
    unchanged = [{"margin": margin, "temperature": 1} for margin in (0, end)]
    return {
        "width": WIDTH,
        "height": 220,
        "layer": [
            {
                "data": {"values": unchanged},
                "mark": {"type": "line", "color": MUTED, "strokeDash": [4, 4], "strokeWidth": 1},
                "encoding": {"x": x, "y": y},
            },
            {
                "mark": {"type": "area", "color": ACCENT, "opacity": 0.18},
                "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}},
            },
            {
                "mark": {"type": "line", "color": ACCENT, "strokeWidth": 2},
                "encoding": {"x": x, "y": y},
            },
            {
                "mark": {"type": "point", "opacity": 0, "size": 150, "color": INK},
                "encoding": {"x": x, "y": y, "tooltip": _cell_tooltip()},
            },
        ],
    }


def _cell_tooltip() -> list[Spec]:
    shown = {
        "margin": ("margin", ".2f"),
        "rows": ("rows", ","),
        "temperature": ("mean temperature", ".3f"),
        "low": ("middle 80 % from", ".3f"),
        "high": ("to", ".3f"),
    }
    return [
        {"field": field, "type": "quantitative", "title": title, "format": form}
        for field, (title, form) in shown.items()
    ]
