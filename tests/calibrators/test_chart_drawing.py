"""Charts of reports drawn in plain Python: without vl-convert, for any numbers."""

from __future__ import annotations

import copy
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from calibrators import charts
from calibrators.charts import render, theme
from calibrators.charts.scales import nice, number, tick_labels, ticks
from calibrators.data import CalibrationSet
from calibrators.fitting.evaluation import fit_and_judge
from calibrators.methods.temperature import TemperatureScaling
from calibrators.report import html_page
from calibrators.report.report import Report

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(1500, 4)) * 2
LABELS = (LOGITS + RNG.gumbel(size=LOGITS.shape)).argmax(axis=1)
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def report() -> Report:
    return fit_and_judge(TemperatureScaling(), CalibrationSet(3 * LOGITS, LABELS)).report


@pytest.fixture(autouse=True)
def _without_converter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)


def specs(report: Report) -> dict[str, Any]:
    return {
        "overview": report.chart(),
        "reliability": charts.reliability(report),
        "equal_mass": charts.reliability(report, binning="equal_mass"),
        "margins": charts.margin_panels(report),
        "temperatures": charts.temperatures(report),
    }


def drawn(spec: Any) -> ElementTree.Element:
    return ElementTree.fromstring(charts.to_svg(spec))  # noqa: S314


@pytest.mark.parametrize("ending", [".html", ".svg", ".json"])
def test_a_report_is_saved_without_vl_convert(report: Report, ending: str, tmp_path: Path) -> None:
    assert report.save(tmp_path / f"report{ending}").stat().st_size > 1000


@pytest.mark.parametrize("name", ["overview", "reliability", "equal_mass", "margins"])
def test_everything_lies_on_the_paper(report: Report, name: str) -> None:
    svg = drawn(specs(report)[name])
    width, height = float(svg.get("width", 0)), float(svg.get("height", 0))
    for x, y in _corners(svg, 0.0, 0.0):
        assert -1 <= x <= width + 1
        assert -1 <= y <= height + 1


def _corners(element: ElementTree.Element, x: float, y: float) -> Iterator[tuple[float, float]]:
    moved = re.match(r"translate\(([-\d.]+),([-\d.]+)\)", element.get("transform", ""))
    if moved:
        x, y = x + float(moved[1]), y + float(moved[2])
    for across, down in (("x", "y"), ("cx", "cy"), ("x1", "y1"), ("x2", "y2")):
        if across in element.attrib:
            yield x + float(element.attrib[across]), y + float(element.attrib[down])
    for child in element:
        yield from _corners(child, x, y)


def test_bars_and_points_are_at_their_coordinates(report: Report) -> None:
    spec = charts.reliability(report, sides=("after",))
    (panel,) = spec["hconcat"]
    bins, size = panel["data"]["values"], panel["vconcat"][0]["width"]
    svg = drawn(spec)
    points = next(one for one in svg.iter() if one.get("class") == "mark-symbol role-mark")
    gaps = next(one for one in svg.iter() if one.get("class") == "mark-rect role-mark")
    for one, point, gap in zip(bins, points, gaps, strict=True):
        assert float(point.attrib["cx"]) == pytest.approx(size * one["confidence"], abs=0.01)
        assert float(point.attrib["cy"]) == pytest.approx(size * (1 - one["accuracy"]), abs=0.01)
        height = size * abs(one["accuracy"] - one["confidence"])
        assert float(gap.attrib["height"]) == pytest.approx(height, abs=0.01)
        assert f"rows: {one['count']:,.0f}\n" in str(point.findtext(f"{SVG}title"))


def test_charts_have_labels_for_screen_readers(report: Report) -> None:
    for spec in specs(report).values():
        svg = drawn(spec)
        assert svg.get("role") == "img"
        assert svg.findtext(f"{SVG}title") == spec["description"]


def test_every_colour_of_the_page_has_a_dark_form(report: Report) -> None:
    html = html_page.render(report)
    used = set(re.findall(r'<[^>]*\b(?:fill|stroke)="(#[0-9a-f]{6})"', html))
    style = html.partition("</style>")[0]
    recoloured = set(re.findall(r'svg \[(?:fill|stroke)="(#[0-9a-f]{6})"\]', style))
    on_both = {theme.OVERCONFIDENT, theme.UNDERCONFIDENT, "#9aa5b0"}
    assert used - recoloured == on_both


NUMBERS = (0.0, -0.0, 1.0, 0.5, -3.0, 1e-300, 1e99, -1e99, 1e308, -1e308, 10**400, 7)


def _numbers_replaced(spec: Any, rng: np.random.Generator) -> Any:
    """Replace some of the numbers in a chart's rows."""
    if isinstance(spec, list):
        return [_numbers_replaced(one, rng) for one in spec]
    if not isinstance(spec, dict):
        return spec
    found = {name: _numbers_replaced(one, rng) for name, one in spec.items()}
    for row in found.get("values", []):
        for name, value in row.items():
            if isinstance(value, int | float) and rng.random() < 0.3:
                row[name] = NUMBERS[rng.integers(len(NUMBERS))]
    return found


@pytest.mark.parametrize("seed", range(20))
def test_odd_numbers_are_drawn_as_well(report: Report, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for spec in specs(report).values():
        odd = _numbers_replaced(copy.deepcopy(spec), rng)
        text = charts.to_svg(odd)
        ElementTree.fromstring(text)  # noqa: S314
        assert not re.search(r'="[^"]*(nan|inf|e\+)', text)
        assert len(text) < 3 * len(charts.to_svg(spec))


def test_texts_are_escaped_and_such_as_xml_takes(report: Report) -> None:
    evil = "<script>&\"'\x00\x1b[31m\ud800"
    spec = charts.reliability(report, titles={"before": evil, "after": evil})
    svg = charts.to_svg({**spec, "description": evil})
    assert "<script" not in svg
    kept = "<script>&\"'" + "\N{REPLACEMENT CHARACTER}" * 2 + "[31m\N{REPLACEMENT CHARACTER}"
    assert "".join(ElementTree.fromstring(svg).itertext()).count(kept) == 3  # noqa: S314


def test_the_work_grows_as_the_rows_do(report: Report) -> None:
    def lines(times: int) -> int:
        """Return the number of executed Python lines for drawing this many times the bins."""
        spec = copy.deepcopy(charts.reliability(report, sides=("after",)))
        spec["hconcat"][0]["data"]["values"] *= times
        count = 0

        def trace(*_: Any) -> Any:
            nonlocal count
            count += 1
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            charts.to_svg(spec)
        finally:
            sys.settrace(before)
        return count

    once, ten = lines(10), lines(100)
    assert ten < 10.5 * once


@pytest.mark.parametrize(
    "change",
    [
        {"transform": [{"calculate": "1", "as": "one"}]},
        {"config": {}},
        {"params": []},
        {"title": {"text": "x", "orient": "bottom"}},
    ],
)
def test_unsupported_charts_are_left_to_vega(report: Report, change: dict[str, Any]) -> None:
    assert all(map(render.can_draw, specs(report).values()))
    assert not render.can_draw({**charts.reliability(report), **change})
    assert not render.can_draw(charts.run_errors([]))


def test_ticks_are_round_and_inside() -> None:
    for low, high in [(0, 1), (0.9, 1), (0, 1234), (-3, 2e-5), (1e-9, 3e-9), (5, 1e99)]:
        found = ticks(low, high, 5)
        assert 2 <= len(found) <= 12
        assert low - 1e-9 * high <= found[0]
        assert found[-1] <= high * (1 + 1e-9)
        assert len(set(tick_labels(found, None))) == len(found)
        wider = nice(low, high, 5)
        assert wider[0] <= low
        assert wider[1] >= high
    assert number(math.pi, ".2f") == "3.14"
