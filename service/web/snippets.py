"""Lines to paste that call a calibrator: curl, Python, and clients of KServe and Triton."""

from __future__ import annotations

import json
from typing import NamedTuple

from fastapi import Request

from service.storage.overview import PRODUCTION
from service.storage.records import Version

MOST_WRITTEN = 200  # numbers of a row; longer ones come from a file
KEY = '-H "Authorization: Bearer $CALIBRD_API_KEY"'


class Snippet(NamedTuple):
    """What it is for, and the lines."""

    label: str
    text: str


def snippets(
    request: Request, name: str, ref: str, version: Version, *, needs_key: bool
) -> tuple[Snippet, ...]:
    """How to call a calibrator at an alias or version."""
    url = address(request)
    called = f"{name}@{ref}"
    predict = f"{url}/v1/calibrators/{called}/predict"
    model = f"{url}/v2/models/{name}" + ("" if ref == PRODUCTION else f"/versions/{ref}")
    return (
        Snippet("curl", _curl(predict, {version.kind: _row(version)}, needs_key)),
        Snippet("Python", _python(url, called, version.kind)),
        Snippet("KServe, Triton", _curl(f"{model}/infer", _inference(version), needs_key)),
    )


def address(request: Request) -> str:
    """Where the reader's browser found the service."""
    scheme = request.headers.get("x-forwarded-proto", request.url.scheme).partition(",")[0].strip()
    return f"{'https' if scheme == 'https' else 'http'}://{request.url.netloc}"


def _row(version: Version) -> list[list[float]] | None:
    """One row of the width that the map takes; None if that is too long to read."""
    if version.classes > MOST_WRITTEN:
        return None
    if version.kind == "probabilities":
        others = version.classes - 1
        rest = round(0.4 / others, 4)
        return [[round(1 - rest * others, 4), *[rest] * others]]
    return [[3.0, 1.0, *[0.0] * (version.classes - 2)]]


def _curl(url: str, body: dict[str, object], needs_key: bool) -> str:
    content = "@row.json" if None in body.values() else f"'{json.dumps(body)}'"
    pieces = [f"curl -s {url}", KEY, "-H 'Content-Type: application/json'", f"-d {content}"]
    return " \\\n  ".join(one for one in pieces if needs_key or one != KEY)


def _python(url: str, called: str, kind: str) -> str:
    return (
        "import calibrd\n\n"
        "# the key is read from CALIBRD_API_KEY\n"
        f'client = calibrd.Client("{url}")\n'
        f'p = client.predict("{called}", {kind})\n\n'
        "# in this process: follows the alias, goes on while the service is away\n"
        f'calibrator = client.load("{called}")\n'
        f"p = calibrator.apply({kind})"
    )


def _inference(version: Version) -> dict[str, object]:
    row = _row(version)
    if row is None:
        return {"inputs": None}
    shape = [1, version.classes]
    return {"inputs": [{"name": version.kind, "shape": shape, "datatype": "FP64", "data": row}]}
