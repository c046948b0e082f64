"""Calibrators and their versions: found and annotated."""

from __future__ import annotations

from typing import NamedTuple

from calibrators import Report
from service.access.permissions import Principal
from service.errors import Invalid, NotFound
from service.names import NAME, check_name, is_readable
from service.storage.records import CalibratorRow, Dataset, Version
from service.storage.store import Store

MOST_TAGS = 32
LONGEST_TAG = 200
LONGEST_DESCRIPTION = 4000
LONGEST_MODEL = 200
NO_ONNX = "no ONNX"


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


class JudgedVersion(NamedTuple):
    """A version and its report, if it has one."""

    version: Version
    report: Report | None

    @property
    def title(self) -> str:
        """What it is called beside others."""
        return f"version {self.version.number}, {self.version.method}"

    def has_seen(self, dataset: Dataset) -> bool:
        """Whether the version was fitted on this dataset."""
        return self.version.dataset_sha256 == dataset.sha256


def judged(store: Store, principal: Principal, name: str, number: int) -> JudgedVersion:
    """A version of the caller's calibrator with its report, if it has one."""
    is_possible = NAME.fullmatch(name) and number < 2**31
    found = store.calibrators.judged(principal.workspace, name, number) if is_possible else None
    if found is None:
        return JudgedVersion(
            find(store, principal, name, number), None
        )  # it says what is not there
    version, document = found
    return JudgedVersion(version, None if document is None else Report.from_dict(document))


def why_no_onnx(version: Version) -> str:
    """Why a version has no ONNX form."""
    kept = version.fit_info.get("warnings")
    listed = kept if isinstance(kept, list) else []  # a map made elsewhere may say anything
    messages = [str(one.get("message", "")) for one in listed if isinstance(one, dict)]
    found = (one.removeprefix(f"{NO_ONNX}: ") for one in messages if one.startswith(NO_ONNX))
    return next(found, "it is made for versions that are fitted by this service")


def check_reported(store: Store, version: Version) -> None:
    """Raise NotFound if a version has no report."""
    if not store.calibrators.has_report(version.calibrator, version.number):
        raise _no_report(version)


def report_of(store: Store, version: Version) -> Report:
    """The report of a version."""
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
    """Change tags or description; None leaves them as they are."""
    version = find(store, principal, name, number)
    check_notes(tags or {}, description or "")
    notes = {"tags": tags, "description": description}
    changed = {key: value for key, value in notes.items() if value is not None}
    if not changed:
        return version
    return store.calibrators.annotate(version.calibrator, number, **changed) or version


def check_notes(tags: dict[str, str], description: str, what: str = "a version") -> None:
    """Raise if tags or description are too many or too long."""
    if len(tags) > MOST_TAGS:
        raise Invalid("too_many_tags", f"{what} takes at most {MOST_TAGS} tags, got {len(tags)}")
    for key, value in tags.items():
        check_name(key, "a tag")
        if len(value) > LONGEST_TAG or not is_readable(value):
            raise Invalid(
                "bad_tag", f"the tag {key!r} must have at most {LONGEST_TAG} printable characters"
            )
    if len(description) > LONGEST_DESCRIPTION or not is_readable(description, lines=True):
        raise Invalid(
            "bad_description",
            f"a description takes at most {LONGEST_DESCRIPTION} characters, newlines and tabs "
            "among them, and no other control characters",
        )


def check_model(model: str | None) -> None:
    """Raise if a model's fingerprint is not one short line of text."""
    if model is not None and not (0 < len(model) <= LONGEST_MODEL and is_readable(model)):
        raise Invalid(
            "bad_model",
            f"a model's fingerprint must have 1 to {LONGEST_MODEL} printable characters",
        )
