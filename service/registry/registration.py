"""Versions from maps that were fitted elsewhere: only the map and its report are sent."""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson

from calibrators import CalibrationMap, Report, archive
from calibrators.comparison.judged_rows import JudgedRows
from calibrators.errors import CalibrationError
from calibrators.fitting.map_check import prove
from calibrators.report import html_page
from calibrators.report.verdict import decide
from service.access import idempotency
from service.access.permissions import Principal
from service.errors import Invalid
from service.http.json_body import check_cost
from service.names import check_name
from service.registry.reports.limits import check_limits
from service.registry.service import calibrator_for, check_model, check_notes, find
from service.storage.blob_keys import judged_key, map_key
from service.storage.blobs import Blobs, Unnamed
from service.storage.database import Database
from service.storage.records import Version
from service.storage.repository import new_id
from service.storage.store import Store

DEEPEST = 32
LONGEST_HEADER = 1 << 20
MOST_HEADER_COST = 100_000
LONGEST_FIT_INFO = 1 << 14
MOST_LIBRARIES, LONGEST_LIBRARY = 20, 100
MOST_CLASSES = 100_000


@dataclass(frozen=True)
class Registration:
    """What is sent: the bytes of a map, and what goes with it."""

    calibrator: str
    content: bytes
    report: dict[str, Any] | None = None
    judged_rows: bytes | None = None
    model: str | None = None
    tags: dict[str, str] = field(default_factory=dict)
    description: str = ""

    @property
    def bytes(self) -> int:
        """How many bytes it takes, beside its report."""
        return len(self.content) + len(self.judged_rows or b"")


def register(
    database: Database,
    blobs: Blobs,
    principal: Principal,
    sent: Registration,
    *,
    key: str | None = None,
) -> Version:
    """The version that a registration makes, or has made before with this key."""
    report, facts = _checked(sent)
    request = asdict(sent) | {
        "content": facts["map_sha256"],
        "judged_rows": facts["judged_sha256"],
    }
    with database.read() as store:
        known = _registered(store, principal, key, request)
    if known is not None:
        return known
    id, unnamed = new_id("ver"), Unnamed(blobs)
    unnamed.put(map_key(principal.workspace, id, facts["map_sha256"]), sent.content)
    if sent.judged_rows is not None:
        key_of_rows = judged_key(principal.workspace, id, facts["judged_sha256"])
        unnamed.put(key_of_rows, sent.judged_rows)
    with database.write() as store:
        unnamed.check()
        known = _registered(store, principal, key, request)
        if known is None:
            calibrator = calibrator_for(store, principal, sent.calibrator)
            made = store.calibrators.add_version(
                calibrator.id,
                id,
                report,
                blob_bytes=sent.bytes,
                created_by=principal.actor,
                **facts,
            )
            idempotency.keep(store, principal, key, request, {"version": made.number})
            return made
    unnamed.delete()  # the same was sent twice at once
    return known


def _registered(
    store: Store, principal: Principal, key: str | None, request: dict[str, Any]
) -> Version | None:
    """The version that an equal registration with this key has made before."""
    known = idempotency.answered(store, principal, key, request)
    if known is None:
        return None
    return find(store, principal, request["calibrator"], known["version"])


def _checked(sent: Registration) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """The report and the facts of the version, if all of it is sound."""
    check_name(sent.calibrator, "a calibrator")
    check_notes(sent.tags, sent.description)
    check_model(sent.model)
    _check_header(sent.content)
    fitted = archive.load(sent.content)
    _check_answers(fitted)
    report = None if sent.report is None else _report(sent.report)
    if report is not None and report.k != fitted.k:
        raise Invalid(
            "wrong_classes", f"the report is on {report.k} classes, the map on {fitted.k}"
        )
    facts = {
        "method": fitted.method,
        "params": {} if report is None else report.fit.get("parameters", {}),
        "seed": None,
        "kind": fitted.kind,
        "classes": fitted.k,
        "model": sent.model,
        "dataset_sha256": None,
        "rows": _rows(fitted),
        "verdict": None if report is None else report.verdict,
        "verdict_sentence": None if report is None else report.verdict_sentence or None,
        "fit": None,
        "fit_info": fitted.fit_info,
        "libraries": _libraries(sent.content),
        "map_sha256": hashlib.sha256(sent.content).hexdigest(),
        "map_bytes": len(sent.content),
        "onnx_sha256": None,
        **_judged_facts(sent.judged_rows, fitted),
        "tags": sent.tags,
        "description": sent.description,
    }
    for name in ("params", "fit_info", "libraries"):
        if not _is_plain(facts[name], DEEPEST):
            raise Invalid("bad_map", f"{name} of the map or its report must be plain JSON")
    for name in ("fit_info", "params"):
        if len(orjson.dumps(facts[name])) > LONGEST_FIT_INFO:
            raise Invalid("bad_map", f"{name} of the map may have {LONGEST_FIT_INFO} bytes")
    return None if report is None else report.to_dict(), facts


def _judged_facts(content: bytes | None, fitted: CalibrationMap) -> dict[str, str | None]:
    """Return what the version's row says of its judged rows, if they can be read."""
    if content is None:
        return {"judged_sha256": None, "judged_data": None}
    try:
        rows = JudgedRows.load(content)
    except CalibrationError as error:
        raise Invalid("bad_judged_rows", f"the judged rows cannot be read: {error}") from error
    if rows.classes != fitted.k:
        raise Invalid(
            "wrong_classes",
            f"the judged rows are of {rows.classes} classes, the map of {fitted.k}",
        )
    return {"judged_sha256": hashlib.sha256(content).hexdigest(), "judged_data": rows.data}


def _check_header(content: bytes) -> None:
    """Raise before a header is parsed that is larger, or has more values, than any of ours."""
    header = archive.header_text(content)
    if len(header) > LONGEST_HEADER:
        raise Invalid(
            "bad_map", f"the map's header has {len(header)} bytes, at most {LONGEST_HEADER} are"
        )
    check_cost(header, MOST_HEADER_COST)


def _check_answers(fitted: CalibrationMap) -> None:
    """Raise unless a map gives probabilities for every row of a fixed set; foreign maps may not."""
    if fitted.k > MOST_CLASSES:
        raise Invalid(
            "bad_map", f"a map must have at most {MOST_CLASSES:,} classes, got {fitted.k:,}"
        )
    try:
        prove(fitted)
    except CalibrationError as error:
        raise Invalid("bad_map", f"the map cannot be applied: {error}") from error


def _is_plain(value: Any, depth: int) -> bool:
    """Whether every reader of JSON can read it: finite, not too deep, text that is text."""
    match value:
        case None | bool():
            return True
        case int():
            return -(2**63) <= value < 2**63
        case float():
            return math.isfinite(value)
        case str():
            return _is_text(value)
        case list() | tuple():
            return depth > 0 and all(_is_plain(one, depth - 1) for one in value)
        case dict():
            items = [*value.keys(), *value.values()]
            return depth > 0 and all(_is_plain(one, depth - 1) for one in items)
    return False


def _is_text(value: str) -> bool:
    """Whether it is text without NUL and halves of surrogate pairs."""
    return not any(character == "\0" or "\ud800" <= character <= "\udfff" for character in value)


def _report(report: dict[str, Any]) -> Report:
    """The report, if it can be read and shown: it was made elsewhere and may hold anything."""
    if not _is_plain(report, DEEPEST):
        raise Invalid("bad_report", "the report cannot be read: it must be plain JSON")
    check_limits(report)
    try:
        read = Report.from_dict(report)
    except CalibrationError as error:
        raise Invalid("bad_report", "the report is not what Report.to_dict() gives") from error
    if not isinstance(read.fit.get("parameters", {}), dict):
        raise Invalid("bad_report", "the report cannot be read: fit.parameters is no object")
    try:
        if read.verdict is not None:
            _check_verdict(read)
        html_page.render(read, draw=_not_drawn)
        read.chart()
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise Invalid(
            "bad_report", "the report cannot be shown: numbers are missing or out of range"
        ) from error
    return read


def _not_drawn(spec: dict[str, Any]) -> str:
    """No SVG: a chart that can be put together can be drawn, which takes ten times as long."""
    return ""


def _check_verdict(report: Report) -> None:
    """A verdict opens the way to production, so it must follow from the report's own intervals."""
    if report.verdict != decide(report.n, report.change):
        raise Invalid("bad_report", "the report's verdict does not follow from its intervals")


def _libraries(content: bytes) -> dict[str, str]:
    found = archive.describe(content).get("libraries")
    if not isinstance(found, dict) or not all(isinstance(one, str) for one in found.values()):
        raise Invalid("bad_map", "the map does not say which versions of libraries made it")
    if len(found) > MOST_LIBRARIES or any(
        len(text) > LONGEST_LIBRARY for pair in found.items() for text in pair
    ):
        raise Invalid(
            "bad_map",
            f"a map names at most {MOST_LIBRARIES} libraries, of {LONGEST_LIBRARY} characters each",
        )
    return found


def _rows(fitted: CalibrationMap) -> int | None:
    rows = fitted.fit_info.get("rows")
    if rows is not None and not (type(rows) is int and 0 <= rows < 2**63):
        raise Invalid("bad_map", "rows of the map's fit_info must be a whole number, or left out")
    return rows
