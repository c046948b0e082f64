"""Charts of reports and runs as Vega-Lite specifications, for browsers, notebooks, SVG and PNG.

Each chart is a plain dict that includes its data. ``to_svg`` draws the charts of reports in plain
Python; ``to_png``, ``to_html`` and the charts of runs need ``pip install 'calibrd[charts]'``.
"""

from calibrators.charts.margins import margin_panels, temperature_curve, temperatures
from calibrators.charts.overview import before_after
from calibrators.charts.reliability import reliability
from calibrators.charts.render import to_html, to_png, to_svg
from calibrators.charts.runs import (
    run_accuracy,
    run_charts,
    run_errors,
    run_gammas,
    run_gaps,
    run_nll,
)
from calibrators.charts.theme import MIME_TYPE

__all__ = [
    "MIME_TYPE",
    "before_after",
    "margin_panels",
    "reliability",
    "run_accuracy",
    "run_charts",
    "run_errors",
    "run_gammas",
    "run_gaps",
    "run_nll",
    "temperature_curve",
    "temperatures",
    "to_html",
    "to_png",
    "to_svg",
]
