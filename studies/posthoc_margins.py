"""Effects of maps by logit margin, and indicators that bound the temperature of random logits."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from kept import Found
from logit_sets import split
from numpy.typing import NDArray
from posthoc_fitting import Plan

from calibrators import Calibrator
from calibrators.charts.theme import ACCENT, MUTED, finished
from calibrators.methods.additive import Additive
from calibrators.methods.pts import ParametrizedTemperature
from calibrators.methods.smart import Smart
from calibrators.methods.temperature import TemperatureScaling

Floats = NDArray[np.float64]

CHART = "posthoc_temperatures.svg"
INDICATOR_CHART = "posthoc_random_logits.svg"
MAPS: dict[str, Calibrator] = {
    "TS": TemperatureScaling(),
    "PTS": ParametrizedTemperature(),
    "SMART": Smart(),
    "additive": Additive(),
}
CELLS = 20
THIRDS = ("low", "middle", "high")
TARGET = 0.8
DRAWS = 1000
CLASSES = (10, 100)
SHOWN_CLASSES = 10
SHOWN_DRAWS = 250  # for a small file


def by_margin(plan: Plan, folder: Path) -> dict[str, Any]:
    """Return SMART's temperatures by margin, and changes in confidence by thirds of the margin."""
    start = time.perf_counter()
    fit, test = split(folder, plan.data, plan.split)
    fitted: dict[str, Any] = {name: one.fit(fit) for name, one in MAPS.items()}
    top = np.sort(np.partition(test.logits, -2, axis=1)[:, -2:].astype(np.float64), axis=1)
    margin = top[:, 1] - top[:, 0]
    before = _softmax(test.logits).max(axis=1)
    right = test.logits.argmax(axis=1) == test.labels
    temperature = fitted["SMART"].temperatures_of_set(test)
    changes = {name: one.apply_set(test).max(axis=1) - before for name, one in fitted.items()}
    order = np.argsort(margin, kind="stable")
    return {
        "seconds": time.perf_counter() - start,
        "correlation": float(np.corrcoef(margin, temperature)[0, 1]),
        "curve": [
            {"margin": float(margin[rows].mean()), "temperature": float(temperature[rows].mean())}
            for rows in np.array_split(order, CELLS)
        ],
        "thirds": [
            {
                "third": name,
                "gap": 100 * float((before - right)[rows].mean()),
                **{key: 100 * float(one[rows].mean()) for key, one in changes.items()},
            }
            for name, rows in zip(THIRDS, np.array_split(order, 3), strict=True)
        ],
    }


def _softmax(logits: NDArray[Any]) -> Floats:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    np.exp(wide, out=wide)
    return np.asarray(wide / wide.sum(axis=1, keepdims=True))


def temperatures_chart(found: Sequence[Found]) -> dict[str, Any]:
    """Draw SMART's temperature by margin, one panel per set."""
    x = {"field": "margin", "type": "quantitative", "axis": {"title": None, "tickCount": 4}}
    y = {"field": "temperature", "type": "quantitative", "scale": {"zero": False}}
    panels = [
        {
            "title": {"text": one["plan"]["data"], "subtitle": f"r = {one['correlation']:+.2f}"},
            "width": 180,
            "height": 110,
            "data": {"values": one["curve"]},
            "mark": {"type": "line", "color": ACCENT, "strokeWidth": 2},
            "encoding": {"x": x, "y": {**y, "axis": {"title": None, "tickCount": 4}}},
        }
        for one in found
    ]
    return finished(
        {"concat": panels, "columns": 4, "spacing": 24},
        "Temperature that SMART learned by logit margin on each set, means in 20 equal parts",
    )


def random_logits(classes: int) -> tuple[dict[str, Floats], Floats]:
    """Return three indicators of random logit vectors, and the T that gives a confidence of 0.8.

    Logits are normal with mean 0 and a standard deviation from 1 to 5, drawn per vector.
    """
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(DRAWS, classes)) * rng.uniform(1, 5, size=(DRAWS, 1))
    low, high = np.full((DRAWS, 1), -12.0), np.full((DRAWS, 1), 12.0)  # of log T
    for _ in range(60):
        middle = (low + high) / 2
        is_high = _softmax(logits / np.exp(middle)).max(axis=1, keepdims=True) > TARGET
        low, high = np.where(is_high, middle, low), np.where(is_high, high, middle)
    ordered = np.sort(logits, axis=1)
    indicators = {
        "margin": ordered[:, -1] - ordered[:, -2],
        "largest logit": ordered[:, -1],
        "largest minus mean logit": ordered[:, -1] - logits.mean(axis=1),
    }
    return indicators, np.asarray(np.exp(middle[:, 0]))


def indicator_table() -> str:
    """Return a table of how closely each indicator determines T."""
    heads = (
        "rank correlation with T | ratio of the 95 % to the 5 % quantile of T, given the indicator"
    )
    lines = [f"| classes | indicator | {heads} |", "|---:|---|---:|---:|"]
    for classes in CLASSES:
        indicators, temperature = random_logits(classes)
        for name, values in indicators.items():
            order = np.argsort(values)
            cells = np.array_split(np.log(temperature[order]), CELLS)
            factors = [np.exp(np.subtract(*np.quantile(cell, [0.95, 0.05]))) for cell in cells]
            ranks = np.corrcoef(np.argsort(order), np.argsort(np.argsort(temperature)))[0, 1]
            lines.append(f"| {classes} | {name} | {ranks:+.2f} | {np.median(factors):.1f} |")
    return "\n".join(lines) + "\n"


def indicator_chart() -> dict[str, Any]:
    """Draw T by each indicator, with the bounds of Eq. 13 beside the margin."""
    indicators, temperature = random_logits(SHOWN_CLASSES)
    rest = 1 / TARGET - 1
    bounds = [-1 / np.log(rest / (SHOWN_CLASSES - 1)), -1 / np.log(rest)]
    end = float(indicators["margin"].max())
    lines = [
        {
            "data": {
                "values": [
                    {"indicator": at, "temperature": at * slope}
                    for at in np.linspace(end / 200, end, 40).tolist()
                ]
            },
            "mark": {"type": "line", "color": MUTED, "strokeDash": [4, 4]},
            "encoding": _axes(None),
        }
        for slope in bounds
    ]
    panels = [
        {
            "width": 230,
            "height": 200,
            "layer": [
                {
                    "data": {
                        "values": [
                            {"indicator": round(at, 3), "temperature": round(t, 4)}
                            for at, t in list(
                                zip(values.tolist(), temperature.tolist(), strict=True)
                            )[:SHOWN_DRAWS]
                        ]
                    },
                    "mark": {"type": "circle", "size": 6, "color": ACCENT, "opacity": 0.5},
                    "encoding": _axes(name),
                },
                *(lines if name == "margin" else []),
            ],
        }
        for name, values in indicators.items()
    ]
    return finished(
        {"hconcat": panels, "spacing": 24},
        "Temperature at which random logits reach a confidence of 0.8, by three indicators",
    )


def _axes(title: str | None) -> dict[str, Any]:
    y = {"field": "temperature", "type": "quantitative", "scale": {"type": "log"}}
    return {
        "x": {"field": "indicator", "type": "quantitative", "title": title},
        "y": {**y, "title": "T for a confidence of 0.8"},
    }
