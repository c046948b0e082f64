"""Preview of a promotion: what changes for callers when an alias moves."""

from __future__ import annotations

from typing import NamedTuple

from calibrators import Report
from calibrators.registry import keeps_class
from service.registry.service import JudgedVersion
from service.storage.records import Version
from service.web.components.templating import MISSING, percent


class Change(NamedTuple):
    """A property before and after the move; ``note`` describes the consequence for callers."""

    what: str
    before: str
    after: str
    note: str = ""


def changes(before: JudgedVersion | None, after: JudgedVersion) -> tuple[Change, ...]:
    """Return the properties that callers notice; ``before`` is None for a new alias."""
    old, new = None if before is None else before.version, after.version
    found = (
        Change("map", _map(old), _map(new)),
        Change("input", _input(old), _input(new), _input_note(old, new)),
        Change("predicted class", _classes(old), _classes(new), _classes_note(old, new)),
        Change("model", _model(old), _model(new), _model_note(old, new)),
        Change("verdict", _verdict(old), _verdict(new)),
    )
    return found + _measured(None if before is None else before.report, after.report)


def _map(version: Version | None) -> str:
    return MISSING if version is None else f"version {version.number}, {version.method}"


def _input(version: Version | None) -> str:
    return MISSING if version is None else f"{version.kind} of {version.classes} classes"


def _model(version: Version | None) -> str:
    return MISSING if version is None else version.model or "not specified"


def _verdict(version: Version | None) -> str:
    return MISSING if version is None else (version.verdict or "not judged").replace("_", " ")


def _classes(version: Version | None) -> str:
    if version is None:
        return MISSING
    return "the model's" if _keeps_class(version) else "may differ from the model's"


def _keeps_class(version: Version) -> bool:
    """Return whether a map keeps the predicted class, judging by its method, winner or base."""
    keeps = keeps_class(version.method)
    if keeps is None:  # str: fit_info of registered maps is untrusted
        named = (version.fit_info.get(name) for name in ("winner", "base"))
        keeps = next((one for one in map(keeps_class, map(str, named)) if one is not None), None)
    return keeps is True


def _input_note(old: Version | None, new: Version) -> str:
    if old is None or _input(old) == _input(new):
        return ""
    return "calls that still send the current input will be rejected"


def _classes_note(old: Version | None, new: Version) -> str:
    is_kept = _keeps_class(new) and (old is None or _keeps_class(old))
    return "" if is_kept else "the predicted class of some rows may change"


def _model_note(old: Version | None, new: Version) -> str:
    if old is None or old.model == new.model:
        return ""
    return "calls that specify another model will be rejected (model_mismatch)"


def _measured(old: Report | None, new: Report | None) -> tuple[Change, ...]:
    if new is None:
        return ()
    rows = "measured on different rows" if old is not None and not _same_rows(old, new) else ""
    was, will_be = _confidence(old), _confidence(new)
    note = ""
    if was is not None and will_be is not None and percent(was) != percent(will_be) and not rows:
        note = f"overall, {'more' if will_be > was else 'fewer'} rows exceed a given threshold"
    return (Change("mean confidence", percent(was), percent(will_be), note or rows),)


def _confidence(report: Report | None) -> float | None:
    """Return the mean confidence over all bins, weighted by their row counts."""
    held = [] if report is None else [one for one in report.equal_width if one.count]
    rows = sum(one.count for one in held)
    return sum(one.count * (one.confidence or 0.0) for one in held) / rows if rows else None


def _same_rows(old: Report, new: Report) -> bool:
    """Return whether both reports appear to cover the same rows.

    The comparison uses the descriptions of the rows and the metrics before calibration.
    """
    then, now = (one.before and one.before.metrics for one in (old, new))
    return (old.n, old.k, old.judged_on, then) == (new.n, new.k, new.judged_on, now)
