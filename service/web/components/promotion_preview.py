"""What it means for callers when an alias moves from one version to another."""

from __future__ import annotations

from typing import NamedTuple

from calibrators import Report
from calibrators.registry import keeps_class
from service.registry.service import JudgedVersion
from service.storage.records import Version
from service.web.components.templating import MISSING, percent


class Change(NamedTuple):
    """One thing, as it is and as it will be; ``note`` is what a caller should know."""

    what: str
    before: str
    after: str
    note: str = ""


def changes(before: JudgedVersion | None, after: JudgedVersion) -> tuple[Change, ...]:
    """All that is known to change, or not to; ``before`` is None for a new alias."""
    old, new = None if before is None else before.version, after.version
    found = (
        Change("map", _map(old), _map(new)),
        Change("takes", _input(old), _input(new), _input_note(old, new)),
        Change("predicted class", _classes(old), _classes(new), _classes_note(old, new)),
        Change("fitted for the model", _model(old), _model(new), _model_note(old, new)),
        Change("verdict", _verdict(old), _verdict(new)),
    )
    return found + _measured(None if before is None else before.report, after.report)


def _map(version: Version | None) -> str:
    return MISSING if version is None else f"version {version.number}, {version.method}"


def _input(version: Version | None) -> str:
    return MISSING if version is None else f"{version.kind} of {version.classes} classes"


def _model(version: Version | None) -> str:
    return MISSING if version is None else version.model or "none named"


def _verdict(version: Version | None) -> str:
    return MISSING if version is None else (version.verdict or "not judged").replace("_", " ")


def _classes(version: Version | None) -> str:
    if version is None:
        return MISSING
    return "the model's" if _keeps_class(version) else "may differ from the model's"


def _keeps_class(version: Version) -> bool:
    """Whether a map never changes the predicted class; that of auto's winner, of segments' base."""
    kept = keeps_class(version.method)
    if kept is None:  # what a map that was registered says of itself may be anything
        named = (version.fit_info.get(name) for name in ("winner", "base"))
        kept = next((one for one in map(keeps_class, map(str, named)) if one is not None), None)
    return kept is True


def _input_note(old: Version | None, new: Version) -> str:
    if old is None or _input(old) == _input(new):
        return ""
    return "whoever goes on sending what they send now is refused"


def _classes_note(old: Version | None, new: Version) -> str:
    is_kept = _keeps_class(new) and (old is None or _keeps_class(old))
    return "" if is_kept else "the predicted class of some rows may change"


def _model_note(old: Version | None, new: Version) -> str:
    if old is None or old.model == new.model:
        return ""
    return "callers that name another model than the new one are refused (model_mismatch)"


def _measured(old: Report | None, new: Report | None) -> tuple[Change, ...]:
    if new is None:
        return ()
    rows = "measured on other rows" if old is not None and not _same_rows(old, new) else ""
    was, will_be = _confidence(old), _confidence(new)
    note = ""
    if was is not None and will_be is not None and percent(was) != percent(will_be) and not rows:
        note = f"on the whole, a threshold lets {'more' if will_be > was else 'fewer'} rows pass"
    return (Change("mean confidence", percent(was), percent(will_be), note or rows),)


def _confidence(report: Report | None) -> float | None:
    """The mean over all bins, each weighted by its rows."""
    held = [] if report is None else [one for one in report.equal_width if one.count]
    rows = sum(one.count for one in held)
    return sum(one.count * (one.confidence or 0.0) for one in held) / rows if rows else None


def _same_rows(old: Report, new: Report) -> bool:
    """Whether both were judged on rows that are described alike and had the same figures before."""
    then, now = (one.before and one.before.metrics for one in (old, new))
    return (old.n, old.k, old.judged_on, then) == (new.n, new.k, new.judged_on, now)
