"""Theme and building blocks shared by all charts."""

from __future__ import annotations

from typing import Any

Spec = dict[str, Any]

VERSION = "5.21"
SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"
MIME_TYPE = "application/vnd.vegalite.v5+json"

INK = "#24303b"
MUTED = "#667380"
RULE = "#e1e5e9"
BAND = "#e3e8ec"
BARS = "#8c98a4"
ACCENT = "#2463a6"
OVERCONFIDENT = "#d9844a"
UNDERCONFIDENT = "#86a9cc"
FONT = "Arial, Helvetica, sans-serif"

CONFIG: Spec = {
    "font": FONT,
    "view": {"stroke": None},
    "axis": {
        "domainColor": RULE,
        "gridColor": RULE,
        "labelColor": MUTED,
        "labelFlush": False,
        "labelFontSize": 11,
        "tickColor": RULE,
        "titleColor": MUTED,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
    },
    "legend": {
        "labelColor": INK,
        "labelFontSize": 12,
        "orient": "bottom",
        "symbolStrokeWidth": 0,
        "title": None,
    },
    "title": {
        "anchor": "start",
        "color": INK,
        "fontSize": 14,
        "offset": 10,
        "subtitleColor": MUTED,
        "subtitleFontSize": 12,
        "subtitlePadding": 4,
    },
}


def finished(spec: Spec, description: str) -> Spec:
    """Return a complete chart, with schema, theme and a description for screen readers.

    ``$schema`` states the version of the language and is never fetched.
    """
    return {
        "$schema": SCHEMA,
        "description": description,
        "background": "white",
        "padding": 12,
        "config": CONFIG,
        **spec,
    }


def share(field: str, title: str | None, lowest: float = 0.0) -> Spec:
    """Return the encoding of a share, on an axis from ``lowest`` to 1 regardless of the data."""
    digits = 1 if lowest == 0 else 2 if lowest < 0.95 else 3
    axis: Spec = {"title": title, "tickCount": 5, "format": f".{digits}f"}
    return {
        "field": field,
        "type": "quantitative",
        "scale": {"domain": [lowest, 1], "nice": False},
        "axis": axis,
    }


def diagonal(lowest: float = 0.0) -> Spec:
    """Return the layer with the line on which accuracy equals confidence."""
    ends = [{"confidence": one, "accuracy": one} for one in (lowest, 1.0)]
    return {
        "data": {"values": ends},
        "mark": {"type": "line", "color": MUTED, "strokeDash": [4, 4], "strokeWidth": 1},
        "encoding": {
            "x": share("confidence", "confidence", lowest),
            "y": share("accuracy", "accuracy", lowest),
        },
    }


def counts(size: tuple[int, int], x: Spec, field: str, tooltip: list[Spec]) -> Spec:
    """Return a panel of counts to place below a diagram, with bars from ``lower`` to ``upper``."""
    axis = {"title": "rows", "tickCount": 3, "format": ",d"}
    return {
        "width": size[0],
        "height": size[1],
        "mark": {"type": "rect", "color": BARS, "xOffset": 0.5, "x2Offset": -0.5},
        "encoding": {
            "x": x,
            "x2": {"field": "upper"},
            "y": {"field": field, "type": "quantitative", "scale": {"zero": True}, "axis": axis},
            "y2": {"datum": 0},
            "tooltip": tooltip,
        },
    }


def percent(value: float) -> str:
    """Format a fraction as a percentage.

    >>> percent(0.0452)
    '4.52 %'
    """
    return f"{100 * value:.2f} %"
