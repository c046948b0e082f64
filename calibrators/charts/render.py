"""Draw charts without a browser or network access."""

from __future__ import annotations

from typing import Any

from calibrators.charts import svg
from calibrators.charts.marks import SHAPES
from calibrators.charts.theme import CONFIG, VERSION, Spec
from calibrators.errors import ExportError

# the subset of Vega-Lite that ``svg`` can draw
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


def to_svg(spec: Spec) -> str:
    """Return a chart as SVG text.

    Charts of reports are drawn in plain Python. Charts of training runs need vl-convert, as Vega
    computes their data.
    """
    if can_draw(spec):
        return svg.draw(spec)
    drawn: str = _converter("this chart as SVG").vegalite_to_svg(spec, vl_version=VERSION)
    return drawn


def to_png(spec: Spec, scale: float = 2) -> bytes:
    """Return a chart as PNG, enlarged by ``scale``; needs vl-convert."""
    drawn: bytes = _converter("PNG").svg_to_png(to_svg(spec), scale=scale)
    return drawn


def to_html(spec: Spec) -> str:
    """Return a chart as a self-contained page with tooltips (0.9 MB); needs vl-convert."""
    drawn: str = _converter("an interactive chart").vegalite_to_html(
        spec, vl_version=VERSION, bundle=True
    )
    return drawn


def _converter(what: str) -> Any:
    try:
        import vl_convert
    except ImportError as error:
        raise ExportError(
            "charts_not_installed",
            f"drawing {what} needs vl-convert: pip install 'calibrd[charts]'",
        ) from error
    return vl_convert


def can_draw(spec: Spec) -> bool:
    """Return whether ``svg`` can draw a chart; other charts are drawn by Vega."""
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
