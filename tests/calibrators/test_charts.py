"""Charts and the report page: valid, self-contained, and drawn without a network."""

from __future__ import annotations

import json
import sys
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from calibrators import charts
from calibrators.base import CalibrationMap
from calibrators.data import CalibrationSet
from calibrators.errors import DataError, ExportError, ParameterError
from calibrators.fitting.evaluation import fit_and_judge
from calibrators.methods.identity import IdentityMap
from calibrators.methods.temperature import TemperatureMap, TemperatureScaling
from calibrators.metrics.catalogue import all_metrics
from calibrators.numerics.parallel import Floats
from calibrators.numerics.softmax import softmax
from calibrators.report import html_page
from calibrators.report.report import Report, evaluate

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(1500, 4)) * 2
LABELS = (LOGITS + RNG.gumbel(size=LOGITS.shape)).argmax(axis=1)


@pytest.fixture(scope="module")
def report() -> Report:
    return evaluate(softmax(LOGITS), LABELS, before=softmax(3 * LOGITS), draws=100)


@pytest.fixture(scope="module")
def alone() -> Report:
    return evaluate(softmax(LOGITS), LABELS, draws=100)


def drawn(spec: dict[str, Any]) -> ElementTree.Element:
    return ElementTree.fromstring(charts.to_svg(spec))  # noqa: S314


def marks(svg: ElementTree.Element, kind: str) -> int:
    """Return the number of marks of a kind, without legends and axes."""
    groups = [
        group for group in svg.iter() if group.get("class", "").startswith(f"mark-{kind} role-mark")
    ]
    return sum(len(list(group)) for group in groups)


def words(svg: ElementTree.Element) -> str:
    return " ".join(text for text in svg.itertext() if text.strip())


def filled(bins: tuple[Any, ...]) -> int:
    return sum(one.count > 0 for one in bins)


@pytest.mark.parametrize("binning", ["equal_width", "equal_mass"])
def test_reliability_draws_every_filled_bin_and_no_empty_one(report: Report, binning: Any) -> None:
    svg = drawn(charts.reliability(report, binning=binning))
    total = sum(filled(getattr(side, binning)) for side in report.sides.values())
    if binning == "equal_width":
        assert total < 2 * report.bins
    assert marks(svg, "symbol") == total
    assert marks(svg, "rule") == total
    assert marks(svg, "rect") == 2 * total
    assert marks(svg, "line") == 2
    for label in ("before", "after", "confidence", "accuracy", "overconfident", "rows"):
        assert label in words(svg)


def test_one_side_is_drawn_alone(report: Report, alone: Report) -> None:
    assert marks(drawn(charts.reliability(alone)), "line") == 1
    assert marks(drawn(charts.reliability(report, sides=("after",))), "line") == 1
    assert "before" not in words(drawn(charts.before_after(alone)))


def test_the_overview_shows_verdict_error_and_floor(report: Report) -> None:
    svg = drawn(charts.before_after(report))
    text = words(svg)
    assert "improved" in text
    assert "noise floor" in text
    for side in report.sides.values():
        assert f"{100 * side.intervals['ece'].value:.2f} %" in text
    assert charts.before_after(report) == report.chart()


def test_margin_panels_show_both_sides_of_every_third(report: Report) -> None:
    svg = drawn(charts.margin_panels(report))
    total = sum(
        filled(side.equal_mass)
        for third in report.by_margin
        for side in (third.before, third.after)
        if side is not None
    )
    assert marks(svg, "symbol") == total
    for name in ("low margin", "middle margin", "high margin"):
        assert name in words(svg)


def test_the_temperature_curve_gives_each_margin_its_temperature() -> None:
    spec = charts.temperature_curve(TemperatureMap(k=4, temperature=1.7), LOGITS)
    values = spec["data"]["values"]
    assert {round(one["temperature"], 9) for one in values} == {1.7}
    assert sum(one["rows"] for one in values) == pytest.approx(0.995 * len(LOGITS), abs=1)
    svg = drawn(spec)
    assert marks(svg, "line") == 2
    assert marks(svg, "rect") == len(values)


def test_the_temperature_curve_takes_probabilities_and_certain_rows() -> None:
    fitted = IdentityMap(k=4, kind="probabilities")
    assert drawn(charts.temperature_curve(fitted, softmax(LOGITS))) is not None
    certain = np.array([[0.0, -np.inf], [0.0, -np.inf]])
    with pytest.raises(DataError, match="finite"):
        charts.temperature_curve(TemperatureMap(k=2, temperature=2.0), certain)
    one = np.array([[0.0, -np.inf], [1.0, 0.0]])
    values = charts.temperature_curve(TemperatureMap(k=2, temperature=2.0), one)["data"]["values"]
    assert [value["rows"] for value in values] == [1]


def test_a_report_draws_the_same_curve_as_its_map() -> None:
    data = CalibrationSet(3 * LOGITS, LABELS)
    fitted, report = fit_and_judge(TemperatureScaling(), data, evaluation=data)
    assert charts.temperatures(report) == charts.temperature_curve(fitted, data.logits)
    assert "Temperature by margin" in html_page.render(report)


def test_a_report_without_temperatures_has_no_curve(report: Report) -> None:
    assert "Temperature by margin" not in html_page.render(report)
    with pytest.raises(DataError, match="temperatures"):
        charts.temperatures(report)


class Shift(CalibrationMap):
    """A map without a temperature."""

    method = "shift"

    def _transform(self, logits: Floats) -> Floats:
        return logits + np.arange(self.k)


def test_a_map_without_a_temperature_has_no_curve() -> None:
    with pytest.raises(ParameterError, match="shift"):
        charts.temperature_curve(Shift(k=4), LOGITS)


def test_specifications_are_plain_json_without_addresses(report: Report) -> None:
    fitted = TemperatureMap(k=4, temperature=1.5)
    for spec in (
        charts.reliability(report),
        charts.margin_panels(report),
        charts.before_after(report),
        charts.temperature_curve(fitted, LOGITS),
    ):
        text = json.dumps({**spec, "$schema": ""}, allow_nan=False)
        assert "http" not in text
        assert '"url"' not in text
        assert spec["$schema"].endswith("vega-lite/v5.json")


@pytest.mark.parametrize("n", [1, 2, 7])
def test_a_handful_of_rows_can_be_drawn(n: int) -> None:
    few = evaluate(softmax(LOGITS[:n]), LABELS[:n], before=softmax(2 * LOGITS[:n]), draws=5)
    for spec in (few.chart(), charts.margin_panels(few), charts.reliability(few)):
        assert "NaN" not in ElementTree.tostring(drawn(spec), encoding="unicode")


def test_png_and_html_need_no_network(report: Report) -> None:
    assert charts.to_png(report.chart(), scale=1).startswith(b"\x89PNG")
    html = charts.to_html(report.chart())
    finder = Addresses()
    finder.feed(html)
    assert finder.scripts >= 1
    assert not finder.found
    assert "vegaEmbed" in html


class Addresses(HTMLParser):
    """The scripts of a page, and all URLs that it would request."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts = 0
        self.found: list[str | None] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        self.found += [value for name, value in attributes if name in ("src", "href")]


def test_a_missing_renderer_is_named(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    for draw, spec in [(charts.to_png, report.chart()), (charts.to_svg, charts.run_errors([]))]:
        with pytest.raises(ExportError, match=r"calibrd\[charts\]") as caught:
            draw(spec)
        assert caught.value.code == "charts_not_installed"


class Checker(HTMLParser):
    """Checks for balanced tags, unique ids, and no URL outside the page."""

    VOID = frozenset({"meta", "br", "hr", "img", "link"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attributes:
            assert name not in ("src", "href", "xlink:href")
            assert "http" not in (value or "")
            if name == "id":
                self.ids.append(value or "")

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_is_well_formed_self_contained_and_escaped(report: Report) -> None:
    evil = "<script>alert('x')</script> & \"co\""
    report = Report.from_dict({**report.to_dict(), "judged_on": evil})
    report = report.with_fit(**{evil: evil}, nested=[{evil: evil}], deep={"a": {evil: None}})
    html = html_page.render(report, title=evil)
    checker = Checker()
    checker.feed(html)
    checker.close()
    assert not checker.open
    assert len(set(checker.ids)) == len(checker.ids)
    assert "<script" not in html
    assert "http" not in html
    assert "@import" not in html
    assert checker.text.count(evil) >= 5
    assert html.count("<svg") == 5
    assert "prefers-color-scheme: dark" in html
    assert all(words in checker.text for words in report.conventions.values())
    assert all(all_metrics()[name].meaning in checker.text for name in report.metrics)
    for row in report.by_class:
        assert f"{100 * row.after.ece:.3f} %" in checker.text
