"""Draw a Vega-Lite specification without a browser or a network."""

from __future__ import annotations

from typing import Any

from calibrators.charts.theme import VERSION, Spec
from calibrators.errors import ExportError


def to_svg(spec: Spec) -> str:
    """The chart as SVG text."""
    drawn: str = _converter().vegalite_to_svg(spec, vl_version=VERSION)
    return drawn


def to_png(spec: Spec, scale: float = 2) -> bytes:
    """The chart as a PNG, ``scale`` pixels for each of its own."""
    drawn: bytes = _converter().vegalite_to_png(spec, vl_version=VERSION, scale=scale)
    return drawn


def to_html(spec: Spec) -> str:
    """The chart as a page of its own, with tooltips; all scripts are inside it (about 0.9 MB)."""
    drawn: str = _converter().vegalite_to_html(spec, vl_version=VERSION, bundle=True)
    return drawn


def _converter() -> Any:
    try:
        import vl_convert
    except ImportError as error:
        raise ExportError(
            "charts_not_installed",
            "drawing charts needs vl-convert: pip install 'calibrd[charts]'",
        ) from error
    return vl_convert
