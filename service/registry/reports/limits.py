"""How large a report that was made elsewhere may be: it is stored, shown and drawn for others."""

from __future__ import annotations

from typing import Any

import orjson

from service.errors import Invalid

MOST_BYTES = 1 << 20
MOST_FIT_BYTES = 1 << 16
MOST_BINS = 100
MOST_ITEMS = {
    "equal_width": MOST_BINS,
    "equal_mass": MOST_BINS,
    "by_margin": 3,
    "by_class": 50,
    "by_segment": 100,
    "temperatures": 100,
    "band": 100,
}
MOST_FIELDS = 50
LONGEST_TEXT = 2000


def check_limits(report: dict[str, Any]) -> None:
    """Raise Invalid if a report is larger, or a part of it longer, than any of our own.

    ``report`` is plain JSON. ``fit``, which says how the map was made, is free in form and has a
    limit of its own.
    """
    _check_parts("", {name: part for name, part in report.items() if name != "fit"})
    _check_bytes("fit", report.get("fit", {}), MOST_FIT_BYTES)
    _check_bytes("the report", report, MOST_BYTES)


def _check_bytes(what: str, value: Any, most: int) -> None:
    size = len(orjson.dumps(value))
    if size > most:
        raise _too_long(f"{what} has {size} bytes", most)


def _check_parts(path: str, value: Any) -> None:
    name = path.rpartition(".")[2]
    match value:
        case list():
            most = MOST_ITEMS.get(name, 0)
            if len(value) > most:
                raise _too_long(f"{path} has {len(value)} entries", most)
            for part in value:
                _check_parts(path, part)
        case dict():
            if len(value) > MOST_FIELDS:
                raise _too_long(f"{path or 'the report'} has {len(value)} fields", MOST_FIELDS)
            for key, part in value.items():
                _check_parts(f"{path}.{key[:40]}".lstrip("."), part)
        case str() if len(value) > LONGEST_TEXT:
            raise _too_long(f"{path} has {len(value)} characters", LONGEST_TEXT)


def _too_long(what: str, most: int) -> Invalid:
    return Invalid("bad_report", f"the report cannot be taken: {what}, at most {most} are")
