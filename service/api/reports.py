"""Routes of reports: json, html, svg and png."""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from typing import Any

from fastapi import APIRouter, Response

from calibrators import Report, charts, page
from service.api import examples
from service.api.conditions import is_known
from service.api.parts import Caller, Joined, Parts
from service.api.strict_route import StrictRoute
from service.core import versions
from service.core.access import Principal

router = APIRouter(
    prefix="/v1/calibrators/{name}/versions/{number}", tags=["reports"], route_class=StrictRoute
)


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
    joined: Joined,
    caller: Caller,
    name: examples.Name,
    number: examples.Number,
    if_none_match: examples.IfNoneMatch = None,
) -> Response:
    """For people."""

    def draw(report: Report) -> str:
        return page.render(report, title=f"{name}, version {number}")

    return _drawn(joined, caller, name, number, if_none_match, draw, "text/html")


@router.get(
    "/report.svg",
    summary="The reliability diagram as SVG",
    response_class=Response,
    responses=examples.SVG_ANSWERS,
)
def report_svg(
    joined: Joined,
    caller: Caller,
    name: examples.Name,
    number: examples.Number,
    if_none_match: examples.IfNoneMatch = None,
) -> Response:
    """Before and after."""

    def draw(report: Report) -> str:
        return charts.to_svg(report.chart())

    return _drawn(joined, caller, name, number, if_none_match, draw, "image/svg+xml")


@router.get(
    "/report.png",
    summary="The reliability diagram as PNG",
    response_class=Response,
    responses=examples.PNG_ANSWERS,
)
def report_png(
    joined: Joined,
    caller: Caller,
    name: examples.Name,
    number: examples.Number,
    if_none_match: examples.IfNoneMatch = None,
) -> Response:
    """Before and after."""

    def draw(report: Report) -> bytes:
        return charts.to_png(report.chart())

    return _drawn(joined, caller, name, number, if_none_match, draw, "image/png")


def _drawn(
    joined: Parts,
    caller: Principal,
    name: str,
    number: int,
    if_none_match: str | None,
    draw: Callable[[Report], str | bytes],
    media_type: str,
) -> Response:
    """A report in a form of its own, unless the caller has it; drawing takes tenths of a second."""
    with joined.database.read() as store:
        version = versions.find(store, caller, name, number)
        report = versions.report_of(store, version)
    tag = f"{version.calibrator}-{number}-{metadata.version('calibrd')}"
    headers = {"ETag": f'"{tag}"', "Cache-Control": "private, no-cache"}
    if is_known(if_none_match, tag):
        return Response(status_code=304, headers=headers)
    return Response(draw(report), headers=headers, media_type=media_type)


def _report(joined: Parts, caller: Principal, name: str, number: int) -> Report:
    with joined.database.read() as store:
        return versions.report_of(store, versions.find(store, caller, name, number))
