"""The scripts and styles of the pages, each with an ETag."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Header, HTTPException, Response

from calibrators.charts import run_charts
from service.http.etags import is_known
from service.web.components.vega import library

router = APIRouter(include_in_schema=False)

CACHED = "public, no-cache"
SCRIPT = "text/javascript"
TYPES = {".css": "text/css", ".js": SCRIPT}
RUN_CHARTS, LIBRARY = "run-charts.json", "vega.js"


@dataclass(frozen=True)
class Static:
    """A static file."""

    content: bytes
    media_type: str

    @cached_property
    def tag(self) -> str:
        """The ETag of the content."""
        return hashlib.sha256(self.content).hexdigest()[:32]

    def answer(self, if_none_match: str | None) -> Response:
        """Return the file, or 304 if the browser already has it."""
        headers = {"ETag": f'"{self.tag}"', "Cache-Control": CACHED}
        if is_known(if_none_match, self.tag):
            return Response(status_code=304, headers=headers)
        return Response(self.content, headers=headers, media_type=self.media_type)


@router.api_route("/static/{file}", methods=["GET", "HEAD"])
async def static_file(file: str, if_none_match: Annotated[str | None, Header()] = None) -> Response:
    """Return a static file by its name."""
    return (await _found(file)).answer(if_none_match)


async def _found(file: str) -> Static:
    if file in files():
        return _own(file)
    if file == RUN_CHARTS:
        return _charts()
    if file == LIBRARY:
        return _made(await library())
    raise HTTPException(404)


@cache
def files() -> dict[str, Path]:
    """Return the paths of all scripts and styles in the folder ``static``, by file name."""
    found = (Path(__file__).parents[1] / "static").rglob("*")
    return {path.name: path for path in found if path.suffix in TYPES}


@cache
def _own(file: str) -> Static:
    path = files()[file]
    return Static(path.read_bytes(), TYPES[path.suffix])


@cache
def _charts() -> Static:
    """Return the chart specifications of a run page, without data."""
    return Static(json.dumps(run_charts([])).encode(), "application/json")


@cache
def _made(content: bytes) -> Static:
    return Static(content, SCRIPT)
