"""The credible band in reports and charts, for the rows that a map was judged on."""

from __future__ import annotations

import json

import numpy as np
import pytest
from helpers.samples import draw

from calibrators import Report, charts, fit_and_judge
from calibrators.methods.additive import Additive
from calibrators.methods.temperature import TemperatureScaling
from service.registry.reports.limits import check_limits


@pytest.fixture(scope="module")
def report() -> Report:
    return fit_and_judge(Additive(), draw(3000, 4, temperature=2.0)).report


def test_a_report_has_the_band_by_confidence_and_margin(report: Report) -> None:
    assert {cell.margin for cell in report.band} == {"all", "low", "middle", "high"}
    for cell in report.band:
        assert cell.low < cell.confidence < cell.high
    rows = sum(cell.rows for cell in report.band if cell.margin == "all")
    assert 0.95 * report.n <= rows <= report.n
    wide = np.mean([cell.high - cell.low for cell in report.band])
    many = fit_and_judge(Additive(), draw(30_000, 4, temperature=2.0)).report
    assert np.mean([cell.high - cell.low for cell in many.band]) < 0.7 * wide


def test_it_travels_with_the_report(report: Report) -> None:
    plain = json.loads(json.dumps(report.to_dict()))
    assert Report.from_dict(plain).band == report.band
    check_limits(plain)


def test_maps_without_a_band_have_none() -> None:
    assert fit_and_judge(TemperatureScaling(), draw(1200, 3)).report.band == ()


def test_charts_shade_it(report: Report) -> None:
    bare = fit_and_judge(TemperatureScaling(), draw(3000, 4, temperature=2.0)).report
    for chart in (charts.before_after, charts.reliability, charts.margin_panels):
        assert _areas(chart(report)) > 0
        assert _areas(chart(bare)) == 0
        assert charts.to_svg(chart(report)).startswith("<svg")


def _areas(spec: object) -> int:
    match spec:
        case {"mark": {"type": "area"}}:
            return 1
        case dict():
            return sum(_areas(part) for part in spec.values())
        case list():
            return sum(_areas(part) for part in spec)
    return 0
