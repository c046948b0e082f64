"""The pages of training runs: shells without data, whose script asks the API and draws.

They need no key, for they say nothing; their script sends the reader's. The charts are those of
``calibrators.charts``, drawn in the browser by the libraries that vl-convert carries.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import json
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import metadata
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Header, Response
from fastapi.responses import HTMLResponse

from calibrators.charts import run_charts
from calibrators.charts.theme import VERSION
from service.web.reference import environment

router = APIRouter(include_in_schema=False)

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
PAGE_HEADERS = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
CACHED = "public, no-cache"
BUNDLE_SECONDS = 120
# a process of its own: in this one, bundling would keep all other requests waiting for seconds
BUNDLING = (
    "import sys, vl_convert; "
    "sys.stdout.buffer.write(vl_convert.javascript_bundle(vl_version=sys.argv[1]).encode())"
)
NOT_INSTALLED = "window.calibrdNoCharts = true;\n"

IfNoneMatch = Annotated[str | None, Header()]


@dataclass(frozen=True)
class Static:
    """A file of the pages."""

    content: bytes
    media_type: str

    @cached_property
    def tag(self) -> str:
        """Another for other content."""
        return f'"{hashlib.sha256(self.content).hexdigest()[:32]}"'

    def answer(self, if_none_match: str | None) -> Response:
        """The file, unless the browser has it."""
        headers = {"ETag": self.tag, "Cache-Control": CACHED}
        if if_none_match is not None and self.tag in if_none_match:
            return Response(status_code=304, headers=headers)
        return Response(self.content, headers=headers, media_type=self.media_type)


@router.api_route("/runs", methods=["GET", "HEAD"], response_class=HTMLResponse)
def runs_page() -> HTMLResponse:
    """The list of runs."""
    return _shell("runs.html", root=".")


@router.api_route("/runs/{name}", methods=["GET", "HEAD"], response_class=HTMLResponse)
def run_page(name: str) -> HTMLResponse:
    """The page of one run, whether or not there is one of this name: that is for the API to say."""
    return _shell("run.html", root="..", name=name)


@router.api_route("/static/runs.js", methods=["GET", "HEAD"])
def script(if_none_match: IfNoneMatch = None) -> Response:
    """The pages' script."""
    return _file("runs.js", "text/javascript").answer(if_none_match)


@router.api_route("/static/runs.css", methods=["GET", "HEAD"])
def style(if_none_match: IfNoneMatch = None) -> Response:
    """The pages' style."""
    return _file("runs.css", "text/css").answer(if_none_match)


@router.api_route("/static/run-charts.json", methods=["GET", "HEAD"])
def chart_specifications(if_none_match: IfNoneMatch = None) -> Response:
    """The charts of a run, without steps."""
    return _charts().answer(if_none_match)


@router.api_route("/static/vega.js", methods=["GET", "HEAD"])
async def chart_library(if_none_match: IfNoneMatch = None) -> Response:
    """What draws them: Vega, Vega-Lite and Vega-Embed in one file, made once."""
    if importlib.util.find_spec("vl_convert") is None:
        return Static(NOT_INSTALLED.encode(), "text/javascript").answer(if_none_match)
    try:
        made = await asyncio.shield(asyncio.wrap_future(_bundle()))
    except (OSError, subprocess.SubprocessError):
        _bundle.cache_clear()  # the next who asks tries again
        raise
    return made.answer(if_none_match)


@cache
def _bundle() -> Future[Static]:
    """On a thread of its own, so that those who wait for it hold none."""
    return ThreadPoolExecutor(1, thread_name_prefix="bundle").submit(_bundled)


def _bundled() -> Static:
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", BUNDLING, VERSION],
        capture_output=True,
        timeout=BUNDLE_SECONDS,
        check=True,
    )
    return Static(done.stdout, "text/javascript")


@cache
def _charts() -> Static:
    return Static(json.dumps(run_charts([])).encode(), "application/json")


@cache
def _file(name: str, media_type: str) -> Static:
    return Static((Path(__file__).parent / "static" / name).read_bytes(), media_type)


def _shell(template: str, **values: str) -> HTMLResponse:
    version = metadata.version("calibrd")
    text = environment().get_template(template).render(version=version, **values)
    return HTMLResponse(text, headers=PAGE_HEADERS)
