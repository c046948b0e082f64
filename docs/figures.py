"""Draw the figures of docs/concepts: ``make figures``.

The data is the bundled sample and rows simulated with a fixed seed, so that files are reproducible.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators import CalibrationSet, Report, evaluate
from calibrators.charts import reliability, to_svg
from calibrators.charts.reliability import panels
from calibrators.charts.theme import ACCENT, BAND, BARS, FONT, INK, MUTED, OVERCONFIDENT, finished
from calibrators.methods.additive import Additive
from calibrators.methods.smart import Smart
from calibrators.methods.temperature import TemperatureScaling
from calibrators.metrics import ada_ece, debiased_squared_error, ece, smece
from calibrators.metrics.toplabel import as_top_label
from calibrators.numerics.softmax import softmax

ROOT = Path(__file__).parents[1]
OUT = ROOT / "docs/images/concepts"
SEED = 0
COLOURS = [ACCENT, OVERCONFIDENT, "#4f8f5b", MUTED]
Floats = NDArray[np.float64]
Spec = dict[str, Any]


def main() -> None:
    """Write every figure."""
    OUT.mkdir(parents=True, exist_ok=True)
    for name, draw in FIGURES.items():
        drawn = draw()
        text = drawn if isinstance(drawn, str) else to_svg(drawn)
        # readable on a dark page too: white background with rounded corners
        text = re.sub(r'(<rect [^>]*fill="white")', r'\1 rx="10"', text, count=1)
        (OUT / f"{name}.svg").write_text(text + "\n", encoding="utf-8")


@cache
def sample(part: str) -> tuple[Floats, NDArray[np.int64]]:
    """Return logits and labels of the bundled sample, ``cal`` or ``test``."""
    with np.load(ROOT / f"examples/data/fashion_ce__{part}.npz") as file:
        return file["logits"], file["labels"]


@cache
def judged_sample() -> Report:
    """Return the report of temperature scaling, fitted on ``cal`` and judged on ``test``."""
    logits, labels = sample("test")
    fitted = TemperatureScaling().fit(CalibrationSet(*sample("cal")))
    return evaluate(fitted.apply(logits), labels, before=softmax(logits))


def reliability_of_sample() -> Spec:
    """Draw reliability before and after temperature scaling."""
    titles = {"before": "before calibration", "after": "after temperature scaling"}
    return reliability(judged_sample(), titles=titles)


def bins_of_sample() -> Spec:
    """Draw the same rows in equal-width and in equal-mass bins."""
    report = judged_sample()
    wide = panels(report, "equal_width", ("before",), {"before": "equal-width bins"})
    mass = panels(report, "equal_mass", ("before",), {"before": "equal-mass bins"})
    return finished({"hconcat": wide + mass, "spacing": 28}, "One model, two ways to bin its rows")


def drawn_labels(probabilities: Floats, random: np.random.Generator) -> NDArray[np.int64]:
    """Draw a label for each row from its true probabilities."""
    return (np.log(probabilities) + random.gumbel(size=probabilities.shape)).argmax(axis=1)


def errors_by_rows() -> Spec:
    """Draw the mean error of a perfectly calibrated model by the number of rows."""
    random = np.random.default_rng(SEED)
    first: list[Spec] = []
    second: list[Spec] = []
    for rows in (50, 100, 200, 500, 1000, 2000, 5000, 10000):
        found: dict[str, list[float]] = {}
        for _ in range(200):
            truth = softmax(2 * random.normal(size=(rows, 10)))
            top = as_top_label(truth, drawn_labels(truth, random))
            bins = top.equal_mass(15)
            for name, value in {
                "ECE, equal-width bins": ece(top),
                "ECE, equal-mass bins": ada_ece(top),
                "smooth ECE": smece(top),
                "plain squared error": float((bins.count * bins.gap**2).sum() / bins.count.sum()),
                "debiased squared error": debiased_squared_error(top),
            }.items():
                found.setdefault(name, []).append(value)
        for name, values in found.items():
            squared = "squared" in name
            point = {"rows": rows, "metric": name, "value": float(np.mean(values))}
            (second if squared else first).append(point)
    return finished(
        {
            "hconcat": [
                lines(first, "mean error", ".0%", "ECE and smooth ECE"),
                lines(second, "mean squared error", ".3f", "squared error, plain and debiased"),
            ],
            "resolve": {"scale": {"color": "independent"}},
            "spacing": 40,
        },
        "Measured error of a perfectly calibrated model by the number of rows",
    )


def lines(values: list[Spec], title: str, form: str, heading: str) -> Spec:
    """Return a chart with one line per metric over the number of rows."""
    names = list(dict.fromkeys(one["metric"] for one in values))
    ticks = [50, 200, 1000, 5000]
    x = {"title": "rows (log scale)", "values": ticks, "format": ",d"}
    colour = {"domain": names, "range": COLOURS[: len(names)]}
    return {
        "title": heading,
        "width": 290,
        "height": 240,
        "data": {"values": values},
        "mark": {"type": "line", "point": {"filled": True, "size": 35}, "strokeWidth": 2},
        "encoding": {
            "x": {
                "field": "rows",
                "type": "quantitative",
                "scale": {"type": "log", "nice": False},
                "axis": x,
            },
            "y": {
                "field": "value",
                "type": "quantitative",
                "axis": {"title": title, "format": form, "tickCount": 6},
            },
            "color": {
                "field": "metric",
                "type": "nominal",
                "scale": colour,
                "legend": {"columns": 1, "symbolType": "stroke", "symbolStrokeWidth": 2},
            },
        },
    }


def noise_floor_histogram() -> Spec:
    """Draw the ECE of 1,000 calibrated rows, and of the sample before and after calibration."""
    logits, labels = (one[:1000] for one in sample("test"))
    after = TemperatureScaling().fit(CalibrationSet(*sample("cal"))).apply(logits)
    random = np.random.default_rng(SEED)
    confidence = after.max(axis=1).astype(np.float64)
    shown = []
    for _ in range(4000):
        right = random.random(confidence.size) < confidence
        shown.append(ece(np.stack([1 - confidence, confidence], 1)[:, ::-1], (~right).astype(int)))
    height, edges = np.histogram(shown, bins=40)
    bars = [
        {"lower": float(low), "upper": float(high), "share": float(count / len(shown))}
        for low, high, count in zip(edges[:-1], edges[1:], height, strict=True)
    ]
    floor, quantile = float(np.mean(shown)), float(np.quantile(shown, 0.95))
    before = ece(softmax(logits), labels)
    marks = [
        {"at": floor, "name": f"noise floor {100 * floor:.1f} %", "dy": 0, "colour": MUTED},
        {"at": quantile, "name": f"95 % quantile {100 * quantile:.1f} %", "dy": 20, "colour": INK},
        {
            "at": ece(after, labels),
            "name": f"ECE after {100 * ece(after, labels):.1f} %",
            "dy": 40,
            "colour": ACCENT,
        },
        {"at": before, "name": f"ECE before {100 * before:.1f} %", "dy": 60, "colour": "#b8571b"},
    ]
    x = {
        "field": "lower",
        "type": "quantitative",
        "scale": {"domain": [0, 0.09], "nice": False},
        "axis": {"title": "ECE on 1,000 rows", "format": ".0%", "tickCount": 9},
    }
    layers: list[Spec] = [
        {
            "data": {"values": bars},
            "mark": {"type": "rect", "color": BAND, "stroke": BARS, "strokeWidth": 0.5},
            "encoding": {
                "x": x,
                "x2": {"field": "upper"},
                "y": {
                    "field": "share",
                    "type": "quantitative",
                    "axis": {"title": "share of redraws", "format": ".0%", "tickCount": 5},
                },
                "y2": {"datum": 0},
            },
        }
    ]
    for one in marks:
        at = {"datum": one["at"], "type": "quantitative"}
        label = at if one["at"] == before else {**at, "datum": 0.031}
        layers += [
            {
                "data": {"values": [one]},
                "mark": {"type": "rule", "color": one["colour"], "strokeWidth": 2},
                "encoding": {"x": at},
            },
            {
                "data": {"values": [one]},
                "mark": {
                    "type": "text",
                    "align": "left",
                    "dx": 8,
                    "y": 10 + one["dy"],
                    "color": one["colour"],
                    "fontSize": 12,
                },
                "encoding": {"x": label, "text": {"field": "name"}},
            },
        ]
    return finished(
        {"width": 600, "height": 220, "layer": layers},
        "ECE of perfectly calibrated redraws of 1,000 rows, with that of the model",
    )


def sharpened(rows: int, factor: float, random: np.random.Generator) -> tuple[Floats, Any]:
    """Return probabilities of an overconfident model with 10 classes, and true labels."""
    logits = 2 * random.normal(size=(rows, 10))
    return softmax(factor * logits), drawn_labels(softmax(logits), random)


def gate_intervals() -> Spec:
    """Draw how a gate with a limit of 3 points decides as rows are added."""
    random = np.random.default_rng(SEED)
    values: list[Spec] = []
    for name, factor in {"slightly overconfident": 1.05, "overconfident": 1.3}.items():
        for rows in (200, 1000, 5000, 20000):
            report = evaluate(*sharpened(rows, factor, random), draws=400)
            found, decision = report.gate_interval(), report.gate(0.03)
            values.append(
                {
                    "model": name,
                    "rows": f"{rows:,} rows",
                    "value": found.value,
                    "low": found.low,
                    "high": found.high,
                    "decision": decision.value.replace("_", " "),
                    "ece": report.metrics["ece"],
                }
            )
    domain = ["pass", "fail", "insufficient data"]
    colour = {
        "field": "decision",
        "type": "nominal",
        "scale": {"domain": domain, "range": ["#2f7d46", "#b3361f", BARS]},
    }
    axis = {"title": "error (dashed: limit of 3 points)", "format": ".0%", "tickCount": 6}
    x = {
        "type": "quantitative",
        "axis": axis,
        "scale": {"domain": [0, 0.18], "nice": False, "clamp": True},
    }
    rows_axis = {"title": None, "ticks": False, "labelPadding": 10}
    y = {"field": "rows", "type": "nominal", "sort": None, "axis": rows_axis}
    both = []
    for name in dict.fromkeys(one["model"] for one in values):
        both.append(
            {
                "title": {"text": name, "subtitle": "dot and line: calibration error; black: ECE"},
                "width": 300,
                "height": {"step": 34},
                "data": {"values": [one for one in values if one["model"] == name]},
                "layer": [
                    {
                        "mark": {"type": "rule", "strokeWidth": 3},
                        "encoding": {
                            "x": {**x, "field": "low"},
                            "x2": {"field": "high"},
                            "y": y,
                            "color": colour,
                        },
                    },
                    {
                        "mark": {"type": "point", "filled": True, "size": 70, "opacity": 1},
                        "encoding": {"x": {**x, "field": "value"}, "y": y, "color": colour},
                    },
                    {
                        "mark": {
                            "type": "tick",
                            "color": INK,
                            "thickness": 2,
                            "height": 12,
                            "opacity": 0.9,
                        },
                        "encoding": {"x": {**x, "field": "ece"}, "y": y},
                    },
                    {
                        "data": {"values": [{}]},
                        "mark": {"type": "rule", "strokeDash": [5, 4], "color": INK},
                        "encoding": {"x": {"datum": 0.03, "type": "quantitative"}},
                    },
                ],
            }
        )
    return finished(
        {"hconcat": both, "spacing": 30},
        "Intervals of the calibration error against a limit of 3 points",
    )


def margin_world(rows: int, seed: int) -> tuple[Floats, NDArray[np.int64], Floats]:
    """Return logits, labels and true temperatures of a model whose error depends on the margin.

    The temperature that calibrates a row falls from about 3 at a margin of 0 to 1 at large margins.
    """
    random = np.random.default_rng(seed)
    logits = 4 * random.normal(size=(rows, 5))
    ordered = np.sort(logits, axis=1)
    temperature = true_temperature(ordered[:, -1] - ordered[:, -2])
    return logits, drawn_labels(softmax(logits / temperature[:, None]), random), temperature


def true_temperature(margin: Floats) -> Floats:
    """Return the temperature that calibrates rows with a given margin in ``margin_world``."""
    return 1 + 2.2 * np.exp(-margin / 3)


def temperature_by_margin() -> Spec:
    """Draw the temperatures of SMART and of temperature scaling, and the truth."""
    logits, labels, _ = margin_world(10000, SEED)
    data = CalibrationSet(logits, labels)
    smart, single = Smart().fit(data), TemperatureScaling().fit(data)
    margins = np.linspace(0, 10, 57)
    # the other logits are far below: only the margin differs
    rows = np.stack([margins, np.zeros(57), *np.full((3, 57), -6.0)], 1)
    calibrated = np.log(smart.apply(rows))
    found = margins[1:] / (calibrated[1:, 0] - calibrated[1:, 1])
    values: list[Spec] = []
    for at, one in zip(margins[1:], found, strict=True):
        values += [
            point(at, true_temperature(at), "truth"),
            point(at, single.temperature, "temperature scaling"),
            point(at, one, "SMART"),
        ]
    ordered = np.sort(logits, axis=1)
    height, edges = np.histogram(ordered[:, -1] - ordered[:, -2], bins=np.linspace(0, 10, 29))
    bars = [
        {"lower": float(low), "upper": float(high), "rows": int(count)}
        for low, high, count in zip(edges[:-1], edges[1:], height, strict=True)
    ]
    names = ["truth", "temperature scaling", "SMART"]
    scale = {"domain": [0, 10], "nice": False}
    title = "margin (largest minus second largest logit)"
    return finished(
        {
            "vconcat": [
                {
                    "width": 560,
                    "height": 230,
                    "data": {"values": values},
                    "mark": {"type": "line", "strokeWidth": 2.5},
                    "encoding": {
                        "x": {
                            "field": "x",
                            "type": "quantitative",
                            "scale": scale,
                            "axis": {"title": None, "labels": False, "ticks": False},
                        },
                        "y": {
                            "field": "y",
                            "type": "quantitative",
                            "scale": {"domain": [0.6, 3.4], "nice": False},
                            "axis": {"title": "temperature", "tickCount": 6},
                        },
                        "color": coloured(names, ["#9aa5b0", OVERCONFIDENT, ACCENT]),
                    },
                },
                {
                    "width": 560,
                    "height": 60,
                    "data": {"values": bars},
                    "mark": {"type": "rect", "color": BARS},
                    "encoding": {
                        "x": {
                            "field": "lower",
                            "type": "quantitative",
                            "scale": scale,
                            "axis": {"title": title, "grid": False},
                        },
                        "x2": {"field": "upper"},
                        "y": {
                            "field": "rows",
                            "type": "quantitative",
                            "axis": {"title": "rows", "tickCount": 3},
                        },
                        "y2": {"datum": 0},
                    },
                },
            ],
            "spacing": 8,
        },
        "Temperature by margin on simulated rows: truth, temperature scaling and SMART",
    )


def point(x: Any, y: Any, name: str) -> Spec:
    """Return one point of a named line."""
    return {"x": float(x), "y": float(y), "name": name}


def coloured(names: list[str], colours: list[str]) -> Spec:
    """Return the colour encoding of named lines."""
    return {
        "field": "name",
        "type": "nominal",
        "scale": {"domain": names, "range": colours},
        "legend": {"symbolType": "stroke", "symbolStrokeWidth": 2.5},
    }


def gap_by_margin() -> Spec:
    """Draw confidence minus true probability by decile of the margin, after three methods."""
    fit, test = margin_world(10000, SEED), margin_world(100000, SEED + 1)
    logits, _, temperature = test
    truth = softmax(logits / temperature[:, None]).max(axis=1)
    ordered = np.sort(logits, axis=1)
    margin = ordered[:, -1] - ordered[:, -2]
    place = np.minimum((margin.argsort().argsort() * 10) // len(margin), 9)
    data = CalibrationSet(*fit[:2])
    methods = {
        "none": softmax(logits),
        "temperature scaling": TemperatureScaling().fit(data).apply(logits),
        "SMART": Smart().fit(data).apply(logits),
        "additive": Additive().fit(data).apply(logits),
    }
    values = [
        point(margin[place == one].mean(), (p.max(axis=1) - truth)[place == one].mean(), name)
        for name, p in methods.items()
        for one in range(10)
    ]
    zero = {
        "data": {"values": [{}]},
        "mark": {"type": "rule", "strokeDash": [4, 4], "color": MUTED},
        "encoding": {"y": {"datum": 0, "type": "quantitative"}},
    }
    curves = {
        "data": {"values": values},
        "mark": {"type": "line", "point": {"filled": True, "size": 40}, "strokeWidth": 2},
        "encoding": {
            "x": {
                "field": "x",
                "type": "quantitative",
                "axis": {"title": "mean margin of a tenth of the rows", "tickCount": 8},
            },
            "y": {
                "field": "y",
                "type": "quantitative",
                "axis": {"title": "confidence minus true probability", "format": "+.0%"},
            },
            "color": coloured([*methods], ["#9aa5b0", OVERCONFIDENT, ACCENT, "#4f8f5b"]),
        },
    }
    return finished(
        {"width": 560, "height": 250, "layer": [curves, zero]},
        "What is left of the miscalibration in each tenth of the margins",
    )


def credible_bands() -> Spec:
    """Draw the bands of additive maps fitted on few and on many rows, and the truth."""
    panels = []
    grid = np.linspace(0, 6, 61)
    for rows in (500, 10000):
        random = np.random.default_rng(SEED)
        odds = 3 * random.normal(size=rows)
        labels = (random.random(rows) < true_probability(odds)).astype(np.int64)
        fitted = Additive().fit(CalibrationSet(np.stack([-odds / 2, odds / 2], 1), labels))
        points = np.stack([-grid / 2, grid / 2], 1)
        low, high = fitted.interval(points, level=0.9)
        confidence = 1 / (1 + np.exp(-grid))
        band = [
            {"x": float(x), "low": float(a), "high": float(b)}
            for x, a, b in zip(confidence, low, high, strict=True)
        ]
        curves = [
            point(x, y, name)
            for name, found in {
                "truth": true_probability(grid),
                "additive": fitted.apply(points).max(axis=1),
            }.items()
            for x, y in zip(confidence, found, strict=True)
        ]
        x = {
            "field": "x",
            "type": "quantitative",
            "scale": {"domain": [0.5, 1], "nice": False},
            "axis": {"title": "confidence of the model", "format": ".1f", "tickCount": 5},
        }
        y = {
            "type": "quantitative",
            "scale": {"domain": [0.5, 1], "nice": False},
            "axis": {"title": "probability of being right", "format": ".1f", "tickCount": 5},
        }
        panels.append(
            {
                "title": f"{rows:,} rows to fit on",
                "width": 280,
                "height": 250,
                "layer": [
                    {
                        "data": {"values": band},
                        "mark": {"type": "area", "color": ACCENT, "opacity": 0.2},
                        "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}},
                    },
                    {
                        "data": {"values": curves},
                        "mark": {"type": "line", "strokeWidth": 2.5},
                        "encoding": {
                            "x": x,
                            "y": {**y, "field": "y"},
                            "color": coloured(["truth", "additive"], ["#9aa5b0", ACCENT]),
                        },
                    },
                ],
            }
        )
    return finished(
        {"hconcat": panels, "spacing": 30}, "90 % credible bands of the additive map by fit rows"
    )


def true_probability(odds: Floats) -> Floats:
    """Return the true probability of class 1 of a simulated, overconfident binary model."""
    return 1 / (1 + np.exp(-(0.55 * odds + 0.25 * np.sin(1.5 * odds))))


class Drawing:
    """Boxes and arrows as plain SVG."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" role="img" font-family="{FONT}"><title>{title}</title>'
            f'<rect width="{width}" height="{height}" fill="white"/>'
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            f'markerHeight="7" orient="auto"><path d="M0,0L8,4L0,8z" fill="{MUTED}"/></marker>'
            "</defs>"
        ]

    def box(self, at: tuple[int, int, int, int], lines: str, fill: str = "#f2f5f8") -> None:
        """Draw a box (x, y, width, height) with centred lines of text."""
        x, y, width, height = at
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="7" fill="{fill}" '
            f'stroke="{BARS}"/>'
        )
        words = lines.split("\n")
        for place, one in enumerate(words):
            down = y + height / 2 + 4.5 + 17 * (place - (len(words) - 1) / 2)
            self.text(x + width / 2, down, one, INK, bold=place == 0 and len(words) > 1)

    def text(
        self, x: float, y: float, words: str, fill: str = MUTED, *, bold: bool = False
    ) -> None:
        """Write a centred line."""
        weight = ' font-weight="bold"' if bold else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="13" fill="{fill}" text-anchor="middle"{weight}>'
            f"{words.replace('&', '&amp;').replace('<', '&lt;')}</text>"
        )

    def arrow(self, *corners: tuple[int, int]) -> None:
        """Draw a line through the corners that ends in a tip."""
        path = "M" + "L".join(f"{x},{y}" for x, y in corners)
        self.parts.append(
            f'<path d="{path}" fill="none" stroke="{MUTED}" stroke-width="1.5" '
            'marker-end="url(#tip)"/>'
        )

    def __str__(self) -> str:
        return "".join(self.parts) + "</svg>"


def verdict_flow() -> str:
    """Draw how a verdict is decided."""
    green, amber, red, grey = "#dcefe0", "#fbe9d7", "#f6dad4", "#e9ecef"
    flow = Drawing(760, 420, "How a verdict is decided")
    flow.box((20, 20, 210, 64), "At least 100 judged rows?")
    flow.box((20, 124, 210, 64), "Labels ranked better\nthan shuffled labels?")
    flow.box((20, 228, 210, 64), "Calibration better?\n95 % interval below 0")
    flow.box((20, 332, 210, 70), "Any of the five worse?\n99 % intervals")
    flow.box((300, 228, 210, 64), "NLL, Brier, accuracy, ranking\nworse, or ranking in doubt?")
    flow.box((580, 30, 160, 44), "insufficient_data", grey)
    flow.box((580, 134, 160, 44), "at_chance", red)
    flow.box((580, 204, 160, 44), "trade_off", amber)
    flow.box((580, 272, 160, 44), "improved", green)
    flow.box((580, 346, 160, 44), "no_measurable_change", grey)
    flow.box((300, 346, 160, 44), "worse", red)
    for top, other in ((52, "no"), (156, "no")):
        flow.arrow((230, top), (579, top))
        flow.text(400, top - 8, other)
    for top in (84, 188):
        flow.arrow((125, top), (125, top + 39))
        flow.text(142, top + 24, "yes")
    flow.arrow((230, 260), (299, 260))
    flow.text(264, 252, "yes")
    flow.arrow((125, 292), (125, 331))
    flow.text(142, 316, "no")
    flow.arrow((510, 248), (545, 248), (545, 226), (579, 226))
    flow.text(560, 219, "yes")
    flow.arrow((510, 274), (545, 274), (545, 294), (579, 294))
    flow.text(560, 288, "no")
    flow.arrow((230, 368), (299, 368))
    flow.text(264, 360, "yes")
    flow.arrow((125, 402), (125, 412), (660, 412), (660, 391))
    flow.text(520, 406, "no")
    return str(flow)


def version_line() -> str:
    """Draw a calibrator with immutable versions and aliases that move."""
    shown = Drawing(760, 250, "A calibrator, its versions and its aliases")
    shown.text(92, 130, "calibrator fashion", INK, bold=True)
    for place, facts in enumerate(("temperature\ncnn-7", "smart\ncnn-7", "auto\ncnn-8"), start=1):
        x = 190 * place - 10
        shown.box((x, 85, 160, 80), f"version {place}\n" + facts)
        shown.text(x + 80, 184, "map, SHA-256, report,")
        shown.text(x + 80, 201, "judged rows")
    shown.box((370, 18, 160, 34), "alias production", "#dbe7f5")
    shown.box((560, 18, 160, 34), "alias candidate", "#dbe7f5")
    shown.arrow((450, 52), (450, 84))
    shown.arrow((640, 52), (640, 84))
    shown.box((20, 18, 170, 34), "fashion@production", "#ffffff")
    shown.arrow((190, 35), (369, 35))
    shown.text(280, 28, "callers use")
    shown.text(380, 234, "Promote moves an alias. A version never changes.")
    return str(shown)


FIGURES: dict[str, Callable[[], Spec | str]] = {
    "reliability": reliability_of_sample,
    "bins": bins_of_sample,
    "errors_by_rows": errors_by_rows,
    "noise_floor": noise_floor_histogram,
    "gates": gate_intervals,
    "temperature_by_margin": temperature_by_margin,
    "gap_by_margin": gap_by_margin,
    "credible_bands": credible_bands,
    "verdict_flow": verdict_flow,
    "versions": version_line,
}

if __name__ == "__main__":
    main()
