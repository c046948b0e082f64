"""Routes for reports: JSON, HTML, SVG and PNG."""

from __future__ import annotations

from importlib import metadata
from typing import Any

from fastapi import APIRouter, Response

from calibrators import Report
from service.access.permissions import Principal
from service.dependencies import Joined, Parts
from service.http import openapi
from service.http.callers import Caller
from service.http.etags import is_known
from service.http.strict_route import StrictRoute
from service.registry import service as versions
from service.registry.reports.renderer import Drawing, Format
from service.storage.records import Version

router = APIRouter(
    prefix="/v1/calibrators/{name}/versions/{number}", tags=["reports"], route_class=StrictRoute
)


MEDIA_TYPES: dict[Format, str] = {"html": "text/html", "svg": "image/svg+xml", "png": "image/png"}


@router.get(
    "/report",
    summary="Get the report as JSON",
    responses={
        200: {"content": {"application/json": {"example": {"verdict": "improved", "n": 2000}}}}
    },
)
@router.get("/report.json", summary="Get the report as JSON", include_in_schema=False)
def report_json(
    joined: Joined, caller: Caller, name: openapi.Name, number: openapi.Number
) -> dict[str, Any]:
    """Return metrics with intervals, the noise floor, reliability tables and the verdict."""
    return _report(joined, caller, name, number).to_dict()


@router.get(
    "/report.html",
    summary="Get the report as a self-contained HTML page",
    response_class=Response,
    responses=openapi.known_file(MEDIA_TYPES["html"], "The page"),
)
async def report_html(
    joined: Joined,
    caller: Caller,
    name: openapi.Name,
    number: openapi.Number,
    if_none_match: openapi.IfNoneMatch = None,
) -> Response:
    """Return the report as a web page, with charts and tables."""
    return await _drawn(joined, caller, name, number, if_none_match, "html")


@router.get(
    "/report.svg",
    summary="Get the reliability diagram as SVG",
    response_class=Response,
    responses=openapi.known_file(MEDIA_TYPES["svg"], "The diagram"),
)
async def report_svg(
    joined: Joined,
    caller: Caller,
    name: openapi.Name,
    number: openapi.Number,
    if_none_match: openapi.IfNoneMatch = None,
) -> Response:
    """Return the reliability diagram before and after calibration."""
    return await _drawn(joined, caller, name, number, if_none_match, "svg")


@router.get(
    "/report.png",
    summary="Get the reliability diagram as PNG",
    response_class=Response,
    responses=openapi.known_file(MEDIA_TYPES["png"], "The diagram"),
)
async def report_png(
    joined: Joined,
    caller: Caller,
    name: openapi.Name,
    number: openapi.Number,
    if_none_match: openapi.IfNoneMatch = None,
) -> Response:
    """Return the reliability diagram before and after calibration."""
    return await _drawn(joined, caller, name, number, if_none_match, "png")


async def _drawn(
    joined: Parts,
    caller: Principal,
    name: str,
    number: int,
    if_none_match: str | None,
    format: Format,
) -> Response:
    """Return a rendered report, or 304 if the caller already has it."""
    version = await joined.executors.query.run(
        caller.workspace, _version, joined, caller, name, number
    )
    tag = f"{version.calibrator}-{number}-{metadata.version('calibrd')}"
    headers = {"ETag": f'"{tag}"', "Cache-Control": "private, no-cache"}
    if is_known(if_none_match, tag):
        return Response(status_code=304, headers=headers)
    content = await joined.renderer.render(
        Drawing(caller.workspace, f"{version.calibrator}-{number}", format),
        lambda: _report(joined, caller, name, number).to_dict(),
        title=f"{name}, version {number}",
    )
    return Response(content, headers=headers, media_type=MEDIA_TYPES[format])


def _version(joined: Parts, caller: Principal, name: str, number: int) -> Version:
    """Return a version; raise NotFound if it has no report."""
    with joined.database.read() as store:
        version = versions.find(store, caller, name, number)
        versions.check_reported(store, version)
    return version


def _report(joined: Parts, caller: Principal, name: str, number: int) -> Report:
    with joined.database.read() as store:
        return versions.report_of(store, versions.find(store, caller, name, number))
