"""The reliability diagram: accuracy against confidence, with coloured gaps and counts below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from calibrators.charts.theme import (
    ACCENT,
    INK,
    OVERCONFIDENT,
    UNDERCONFIDENT,
    Spec,
    counts,
    diagonal,
    finished,
    percent,
    share,
)
from calibrators.report.band import ALL

if TYPE_CHECKING:
    from calibrators.report.band import BandCell
    from calibrators.report.measurement import Bin, Measurement
    from calibrators.report.report import Report

Binning = Literal["equal_width", "equal_mass"]
SIZE = 290
COUNTS = 60


def reliability(
    report: Report,
    *,
    binning: Binning = "equal_width",
    sides: Sequence[str] = ("before", "after"),
    titles: Mapping[str, str] | None = None,
) -> Spec:
    """Draw the accuracy of each bin against its confidence, before and after side by side.

    A coloured bar extends from the mean confidence of a bin to its accuracy, whiskers show the
    interval of the accuracy, and the bars below show the row counts. Empty bins are not drawn.
    ``titles`` maps the names of sides to titles.

    >>> from calibrators.report.report import evaluate
    >>> chart = reliability(evaluate([[0.9, 0.1], [0.6, 0.4]], [0, 1], draws=10))
    >>> len(chart["hconcat"])
    1
    """
    kind = "equal-width" if binning == "equal_width" else "equal-mass"
    return finished(
        {"hconcat": panels(report, binning, sides, titles), "spacing": 28},
        f"Reliability diagram of {report.n} rows in {report.bins} {kind} bins",
    )


def panels(
    report: Report,
    binning: Binning = "equal_width",
    sides: Sequence[str] = ("before", "after"),
    titles: Mapping[str, str] | None = None,
) -> list[Spec]:
    """Draw a diagram with its counts for each side of a report."""
    names = {"after": "reliability"} if report.before is None else {}
    names |= titles or {}
    return [
        _panel(names.get(name, name), side, binning, report.band if name == "after" else ())
        for name, side in report.sides.items()
        if name in sides
    ]


def bin_values(bins: tuple[Bin, ...]) -> list[Spec]:
    """Return the data of the non-empty bins, including the values of their tooltips."""
    return [
        {
            "lower": one.lower,
            "upper": one.upper,
            "count": one.count,
            "confidence": one.confidence,
            "accuracy": one.accuracy,
            "low": one.accuracy_low,
            "high": one.accuracy_high,
            "gap": one.gap,
            "direction": "overconfident" if one.gap < 0 else "underconfident",
            "range": f"{one.lower:.3f} to {one.upper:.3f}",
        }
        for one in bins
        if one.gap is not None
    ]


def tooltip() -> list[Spec]:
    """Return the fields of a bin's tooltip."""
    numbers = {
        "confidence": "mean confidence",
        "accuracy": "accuracy",
        "low": "accuracy, at least",
        "high": "accuracy, at most",
        "gap": "accuracy - confidence",
    }
    return [
        {"field": "range", "type": "nominal", "title": "bin"},
        {"field": "count", "type": "quantitative", "title": "rows", "format": ",.0f"},
        *(
            {"field": field, "type": "quantitative", "title": title, "format": ".3f"}
            for field, title in numbers.items()
        ),
    ]


def _panel(title: str, side: Measurement, binning: Binning, band: Sequence[BandCell]) -> Spec:
    subtitle = f"ECE {percent(side.metrics['ada_ece'] or 0.0)} (equal mass)"
    if binning == "equal_width":
        ece, floor = side.metrics["ece"] or 0.0, side.noise_floor.mean
        subtitle = f"ECE {percent(ece)}, noise floor {percent(floor)}"
    return diagram(title, subtitle, bin_values(getattr(side, binning)), band=band)


def diagram(
    title: str,
    subtitle: str,
    bins: list[Spec],
    size: int = SIZE,
    band: Sequence[BandCell] = (),
) -> Spec:
    """Draw a diagram with its counts from the data of ``bin_values``, and a shaded ``band``."""
    below = (size, COUNTS * size // SIZE)
    return {
        "title": {"text": title, "subtitle": subtitle},
        "data": {"values": bins},
        "spacing": 8,
        "vconcat": [
            _gaps(size, band),
            counts(below, share("lower", "confidence"), "count", tooltip()),
        ],
    }


def band_layers(band: Sequence[BandCell], margin: str, x: Spec, y: Spec) -> list[Spec]:
    """Return the layers of the credible band for a third of the margins, or for "all" rows."""
    values = [vars(cell) for cell in band if cell.margin == margin]
    if len(values) < 2:
        return []
    mark = {"type": "area", "color": ACCENT, "opacity": 0.18}
    encoding = {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}}
    return [{"data": {"values": values}, "mark": mark, "encoding": encoding}]


def _gaps(size: int, band: Sequence[BandCell] = ()) -> Spec:
    x, y = share("confidence", None), share("accuracy", "accuracy")
    x["axis"] |= {"labels": False, "ticks": False}
    direction = {
        "field": "direction",
        "type": "nominal",
        "scale": {
            "domain": ["overconfident", "underconfident"],
            "range": [OVERCONFIDENT, UNDERCONFIDENT],
        },
    }
    gap = {
        "x": {**x, "field": "lower"},
        "x2": {"field": "upper"},
        "y": {**y, "field": "confidence"},
        "y2": {"field": "accuracy"},
    }
    whisker = {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}}
    return {
        "width": size,
        "height": size,
        "layer": [
            *band_layers(band, ALL, x, y),
            {
                "mark": {"type": "rect", "opacity": 0.85, "xOffset": 0.5, "x2Offset": -0.5},
                "encoding": {**gap, "color": direction, "tooltip": tooltip()},
            },
            _diagonal_without_x_axis(x),
            {
                "mark": {"type": "rule", "color": INK, "strokeWidth": 1.2},
                "encoding": whisker,
            },
            {
                "mark": {"type": "point", "color": INK, "filled": True, "size": 30, "opacity": 1},
                "encoding": {"x": x, "y": y, "tooltip": tooltip()},
            },
        ],
    }


def _diagonal_without_x_axis(x: Spec) -> Spec:
    line = diagonal()
    return {**line, "encoding": {**line["encoding"], "x": x}}
