"""Routes of reports: json, html, svg and png."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response

from calibrators import Report, charts, page
from service.api import examples
from service.api.parts import Caller, Joined, Parts
from service.core import versions
from service.core.access import Principal

router = APIRouter(prefix="/v1/calibrators/{name}/versions/{number}", tags=["reports"])


@router.get("/report", summary="The report as JSON", responses=examples.REPORT_ANSWERS)
@router.get("/report.json", summary="The report as JSON", include_in_schema=False)
def report_json(
    joined: Joined, caller: Caller, name: examples.Name, number: examples.Number
) -> dict[str, Any]:
    """Metrics with intervals, noise floor, reliability tables and the verdict."""
    return _report(joined, caller, name, number).to_dict()


@router.get(
    "/report.html",
    summary="The report as a page that needs no network",
    response_class=Response,
    responses=examples.HTML_ANSWERS,
)
def report_html(
    joined: Joined, caller: Caller, name: examples.Name, number: examples.Number
) -> Response:
    """For people."""
    report = _report(joined, caller, name, number)
    return Response(page.render(report, title=f"{name}, version {number}"), media_type="text/html")


@router.get(
    "/report.svg",
    summary="The reliability diagram as SVG",
    response_class=Response,
    responses=examples.SVG_ANSWERS,
)
def report_svg(
    joined: Joined, caller: Caller, name: examples.Name, number: examples.Number
) -> Response:
    """Before and after."""
    chart = _report(joined, caller, name, number).chart()
    return Response(charts.to_svg(chart), media_type="image/svg+xml")


@router.get(
    "/report.png",
    summary="The reliability diagram as PNG",
    response_class=Response,
    responses=examples.PNG_ANSWERS,
)
def report_png(
    joined: Joined, caller: Caller, name: examples.Name, number: examples.Number
) -> Response:
    """Before and after."""
    chart = _report(joined, caller, name, number).chart()
    return Response(charts.to_png(chart), media_type="image/png")


def _report(joined: Parts, caller: Principal, name: str, number: int) -> Report:
    with joined.database.read() as store:
        return versions.report_of(store, versions.find(store, caller, name, number))
