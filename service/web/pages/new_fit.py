"""The page that starts a fit: its script checks the files and sends them to the API.

``npy.js`` joins a pair of npy files into one body, ``uploading.js`` sends bodies and parses
problems, and ``new-fit.js`` controls the form.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Annotated

from fastapi import Query, Request, Response

from calibrators import all_methods
from calibrators.base import Calibrator
from calibrators.error_codes import ERROR_CODES
from calibrators.registry import DEFAULT_METHOD, keeps_class
from service.access.permissions import Scope
from service.datasets.formats import Format, all_codecs
from service.dependencies import Joined
from service.http.callers import Caller, needs
from service.names import NAME, RULE
from service.registry.service import LONGEST_DESCRIPTION, LONGEST_MODEL
from service.web.components.layout import page, pages

router = pages()

CALIBRATORS = 200
# in browser patterns, a hyphen in brackets must be escaped
PATTERN = r"[a-z0-9][a-z0-9._\-]{0,63}"
FILES = [one for one in all_codecs().values() if one.is_file]
ENDINGS = [f".{one.format}" for one in FILES]


@dataclass(frozen=True)
class Choice:
    """A method to choose; ``keeps_class`` is None if it depends on the fit.

    ``parameters`` contains the default parameters as JSON, or nothing if there are none.
    """

    name: str
    summary: str
    cost: str
    reference: str
    keeps_class: bool | None
    needs_segments: bool
    needs_features: bool
    needs_head: bool
    is_chosen: bool
    parameters: str


@router.api_route("/new-fit", methods=["GET", "HEAD"], dependencies=needs(Scope.FIT))
def new_fit_page(
    request: Request,
    joined: Joined,
    caller: Caller,
    calibrator: Annotated[str, Query(max_length=200)] = "",
) -> Response:
    """Show the form, for an existing or a new calibrator."""
    with joined.database.read() as store:
        known = store.calibrators.page(caller.workspace, CALIBRATORS, None)
    settings = joined.settings
    values = {
        "calibrator": calibrator,
        "known": [one.name for one in known],
        "pattern": PATTERN,
        "rule": RULE,
        "methods": choices(),
        "files": FILES,
        "text_types": [one.media_types[0] for one in FILES if one.is_text],
        "endings": f"{', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}",
        "limit": settings.max_upload_bytes,
        "text_limit": min(settings.max_json_bytes, settings.max_upload_bytes),
        "longest_model": LONGEST_MODEL,
        "longest_description": LONGEST_DESCRIPTION,
        "advice": {code: row.page for code, row in ERROR_CODES.items() if row.page},
        "lines": _lines(calibrator if NAME.fullmatch(calibrator) else "my-model"),
    }
    return page(request, "new_fit.html", values)


def choices() -> list[Choice]:
    """Return all methods, the default first."""
    found = [
        Choice(
            name,
            recipe.summary,
            recipe.cost,
            recipe.reference,
            keeps_class(name),
            recipe.needs_segments,
            recipe.needs_features,
            recipe.needs_head,
            name == DEFAULT_METHOD,
            _defaults(recipe),
        )
        for name, recipe in all_methods().items()
    ]
    return sorted(found, key=lambda one: not one.is_chosen)


def _defaults(recipe: type[Calibrator]) -> str:
    found = asdict(recipe())
    found.pop("seed", None)  # the seed belongs to the fit
    return json.dumps(found) if found else ""


def _lines(name: str) -> list[str]:
    """Return shell commands that start the same fit as the form."""
    url = f"$API/v1/calibrators/{name}/fits?method={DEFAULT_METHOD}"
    return [
        f'curl -s "{url}" -H "$AUTH" \\\n'
        f"  -H 'Content-Type: {one.media_type}' --data-binary @file.{one}"
        for one in (Format.NPZ, Format.CSV)
    ]
