"""Size limits for registered reports, which the service stores and renders."""

from __future__ import annotations

from typing import Any

import orjson

from service.errors import Invalid

MAX_BYTES = 1 << 20
MAX_FIT_BYTES = 1 << 16
MAX_BINS = 100
MAX_ITEMS = {
    "equal_width": MAX_BINS,
    "equal_mass": MAX_BINS,
    "by_margin": 3,
    "by_class": 50,
    "by_segment": 100,
    "temperatures": 100,
    "band": 100,
}
MAX_FIELDS = 50
LONGEST_TEXT = 2000


def check_limits(report: dict[str, Any]) -> None:
    """Raise Invalid if a report, or a part of it, is larger than in any fit's report.

    ``report`` is plain JSON. Its field ``fit``, a free-form description of how the map was fitted,
    has its own limit.
    """
    _check_parts("", {name: part for name, part in report.items() if name != "fit"})
    _check_bytes("fit", report.get("fit", {}), MAX_FIT_BYTES)
    _check_bytes("the report", report, MAX_BYTES)


def _check_bytes(what: str, value: Any, most: int) -> None:
    size = len(orjson.dumps(value))
    if size > most:
        raise _too_long(f"{what} has {size} bytes", most)


def _check_parts(path: str, value: Any) -> None:
    name = path.rpartition(".")[2]
    match value:
        case list():
            most = MAX_ITEMS.get(name, 0)
            if len(value) > most:
                raise _too_long(f"{path} has {len(value)} entries", most)
            for part in value:
                _check_parts(path, part)
        case dict():
            if len(value) > MAX_FIELDS:
                raise _too_long(f"{path or 'the report'} has {len(value)} fields", MAX_FIELDS)
            for key, part in value.items():
                _check_parts(f"{path}.{key[:40]}".lstrip("."), part)
        case str() if len(value) > LONGEST_TEXT:
            raise _too_long(f"{path} has {len(value)} characters", LONGEST_TEXT)


def _too_long(what: str, most: int) -> Invalid:
    return Invalid("bad_report", f"the report is too large: {what}, but the limit is {most}")
