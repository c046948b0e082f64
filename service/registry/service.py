"""Find and annotate calibrators and their versions."""

from __future__ import annotations

from typing import NamedTuple

from calibrators import Report
from service.access.permissions import Principal
from service.errors import Invalid, NotFound
from service.names import NAME, check_name, is_readable
from service.storage.records import CalibratorRow, Dataset, Version
from service.storage.store import Store

MAX_TAGS = 32
LONGEST_TAG = 200
LONGEST_DESCRIPTION = 4000
LONGEST_MODEL = 200
NO_ONNX = "no ONNX"
NUMBERS = range(1, 2**31)  # version numbers that the database can store


def calibrator_named(store: Store, principal: Principal, name: str) -> CalibratorRow:
    """Return the caller's calibrator with this name."""
    found = store.calibrators.named(principal.workspace, name) if NAME.fullmatch(name) else None
    if found is None:
        raise NotFound("no_such_calibrator", f"there is no calibrator {name[:64]!r}")
    return found


def calibrator_for(store: Store, principal: Principal, name: str) -> CalibratorRow:
    """Return the caller's calibrator with this name, adding it if it does not exist."""
    check_name(name, "a calibrator")
    found = store.calibrators.named(principal.workspace, name)
    return found or store.calibrators.add(principal.workspace, name)


def version_of(store: Store, calibrator: CalibratorRow, number: int) -> Version:
    """Return a version by its number."""
    found = store.calibrators.version(calibrator.id, number) if number in NUMBERS else None
    if found is None:
        raise NotFound("no_such_version", f"{calibrator.name} has no version {number}")
    return found


def find(store: Store, principal: Principal, name: str, number: int) -> Version:
    """Return a version of the caller's calibrator."""
    return version_of(store, calibrator_named(store, principal, name), number)


class JudgedVersion(NamedTuple):
    """A version and its report, if it has one."""

    version: Version
    report: Report | None

    @property
    def title(self) -> str:
        """The heading of the version in comparisons."""
        return f"version {self.version.number}, {self.version.method}"

    def has_seen(self, dataset: Dataset) -> bool:
        """Return True if the version was fitted on this dataset."""
        return self.version.dataset_sha256 == dataset.sha256


def judged(store: Store, principal: Principal, name: str, number: int) -> JudgedVersion:
    """Return a version of the caller's calibrator with its report, if it has one."""
    is_possible = NAME.fullmatch(name) and number in NUMBERS
    found = store.calibrators.judged(principal.workspace, name, number) if is_possible else None
    if found is None:
        # raises NotFound for the calibrator or the version
        return JudgedVersion(find(store, principal, name, number), None)
    version, document = found
    return JudgedVersion(version, None if document is None else Report.from_dict(document))


def why_no_onnx(version: Version) -> str:
    """Return the reason a version has no ONNX model."""
    warnings = version.fit_info.get("warnings")
    listed = warnings if isinstance(warnings, list) else []  # registered maps are untrusted
    messages = [str(one.get("message", "")) for one in listed if isinstance(one, dict)]
    found = (one.removeprefix(f"{NO_ONNX}: ") for one in messages if one.startswith(NO_ONNX))
    return next(found, "only versions that were fitted by this service have one")


def check_reported(store: Store, version: Version) -> None:
    """Raise NotFound if a version has no report."""
    if not store.calibrators.has_report(version.calibrator, version.number):
        raise _no_report(version)


def report_of(store: Store, version: Version) -> Report:
    """Return the report of a version."""
    document = store.calibrators.report(version.calibrator, version.number)
    if document is None:
        raise _no_report(version)
    return Report.from_dict(document)


def _no_report(version: Version) -> NotFound:
    return NotFound("no_report", f"version {version.number} was registered without a report")


def annotate(
    store: Store,
    principal: Principal,
    name: str,
    number: int,
    *,
    tags: dict[str, str] | None,
    description: str | None,
) -> Version:
    """Change tags or description; None leaves them unchanged."""
    version = find(store, principal, name, number)
    check_notes(tags or {}, description or "")
    notes = {"tags": tags, "description": description}
    changed = {key: value for key, value in notes.items() if value is not None}
    if not changed:
        return version
    return store.calibrators.annotate(version.calibrator, number, **changed) or version


def check_notes(tags: dict[str, str], description: str, what: str = "a version") -> None:
    """Raise Invalid if there are too many tags, or if a tag or the description is invalid."""
    if len(tags) > MAX_TAGS:
        raise Invalid("too_many_tags", f"{what} can have at most {MAX_TAGS} tags, got {len(tags)}")
    for key, value in tags.items():
        check_name(key, "a tag")
        if len(value) > LONGEST_TAG or not is_readable(value):
            raise Invalid(
                "bad_tag",
                f"the tag {key!r} must have at most {LONGEST_TAG} characters, all printable",
            )
    if len(description) > LONGEST_DESCRIPTION or not is_readable(description, lines=True):
        raise Invalid(
            "bad_description",
            f"a description must have at most {LONGEST_DESCRIPTION} characters, and no control "
            "characters except newlines and tabs",
        )


def check_model(model: str | None) -> None:
    """Raise Invalid unless a model's fingerprint is a short line of text."""
    if model is not None and not (0 < len(model) <= LONGEST_MODEL and is_readable(model)):
        raise Invalid(
            "bad_model",
            f"a model's fingerprint must have 1 to {LONGEST_MODEL} printable characters",
        )
