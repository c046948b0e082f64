"""Register maps that were fitted elsewhere; only the map and its report are sent."""

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
from service.storage.blobs import Blobs, PendingBlobs
from service.storage.database import Database
from service.storage.records import Version
from service.storage.repository import new_id
from service.storage.store import Store

DEEPEST = 32
LONGEST_HEADER = 1 << 20
MAX_HEADER_COST = 100_000
LONGEST_FIT_INFO = 1 << 14
MAX_LIBRARIES, LONGEST_LIBRARY = 20, 100
MAX_CLASSES = 100_000


@dataclass(frozen=True)
class Registration:
    """A map to register, with its report, judged rows and notes."""

    calibrator: str
    content: bytes
    report: dict[str, Any] | None = None
    judged_rows: bytes | None = None
    model: str | None = None
    tags: dict[str, str] = field(default_factory=dict)
    description: str = ""

    @property
    def bytes(self) -> int:
        """The size of the map and the judged rows in bytes."""
        return len(self.content) + len(self.judged_rows or b"")


def register(
    database: Database,
    blobs: Blobs,
    principal: Principal,
    sent: Registration,
    *,
    key: str | None = None,
) -> Version:
    """Add a version from a registration, or return the one added earlier with the same key."""
    report, facts = _checked(sent)
    request = asdict(sent) | {
        "content": facts["map_sha256"],
        "judged_rows": facts["judged_sha256"],
    }
    with database.read() as store:
        known = _registered(store, principal, key, request)
    if known is not None:
        return known
    id, pending = new_id("ver"), PendingBlobs(blobs)
    pending.put(map_key(principal.workspace, id, facts["map_sha256"]), sent.content)
    if sent.judged_rows is not None:
        key_of_rows = judged_key(principal.workspace, id, facts["judged_sha256"])
        pending.put(key_of_rows, sent.judged_rows)
    with pending.named_in(database.write()) as store:
        pending.check()
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
    pending.delete()  # a concurrent request with the same key was faster
    return known


def _registered(
    store: Store, principal: Principal, key: str | None, request: dict[str, Any]
) -> Version | None:
    """Return the version added by an earlier identical request with this key, if any."""
    known = idempotency.answered(store, principal, key, request)
    if known is None:
        return None
    return find(store, principal, request["calibrator"], known["version"])


def _checked(sent: Registration) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Check a registration; return the report and the column values of the version."""
    check_name(sent.calibrator, "a calibrator")
    check_notes(sent.tags, sent.description)
    check_model(sent.model)
    _check_header(sent.content)
    fitted = archive.load(sent.content)
    _check_answers(fitted)
    report = None if sent.report is None else _report(sent.report)
    if report is not None and report.k != fitted.k:
        raise Invalid(
            "wrong_classes", f"the report has {report.k} classes, but the map has {fitted.k}"
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
            raise Invalid("bad_map", f"{name} of the map may have at most {LONGEST_FIT_INFO} bytes")
    return None if report is None else report.to_dict(), facts


def _judged_facts(content: bytes | None, fitted: CalibrationMap) -> dict[str, str | None]:
    """Check the judged rows, if any, and return the column values that describe them."""
    if content is None:
        return {"judged_sha256": None, "judged_data": None}
    try:
        rows = JudgedRows.load(content)
    except CalibrationError as error:
        raise Invalid("bad_judged_rows", f"the judged rows cannot be read: {error}") from error
    if rows.classes != fitted.k:
        raise Invalid(
            "wrong_classes",
            f"the judged rows have {rows.classes} classes, but the map has {fitted.k}",
        )
    return {"judged_sha256": hashlib.sha256(content).hexdigest(), "judged_data": rows.data}


def _check_header(content: bytes) -> None:
    """Raise Invalid, before parsing, if the header is larger than any fitted map's."""
    header = archive.header_text(content)
    if len(header) > LONGEST_HEADER:
        raise Invalid(
            "bad_map",
            f"the map's header has {len(header)} bytes, but the limit is {LONGEST_HEADER}",
        )
    check_cost(header, MAX_HEADER_COST)


def _check_answers(fitted: CalibrationMap) -> None:
    """Raise Invalid unless a map returns valid probabilities for a fixed set of rows."""
    if fitted.k > MAX_CLASSES:
        raise Invalid(
            "bad_map", f"a map must have at most {MAX_CLASSES:,} classes, got {fitted.k:,}"
        )
    try:
        prove(fitted)
    except CalibrationError as error:
        raise Invalid("bad_map", f"the map cannot be applied: {error}") from error
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise Invalid(
            "bad_map", f"the map cannot be applied: its arrays are inconsistent ({error})"
        ) from error


def _is_plain(value: Any, depth: int) -> bool:
    """Return True if any JSON parser can read a value: finite, not too deep, valid text."""
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
    """Return True if text has no NUL and no lone surrogates."""
    return not any(character == "\0" or "\ud800" <= character <= "\udfff" for character in value)


def _report(report: dict[str, Any]) -> Report:
    """Parse an untrusted report; raise Invalid if it cannot be read and rendered."""
    if not _is_plain(report, DEEPEST):
        raise Invalid("bad_report", "the report cannot be read: it must be plain JSON")
    check_limits(report)
    try:
        read = Report.from_dict(report)
    except CalibrationError as error:
        raise Invalid(
            "bad_report", "the report is not in the format of Report.to_dict()"
        ) from error
    if not isinstance(read.fit.get("parameters", {}), dict):
        raise Invalid("bad_report", "the report cannot be read: fit.parameters is not an object")
    try:
        if read.verdict is not None:
            _check_verdict(read)
        html_page.render(read, draw=_not_drawn)
        read.chart()
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise Invalid(
            "bad_report", "the report cannot be rendered: numbers are missing or out of range"
        ) from error
    return read


def _not_drawn(spec: dict[str, Any]) -> str:
    """Return an empty SVG instead of a chart.

    To check a report, building its charts is enough; drawing them takes ten times as long.
    """
    return ""


def _check_verdict(report: Report) -> None:
    """Raise Invalid unless the verdict, which may allow promotion, follows from the intervals."""
    if report.verdict != decide(report.n, report.change, report.chance):
        raise Invalid(
            "bad_report",
            "the report's verdict does not follow from its intervals and its test against chance",
        )


def _libraries(content: bytes) -> dict[str, str]:
    found = archive.describe(content).get("libraries")
    if not isinstance(found, dict) or not all(isinstance(one, str) for one in found.values()):
        raise Invalid("bad_map", "the map does not list the library versions used to fit it")
    if len(found) > MAX_LIBRARIES or any(
        len(text) > LONGEST_LIBRARY for pair in found.items() for text in pair
    ):
        raise Invalid(
            "bad_map",
            f"a map may list at most {MAX_LIBRARIES} libraries, with names and versions of at most "
            f"{LONGEST_LIBRARY} characters",
        )
    return found


def _rows(fitted: CalibrationMap) -> int | None:
    rows = fitted.fit_info.get("rows")
    if rows is not None and not (type(rows) is int and 0 <= rows < 2**63):
        raise Invalid(
            "bad_map", "rows in the map's fit_info must be a non-negative integer or omitted"
        )
    return rows
