"""The layers that make up the charts of a training run."""

from __future__ import annotations

from collections.abc import Mapping

from calibrators.charts.theme import ACCENT, INK, MUTED, OVERCONFIDENT, Spec

MAX_BINS = 60
MAX_POINTS = 4500  # per chart; beyond that, steps are left out, but never the last one
MAX_STEPS = 600
FEW = 12  # up to this number of steps, each step is also drawn as a point
ALERT = "#c0473b"
# colours of equal lightness, all visible on white and on black
BIN_COLOURS = ["#7d62c8", "#4f7fd6", "#2f97ab", "#4d9a5b", "#a28a2b", "#d0753a", "#cc4f6c"]
FLAGS = {"partial step": ("diamond", OVERCONFIDENT), "unverified step": ("cross", ALERT)}
NONE: Mapping[str, tuple[str, str]] = {}
MARKS = {"to inverse-focal": ("triangle-down", INK), "to focal": ("triangle-up", INK), **FLAGS}
POINT: Spec = {"type": "point", "size": 30, "fill": "transparent", "strokeWidth": 1.5}
POINT_OPACITY: Spec = {"condition": {"test": f"datum.total > {FEW}", "value": 0}, "value": 1}


def lines_of_bins(y: Spec) -> Spec:
    """Return the layers with a line for each bin, and points for tooltips."""
    common = {"x": step(), "y": y, "stroke": _colour_of_bin()}
    picked = {"type": "point", "fields": ["bin"], "on": "pointerover", "clear": "pointerout"}
    line = {
        "mark": {"type": "line", "strokeWidth": 1.6},
        "encoding": {
            **common,
            "detail": {"field": "bin", "type": "nominal"},
            "opacity": of_picked(0.9, 0.1),
        },
    }
    points = {
        "params": [{"name": "picked", "select": picked}],
        "mark": POINT,
        "encoding": {
            **common,
            "strokeOpacity": POINT_OPACITY,
            "opacity": of_picked(0.9, 0.1),
            "tooltip": _bin_tooltip(with_gamma=y["field"] == "gamma"),
        },
    }
    return {"transform": _rows_of_bins(with_gamma=y["field"] == "gamma"), "layer": [line, points]}


def _rows_of_bins(*, with_gamma: bool) -> list[Spec]:
    """Return the transform that turns each step into one row per bin."""
    size = f"min(datum.size, {MAX_BINS})"
    columns = {
        "bin": "sequence(datum.size)",
        "C": "datum.bins.confidence",
        "A": "datum.bins.accuracy",
        "lower": "slice(datum.bins.edges, 0, datum.size)",
        "upper": "slice(datum.bins.edges, 1)",
    }
    if with_gamma:
        columns["gamma"] = "datum.gammas"
    return [
        {"filter": "isObject(datum.bins)" + (" && isArray(datum.gammas)" if with_gamma else "")},
        {"calculate": "length(datum.bins.accuracy)", "as": "size"},
        *_thinned(f"ceil(datum.total * {size} / {MAX_POINTS})"),
        *({"calculate": one, "as": name} for name, one in columns.items()),
        {"flatten": list(columns)},
        {"filter": f"isValid(datum.A) && datum.bin % ceil(datum.size / {MAX_BINS}) == 0"},
        {"calculate": "datum.C - datum.A", "as": "gap"},
    ]


def _colour_of_bin() -> Spec:
    return {
        "field": "bin",
        "type": "quantitative",
        "scale": {"range": BIN_COLOURS, "nice": False, "zero": False},
        "legend": {
            "title": "bin, from least to most confident",
            "titleLimit": 0,
            "titleColor": MUTED,
            "titleFontWeight": "normal",
            "direction": "horizontal",
            "gradientLength": 200,
            "gradientThickness": 8,
            "format": "d",
            "tickMinStep": 1,
        },
    }


def _bin_tooltip(*, with_gamma: bool) -> list[Spec]:
    fields = [
        shown("step"),
        shown("bin"),
        shown("lower", ".4f", "confidence from"),
        shown("upper", ".4f", "to"),
        shown("C", ".4f"),
        shown("A", ".4f"),
        shown("gap", "+.4f", "C \N{MINUS SIGN} A"),
    ]
    return [*fields, shown("gamma", ".4f")] if with_gamma else fields


def lines_of_metrics(fields: Mapping[str, str], axis: str, form: str, *, zero: bool) -> Spec:
    """Return the layers with a line for each metric.

    ``fields`` maps display names to metrics; ``form`` is the number format in tooltips.
    """
    transform = [
        *_thinned(f"ceil(datum.total / {MAX_STEPS})"),
        *({"calculate": f"datum.metrics.{one}", "as": name} for name, one in fields.items()),
        {"fold": list(fields), "as": ["metric", "value"]},
        {"filter": "isValid(datum.value)"},
    ]
    y = {
        "field": "value",
        "type": "quantitative",
        "scale": {"zero": zero},
        "axis": {"title": None, "format": axis, "tickCount": 5},
    }
    colour: Spec = {
        "field": "metric",
        "type": "nominal",
        "scale": {"domain": list(fields), "range": [ACCENT, OVERCONFIDENT][: len(fields)]},
        "legend": {"symbolType": "stroke", "symbolStrokeWidth": 2} if len(fields) > 1 else None,
    }
    dashes = {
        "field": "metric",
        "type": "nominal",
        "scale": {"domain": list(fields), "range": [[1, 0], [5, 3]][: len(fields)]},
        "legend": colour["legend"],
    }
    tooltip = [shown("step"), *(shown(name, form) for name in fields)]
    common = {"x": step(), "y": y, "stroke": colour}
    line = {
        "mark": {"type": "line", "strokeWidth": 2},
        "encoding": {**common, "strokeDash": dashes},  # so that neither line hides the other
    }
    points = {
        "mark": POINT,
        "encoding": {**common, "strokeOpacity": POINT_OPACITY, "tooltip": tooltip},
    }
    return {"transform": transform, "layer": [line, points]}


def _thinned(every: str) -> list[Spec]:
    """Return the transform that keeps every n-th step and the last one."""
    counted = [
        {"op": "count", "as": "total"},
        {"op": "max", "field": "step", "as": "last"},
    ]
    return [
        {"joinaggregate": counted},
        {"filter": f"datum.step % {every} == 0 || datum.step == datum.last"},
    ]


def flags(explained: Mapping[str, tuple[str, str]] = NONE) -> Spec:
    """Return the layer that marks partial and unverified steps on the axis.

    ``explained`` lists the marks shown in the legend; if it is empty, there is no legend.
    """
    return {
        "transform": [
            {"filter": "datum.partial || datum.verified === false"},
            {"calculate": "datum.partial ? 'partial step' : 'unverified step'", "as": "mark"},
            {"calculate": "join(datum.ranks, ', ')", "as": "ranks_text"},
        ],
        "mark": {"type": "point", "filled": True, "size": 70, "opacity": 1, "clip": False},
        "encoding": {
            "x": step(),
            "y": {"value": "height"},
            **marked(explained or FLAGS, has_legend=bool(explained)),
            "tooltip": [
                shown("step"),
                word("mark"),
                {"field": "ranks_text", "type": "nominal", "title": "ranks"},
                shown("world_size", title="of"),
            ],
        },
    }


def sessions() -> Spec:
    """Return the layer with a line at each step where a new session begins."""
    return {
        "transform": [
            {
                "window": [{"op": "lag", "field": "session", "as": "before"}],
                "sort": [{"field": "step", "order": "ascending"}],
            },
            {"filter": "isValid(datum.before) && datum.before != datum.session"},
        ],
        "mark": {"type": "rule", "color": MUTED, "strokeDash": [2, 3], "opacity": 0.7},
        "encoding": {"x": step(), "tooltip": [shown("step"), word("session")]},
    }


def zero_line() -> Spec:
    """Return the layer with the line of perfect calibration."""
    return {
        "data": {"values": [{}]},
        "mark": {"type": "rule", "aria": False, "color": MUTED, "strokeDash": [4, 4]},
        "encoding": {"y": {"datum": 0}},
    }


def step() -> Spec:
    """Return the encoding of the step axis."""
    return {
        "field": "step",
        "type": "quantitative",
        "scale": {"zero": False, "nice": False},
        "axis": {"title": "step", "tickMinStep": 1, "format": "d", "grid": False},
    }


def marked(marks: Mapping[str, tuple[str, str]], *, has_legend: bool = True) -> Spec:
    """Return the encoding of the field ``mark`` by shape and colour."""
    field = {"field": "mark", "type": "nominal", "legend": {"columns": 2} if has_legend else None}
    shapes, colours = ([one[place] for one in marks.values()] for place in (0, 1))
    return {
        "shape": {**field, "scale": {"domain": list(marks), "range": shapes}},
        "fill": {**field, "scale": {"domain": list(marks), "range": colours}},
    }


def of_picked(value: float, otherwise: float) -> Spec:
    """Return an encoding with one value for the bin under the pointer and another for the rest."""
    return {"condition": {"param": "picked", "value": value}, "value": otherwise}


def shown(field: str, form: str = ",d", title: str | None = None) -> Spec:
    """Return a number field of a tooltip."""
    return {"field": field, "type": "quantitative", "format": form, "title": title or field}


def word(field: str) -> Spec:
    """Return a text field of a tooltip."""
    return {"field": field, "type": "nominal", "title": field}
