"""The subset of Vega-Lite that ``svg`` can draw."""

from __future__ import annotations

from typing import Any

from calibrators.charts.marks import SHAPES
from calibrators.charts.theme import CONFIG, Spec

INNER = ("layer", "hconcat", "vconcat")
WHOLE = {"$schema", "description", "background", "padding", "config"}
PANEL = {"title", "data", "width", "height", "spacing", "mark", "encoding", *INNER}
TITLE = {"text", "subtitle", "fontSize"}
MARK = {
    *("type", "color", "opacity", "filled", "size", "height", "thickness", "fontSize", "dx"),
    *("align", "strokeWidth", "strokeDash", "xOffset", "x2Offset"),
}
SCALE = {"domain", "range", "zero", "nice", "padding"}
AXIS = {
    *("title", "format", "tickCount", "labels", "ticks", "grid", "domain", "labelFontSize"),
}
CHANNELS = {
    "x": {"field", "type", "scale", "axis", "sort"},
    "y": {"field", "type", "scale", "axis", "sort"},
    "x2": {"field", "datum"},
    "y2": {"field", "datum"},
    "color": {"field", "type", "scale"},
    "text": {"field"},
}


def can_draw(spec: Spec) -> bool:
    """Return whether a chart is within the subset; all others are drawn by Vega."""
    return spec.get("config") == CONFIG and _is_known(spec, WHOLE | PANEL)


def _is_known(spec: Spec, names: set[str]) -> bool:
    inner = [one for name in INNER for one in spec.get(name, [])]
    if not _within(spec, names) or not _within(spec.get("title", {}), TITLE):
        return False
    if "data" in spec and [*spec["data"]] != ["values"]:
        return False
    if "mark" in spec and not (_is_mark(spec["mark"]) and _is_encoding(spec.get("encoding", {}))):
        return False
    return bool(inner or "mark" in spec) and all(_is_known(one, PANEL) for one in inner)


def _is_mark(mark: Any) -> bool:
    return _within(mark, MARK) and mark.get("type") in SHAPES


def _is_encoding(encoding: Spec) -> bool:
    return {"x", "y"} <= {*encoding} and all(
        name == "tooltip" or _is_channel(name, one) for name, one in encoding.items()
    )


def _is_channel(name: str, channel: Any) -> bool:
    if name not in CHANNELS or not _within(channel, CHANNELS[name]):
        return False
    if name == "color":
        return {"domain", "range"} <= {*channel.get("scale", {})}
    axis = channel.get("axis") or {}
    return _within(channel.get("scale", {}), SCALE) and _within(axis, AXIS)


def _within(spec: Any, names: set[str]) -> bool:
    return isinstance(spec, dict) and {*spec} <= names
