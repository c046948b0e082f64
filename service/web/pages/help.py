"""The documentation site that ``make docs`` builds, if it exists."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from functools import lru_cache
from mimetypes import guess_type
from pathlib import Path
from typing import Annotated

from fastapi import Header, Request, Response

from service.dependencies import Joined
from service.errors import NotFound
from service.web.components.layout import HELP, lead_to, pages
from service.web.components.static_files import Static

router = pages()

INDEX = "index.html"
# the theme writes three small scripts into each page, whose policy lists their hashes
INLINE_SCRIPT = re.compile(rb"<script>(.*?)</script>", re.S)
POLICY = (
    "default-src 'none'; script-src 'self'{hashes}; style-src 'self'; connect-src 'self'; "
    "worker-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)


@router.api_route(HELP.rstrip("/"), methods=["GET", "HEAD"])
async def help_start(request: Request) -> Response:
    """Redirect to the first page."""
    return lead_to(request, HELP + INDEX)


@router.api_route(HELP + "{file:path}", methods=["GET", "HEAD"])
async def help_file(
    joined: Joined, file: str, if_none_match: Annotated[str | None, Header()] = None
) -> Response:
    """Return a page, script or image of the site."""
    found = await asyncio.to_thread(_read, joined.settings.help_dir, file or INDEX)
    answer = found.answer(if_none_match)
    if found.media_type == "text/html":
        answer.headers["Content-Security-Policy"] = _policy(found.content)
    return answer


def _read(folder: Path, file: str) -> Static:
    root = folder.resolve()
    try:
        path = (root / file).resolve()
        is_there = path.is_relative_to(root) and path.is_file()
    except (OSError, ValueError):  # a name that no file can have
        is_there = False
    if not is_there:
        raise NotFound(
            "no_such_page", "there is no such documentation page: build the site with `make docs`"
        )
    return _kept(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=512)
def _kept(path: Path, _changed: int) -> Static:
    return Static(path.read_bytes(), guess_type(path)[0] or "application/octet-stream")


@lru_cache(maxsize=128)
def _policy(page: bytes) -> str:
    hashes = (hashlib.sha256(script).digest() for script in INLINE_SCRIPT.findall(page))
    quoted = (f" 'sha256-{base64.b64encode(one).decode()}'" for one in hashes)
    return POLICY.format(hashes="".join(quoted))
