"""Versions and reports as displayed in terminals and notebooks."""

from __future__ import annotations

import dataclasses
import re
import sys
from datetime import UTC, datetime
from html.parser import HTMLParser

import pytest
from helpers.live_service import sample

import calibrd
from calibrators import ExportError, Report, evaluate
from calibrators.numerics.softmax import softmax
from calibrd.models import Version

LOGITS, LABELS = sample()
NASTY = "<script>alert('x')</script> & \"co\""
VOID = {"meta", "br", "img", "path", "rect", "line", "circle"}


class Page(HTMLParser):
    """The tags and the text of an HTML fragment; unclosed tags raise an error."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data


@pytest.fixture(scope="module")
def report() -> Report:
    return calibrd.fit_local(LOGITS, LABELS, method="temperature", progress=False).report


@pytest.fixture(scope="module")
def version(report: Report) -> Version:
    return Version(
        calibrator="resnet50",
        number=3,
        method="temperature",
        params={},
        seed=0,
        kind="logits",
        classes=5,
        model="sha256:abc",
        dataset_sha256=None,
        rows=600,
        verdict=report.verdict,
        fit=None,
        fit_info={},
        libraries={},
        map_sha256="0" * 64,
        map_bytes=100,
        has_onnx=True,
        tags={"stage": NASTY},
        description=NASTY,
        created_by="ann",
        created_at=datetime(2025, 3, 1, 12, 5, tzinfo=UTC),
        report=report,
    )


def test_a_report_in_a_notebook(report: Report) -> None:
    page = Page(report._repr_html_())
    assert page.tags.count("svg") == 2
    assert "script" not in page.tags
    for words in ("Calibration report", "600 rows", "improved", "noise floor of the ECE", "NLL"):
        assert words in page.text
    bundle = report._repr_mimebundle_(include=None, exclude=None)
    assert bundle["text/html"] == report._repr_html_()
    alone = evaluate(softmax(LOGITS), LABELS, draws=20)
    assert Page(alone._repr_html_()).tags.count("svg") == 1


def test_its_styles_stay_inside(report: Report) -> None:
    (style,) = re.findall(r"<style>(.*?)</style>", report._repr_html_(), flags=re.DOTALL)
    plain = re.sub(r"@media [^{]*\{(.*?\})\s*\}", r"\1", style)
    rules = re.findall(r"([^{}]+)\{[^{}]*\}", plain)
    assert len(rules) > 30
    for rule in rules:
        assert all(".calibrd.calibrd" in one for one in rule.split(",")), rule
    assert re.sub(r"[^{}]", "", style).count("{") == style.count("}")


def test_without_the_drawing_extra(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    page = Page(report._repr_html_())
    assert "svg" in page.tags
    assert "noise floor of the ECE" in page.text


def test_a_report_as_a_frame(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = report.to_frame()
    assert list(frame.columns) == ["before", "after", "change", "low", "high"]
    assert frame.index.name == "metric"
    assert set(frame.index) == set(report.metrics)
    assert report.before is not None
    ece = frame.loc["ece"]
    assert ece["after"] == report.metrics["ece"]
    assert ece["before"] == report.before.metrics["ece"]
    assert ece["change"] == pytest.approx(report.change["ece"].value)
    assert (ece["low"], ece["high"]) == (report.change["ece"].low, report.change["ece"].high)
    assert frame.loc["mce"].isna()[["low", "high"]].all()
    assert {str(kind) for kind in frame.dtypes} == {"float64"}
    alone = evaluate(softmax(LOGITS), LABELS, draws=20)
    frame = alone.to_frame()
    assert frame["before"].isna().all()
    assert frame.loc["nll", "high"] == alone.intervals["nll"].high
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ExportError, match="to_frame needs pandas: pip install pandas"):
        report.to_frame()


def test_a_version_in_a_notebook(version: Version) -> None:
    html = version._repr_html_()
    page = Page(html)
    assert "script" not in page.tags
    assert "<script" not in html
    for words in ("resnet50@3", "temperature, seed 0", "600 rows", "sha256:abc", "improved", NASTY):
        assert words in page.text
    assert "2025-03-01 12:05 UTC by ann" in page.text
    assert page.tags.count("svg") == 2
    bare = Page(dataclasses.replace(version, report=None)._repr_html_())
    assert "svg" not in bare.tags
    assert "improved" in bare.text


def test_a_version_as_text(version: Version) -> None:
    text = version.summary()
    assert text.startswith("resnet50@3\n")
    assert "verdict: improved" in text
    assert "noise floor of the ECE" in text
    assert repr(version) == "Version('resnet50@3', method='temperature', verdict='improved')"
    unjudged = dataclasses.replace(version, report=None, verdict=None, created_at=None, model=None)
    assert "model" not in unjudged.summary()
    assert repr(unjudged).endswith("verdict=None)")


def test_a_real_one(client: calibrd.Client) -> None:
    version = client.fit("pleasant", LOGITS, LABELS, method="temperature", progress=False)
    assert "pleasant@1" in Page(version._repr_html_()).text
    assert version.report is not None
    assert version.report.summary() in version.summary()
