"""Calibrators and their versions: found, registered, annotated."""

from __future__ import annotations

import hashlib
from typing import Any

from calibrators import CalibrationMap, Report, archive, charts, page
from calibrators.errors import CalibrationError
from service.core import idempotency
from service.core.access import Principal
from service.core.blob_keys import map_key
from service.core.names import NAME, check_name
from service.errors import Invalid, NotFound
from service.storage.blobs import Blobs
from service.storage.database import Database
from service.storage.records import CalibratorRow, Version
from service.storage.store import Store

MOST_TAGS = 32
LONGEST_TAG = 200
LONGEST_DESCRIPTION = 4000
LONGEST_MODEL = 200


def calibrator_named(store: Store, principal: Principal, name: str) -> CalibratorRow:
    """The caller's calibrator of this name."""
    found = store.calibrators.named(principal.workspace, name) if NAME.fullmatch(name) else None
    if found is None:
        raise NotFound("no_such_calibrator", f"there is no calibrator {name[:64]!r}")
    return found


def calibrator_for(store: Store, principal: Principal, name: str) -> CalibratorRow:
    """The caller's calibrator of this name, made if it is not there."""
    check_name(name, "a calibrator")
    found = store.calibrators.named(principal.workspace, name)
    return found or store.calibrators.add(principal.workspace, name)


def version_of(store: Store, calibrator: CalibratorRow, number: int) -> Version:
    """A version by its number."""
    found = store.calibrators.version(calibrator.id, number) if number < 2**31 else None
    if found is None:
        raise NotFound("no_such_version", f"{calibrator.name} has no version {number}")
    return found


def find(store: Store, principal: Principal, name: str, number: int) -> Version:
    """A version of the caller's calibrator."""
    return version_of(store, calibrator_named(store, principal, name), number)


def report_of(store: Store, version: Version) -> Report:
    """The report of a version."""
    document = store.calibrators.report(version.calibrator, version.number)
    if document is None:
        raise NotFound("no_report", f"version {version.number} was registered without a report")
    return Report.from_dict(document)


def register(
    database: Database,
    blobs: Blobs,
    principal: Principal,
    name: str,
    content: bytes,
    *,
    report: dict[str, Any] | None,
    model: str | None,
    tags: dict[str, str],
    description: str,
    key: str | None = None,
) -> Version:
    """A version from a map that was fitted elsewhere, with the report made there."""
    check_name(name, "a calibrator")
    check_notes(tags, description)
    check_model(model)
    fitted, libraries = archive.load(content), _libraries(content)
    rows = _rows(fitted)
    checked = None if report is None else _checked(report)
    if checked is not None and checked.k != fitted.k:
        raise Invalid(
            "wrong_classes", f"the report is on {checked.k} classes, the map on {fitted.k}"
        )
    sha256 = hashlib.sha256(content).hexdigest()
    blobs.put(map_key(principal.workspace, sha256), content)
    request = {
        "calibrator": name,
        "map": sha256,
        "report": report,
        "model": model,
        "tags": tags,
        "description": description,
    }
    with database.write() as store:
        known = idempotency.answered(store, principal, key, request)
        if known is not None:
            return find(store, principal, name, known["version"])
        made = store.calibrators.add_version(
            calibrator_for(store, principal, name).id,
            None if checked is None else checked.to_dict(),
            method=fitted.method,
            params={} if checked is None else checked.fit.get("parameters", {}),
            seed=None,
            kind=fitted.kind,
            classes=fitted.k,
            model=model,
            dataset_sha256=None,
            rows=rows,
            verdict=None if checked is None else checked.verdict,
            fit=None,
            fit_info=fitted.fit_info,
            libraries=libraries,
            map_sha256=sha256,
            map_bytes=len(content),
            onnx_sha256=None,
            tags=tags,
            description=description,
            created_by=principal.actor,
        )
        idempotency.keep(store, principal, key, request, {"version": made.number})
        return made


def annotate(
    store: Store,
    principal: Principal,
    name: str,
    number: int,
    *,
    tags: dict[str, str] | None,
    description: str | None,
) -> Version:
    """Change tags or description; None leaves them as they are."""
    version = find(store, principal, name, number)
    check_notes(tags or {}, description or "")
    notes = {"tags": tags, "description": description}
    changed = {key: value for key, value in notes.items() if value is not None}
    if not changed:
        return version
    return store.calibrators.annotate(version.calibrator, number, **changed) or version


def check_notes(tags: dict[str, str], description: str) -> None:
    """Raise if tags or description are too many or too long."""
    if len(tags) > MOST_TAGS:
        raise Invalid("too_many_tags", f"a version takes at most {MOST_TAGS} tags, got {len(tags)}")
    for key, value in tags.items():
        check_name(key, "a tag")
        if len(value) > LONGEST_TAG or not value.isprintable():
            raise Invalid(
                "bad_tag", f"the tag {key!r} must have at most {LONGEST_TAG} printable characters"
            )
    if len(description) > LONGEST_DESCRIPTION or "\0" in description:
        raise Invalid(
            "bad_description",
            f"a description takes at most {LONGEST_DESCRIPTION} characters and no NUL",
        )


def check_model(model: str | None) -> None:
    """Raise if a model's fingerprint is not one short line of text."""
    if model is not None and not (0 < len(model) <= LONGEST_MODEL and model.isprintable()):
        raise Invalid(
            "bad_model",
            f"a model's fingerprint must have 1 to {LONGEST_MODEL} printable characters",
        )


def _checked(report: dict[str, Any]) -> Report:
    """The report, if it can be read and shown: it was made elsewhere and may hold anything."""
    try:
        read = Report.from_dict(report)
    except CalibrationError as error:
        raise Invalid("bad_report", f"the report cannot be read: {error}") from error
    if not isinstance(read.fit.get("parameters", {}), dict):
        raise Invalid("bad_report", "the report cannot be read: fit.parameters is no object")
    try:
        page.render(read)
        charts.to_svg(read.chart())
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise Invalid(
            "bad_report", "the report cannot be shown: numbers are missing or out of range"
        ) from error
    return read


def _libraries(content: bytes) -> dict[str, str]:
    found = archive.describe(content).get("libraries")
    if not isinstance(found, dict) or not all(isinstance(one, str) for one in found.values()):
        raise Invalid("bad_map", "the map does not say which versions of libraries made it")
    return found


def _rows(fitted: CalibrationMap) -> int | None:
    rows = fitted.fit_info.get("rows")
    if rows is not None and not (type(rows) is int and 0 <= rows < 2**63):
        raise Invalid("bad_map", "the number of rows that the map was fitted on is none")
    return rows
