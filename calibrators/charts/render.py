"""Draw a chart without a browser or a network."""

from __future__ import annotations

from typing import Any

from calibrators.charts import svg
from calibrators.charts.subset import can_draw
from calibrators.charts.theme import VERSION, Spec
from calibrators.errors import ExportError


def to_svg(spec: Spec) -> str:
    """Return a chart as SVG text.

    Charts of reports are drawn in plain Python. Those of training runs compute their data in Vega
    and need vl-convert.
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
    """Return a chart as a page with tooltips and all scripts inside (0.9 MB); needs vl-convert."""
    drawn: str = _converter("a chart with scripts").vegalite_to_html(
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
