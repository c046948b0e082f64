"""Charts of a training run over its steps: gammas, C - A and metrics.

All functions take the steps of a run's history as plain dicts, oldest first. The chart itself
derives all marks from the dataset ``steps``, so a page can update it live by replacing the dataset.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from calibrators.charts.run_layers import (
    FLAGS,
    MARKS,
    flags,
    lines_of_bins,
    lines_of_metrics,
    marked,
    of_picked,
    sessions,
    shown,
    step,
    word,
    zero_line,
)
from calibrators.charts.theme import CONFIG, Spec, finished

Step = Mapping[str, Any]

DATA = "steps"
WIDTH, HEIGHT, SMALL = 560, 300, 180
# stacked legends, for narrow screens
STACKED = {"bottom": {"direction": "vertical", "anchor": "start"}}


def run_charts(steps: Iterable[Step]) -> dict[str, Spec]:
    """Return all charts of a run by name; ``gammas`` is left out if no step has gammas.

    >>> list(run_charts([]))
    ['gammas', 'gaps', 'errors', 'nll', 'accuracy']
    """
    history = list(steps)
    charts = {
        "gammas": run_gammas(history),
        "gaps": run_gaps(history),
        "errors": run_errors(history),
        "nll": run_nll(history),
        "accuracy": run_accuracy(history),
    }
    if history and all(one["gammas"] is None for one in history):
        del charts["gammas"]
    return charts


def run_gammas(steps: Iterable[Step]) -> Spec:
    """Draw the gamma of each bin over time, with the switches between focal and inverse-focal loss.

    >>> chart = run_gammas([])
    >>> chart["data"]["name"], chart["title"]["text"]
    ('steps', 'gamma by bin')
    """
    y = {
        "field": "gamma",
        "type": "quantitative",
        "scale": {"type": "symlog", "constant": 1},
        "axis": {"title": "gamma", "tickCount": 7},
    }
    switches = {
        "transform": [
            {"filter": "isArray(datum.gammas) && length(datum.switched) > 0"},
            {"calculate": "datum.switched", "as": "bin"},
            {"flatten": ["bin"]},
            {"calculate": "datum.gammas[datum.bin]", "as": "gamma"},
            {"calculate": "datum.gamma < 0 ? 'to inverse-focal' : 'to focal'", "as": "mark"},
        ],
        "mark": {"type": "point", "filled": True, "size": 65, "opacity": 1},
        "encoding": {
            "x": step(),
            "y": y,
            **marked(MARKS),
            "opacity": of_picked(1, 0.1),
            "tooltip": [shown("step"), shown("bin"), shown("gamma", ".4f"), word("mark")],
        },
    }
    title = {
        "text": "gamma by bin",
        "subtitle": "focal above 0: lowers confidence; inverse-focal below 0: raises it",
    }
    layers = [zero_line(), sessions(), lines_of_bins(y), switches, flags(MARKS)]
    return _chart(steps, title, layers, HEIGHT)


def run_gaps(steps: Iterable[Step]) -> Spec:
    """Draw confidence minus accuracy of each bin over time (Figure 5 of the AdaFocal paper).

    >>> run_gaps([])["title"]["text"]
    'C − A by bin'
    """
    y = {
        "field": "gap",
        "type": "quantitative",
        "axis": {"title": "C \N{MINUS SIGN} A", "tickCount": 7, "format": ".2~f"},
    }
    title = {
        "text": "C \N{MINUS SIGN} A by bin",
        "subtitle": "mean confidence minus accuracy: above 0 overconfident, below 0 underconfident",
    }
    return _chart(steps, title, [zero_line(), sessions(), lines_of_bins(y), flags(FLAGS)], HEIGHT)


def run_errors(steps: Iterable[Step]) -> Spec:
    """Draw ECE and AdaECE over time.

    >>> run_errors([])["title"]["text"]
    'calibration error'
    """
    fields = {"ECE": "ece", "AdaECE": "ada_ece"}
    title = {
        "text": "calibration error",
        "subtitle": "ECE: 15 equal-width bins; AdaECE: 15 equal-mass bins",
    }
    return _metric(steps, title, fields, ".1%", ".2%", zero=True)


def run_nll(steps: Iterable[Step]) -> Spec:
    """Draw the negative log-likelihood over time; steps without NLL are left out.

    >>> run_nll([])["title"]["text"]
    'negative log-likelihood'
    """
    title = {"text": "negative log-likelihood", "subtitle": "mean of −log p of the label"}
    return _metric(steps, title, {"NLL": "nll"}, ".2~f", ".4f", zero=False)


def run_accuracy(steps: Iterable[Step]) -> Spec:
    """Draw accuracy and mean confidence over time.

    >>> run_accuracy([])["title"]["text"]
    'accuracy and confidence'
    """
    fields = {"accuracy": "accuracy", "mean confidence": "confidence"}
    title = {
        "text": "accuracy and confidence",
        "subtitle": "equal for a calibrated model",
    }
    return _metric(steps, title, fields, ".1~%", ".2%", zero=False)


def _chart(steps: Iterable[Step], title: Spec, layers: list[Spec], height: int) -> Spec:
    description = f"{title['text']} over the steps of a training run; {title['subtitle']}"
    return finished(
        {
            "title": title,
            "width": WIDTH,
            "height": height,
            "data": {"name": DATA, "values": [dict(one) for one in steps]},
            "layer": layers,
            "config": {**CONFIG, "legend": {**CONFIG["legend"], "layout": STACKED}},
        },
        description,
    )


def _metric(
    steps: Iterable[Step],
    title: Spec,
    fields: Mapping[str, str],
    axis: str,
    form: str,
    *,
    zero: bool,
) -> Spec:
    lines = lines_of_metrics(fields, axis, form, zero=zero)
    return _chart(steps, title, [sessions(), lines, flags()], SMALL)
