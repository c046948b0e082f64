"""Move aliases and roll them back; every move is recorded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from calibrators import Report
from calibrators.methods.segmented import Segmented
from calibrators.metrics import Interval
from calibrators.registry import all_maps
from calibrators.report.verdict import NEEDS_FORCE, Verdict
from service.access.permissions import Principal
from service.errors import Conflict, Invalid, NotFound, Stale
from service.names import check_alias, is_readable
from service.registry.service import JudgedVersion, calibrator_named, judged, version_of
from service.storage.records import Alias, AliasMove, Version
from service.storage.store import Store

HISTORY = 1000
MAX_ALIASES = 100  # of a calibrator
LONGEST_REASON = 1000


class AccuracyChange(NamedTuple):
    """Change in accuracy from version ``against``, on rows that both versions were judged on."""

    against: int
    change: Interval


class Moved(NamedTuple):
    """An alias after a move, and a warning for the caller."""

    alias: Alias
    warning: str | None


def find(store: Store, principal: Principal, name: str, alias: str) -> Alias:
    """Return an alias of the caller's calibrator."""
    calibrator = calibrator_named(store, principal, name)
    found = store.aliases.get(calibrator.id, alias)
    if found is None:
        raise NotFound("no_such_alias", f"{name} has no alias {alias!r}")
    return found


def exists(store: Store, principal: Principal, name: str, alias: str) -> bool:
    """Return True if the calibrator has this alias."""
    calibrator = calibrator_named(store, principal, name)
    return store.aliases.get(calibrator.id, alias) is not None


def move(
    store: Store,
    principal: Principal,
    name: str,
    alias: str,
    *,
    version: int,
    reason: str = "",
    force: bool = False,
    expected: int | None = None,
    change: AccuracyChange | None = None,
) -> Moved:
    """Point an alias at a version.

    ``expected`` is the revision that the caller last read: 0 if there was no alias, None for any.
    ``force`` and a reason are required if the version was judged worse or at chance, could not be
    judged, takes different input from the current version, or is measurably less accurate.
    ``change`` is the change in accuracy on rows that both versions were judged on.
    """
    check_alias(alias)
    calibrator = calibrator_named(store, principal, name)
    chosen, report = judged(store, principal, name, version)
    there = store.aliases.get(calibrator.id, alias)
    _check_expected(there, expected, alias)
    before = None if there is None else store.calibrators.version(calibrator.id, there.version)
    refused = objection(JudgedVersion(chosen, report), before, alias, change)
    if refused is not None and not (force and reason.strip()):
        raise Conflict(
            "needs_force",
            f"version {version} {refused}: to point {alias!r} at it anyway, "
            "send force=true and a reason",
            verdict=chosen.verdict,
        )
    if there is not None and there.version == version:
        moved = there  # not recorded as a move: a rollback must undo the previous move
    else:
        if there is None:
            _check_count(store, chosen, name)
        moved = _move(store, principal, chosen, there, alias, reason, forced=refused is not None)
    warning = None
    if chosen.verdict == Verdict.TRADE_OFF:
        sentence = "" if report is None else report.verdict_sentence
        warning = f"version {version} is a trade-off: {sentence or Verdict.TRADE_OFF.meaning}"
    return Moved(moved, warning)


def roll_back(
    store: Store,
    principal: Principal,
    name: str,
    alias: str,
    *,
    reason: str = "",
    expected: int | None = None,
) -> Alias:
    """Undo the last move of an alias that has not been rolled back yet."""
    there = find(store, principal, name, alias)
    _check_expected(there, expected, alias)
    chosen = rollback_target(store, principal, name, there)
    return _move(store, principal, chosen, there, alias, reason, rollback=True)


def rollback_target(store: Store, principal: Principal, name: str, there: Alias) -> Version:
    """Return the version that an alias would point at after a rollback."""
    # ignores moves that other callers have committed in the meantime
    before = store.aliases.version_before(there, HISTORY)
    if before is None:
        raise Conflict(
            "nothing_to_roll_back", f"the alias {there.name!r} of {name} has no earlier version"
        )
    return version_of(store, calibrator_named(store, principal, name), before)


def can_roll_back(newest_first: list[AliasMove]) -> bool:
    """Return True if an alias with these moves can be rolled back."""
    return _before(newest_first) is not None


def _before(newest_first: list[AliasMove]) -> int | None:
    """Return the version before the last move that was not rolled back."""
    rolled_back = 0
    for one in newest_first:
        if one.rollback:
            rolled_back += 1
        elif rolled_back:
            rolled_back -= 1
        else:
            return one.from_version
    return None


def objection(
    chosen: JudgedVersion, before: Version | None, alias: str, change: AccuracyChange | None = None
) -> str | None:
    """Return why moving an alias from ``before`` to a version needs force; None if it does not."""
    found, version = [], chosen.version
    if before is not None and _input(version) != _input(before):
        found.append(
            f"takes {_input(version)}, but callers of {alias!r} send {_input(before)}, "
            f"which version {before.number} takes"
        )
    if before is not None and before.method == Segmented.name != version.method:
        found.append(
            f"takes no segments, but callers of {alias!r} may be sending them, because version "
            f"{before.number} takes them"
        )
    if before is not None and _needs_features(before) != _needs_features(version):
        words = ("needs features", "takes none")
        now, then = words if _needs_features(version) else words[::-1]
        found.append(f"{now}, but version {before.number}, which callers of {alias!r} use, {then}")
    if version.verdict is None:
        found.append("was not judged: it has no report, or one without a verdict")
    elif version.verdict in NEEDS_FORCE:
        meaning = Verdict[version.verdict.upper()].meaning
        found.append(f"was judged {version.verdict} ({meaning})")
    return ", and ".join([*found, *_losses(chosen.report, change)]) or None


def _losses(report: Report | None, change: AccuracyChange | None) -> Iterator[str]:
    """Yield measurable losses of accuracy, compared with the model and the previous version."""
    own = None if report is None else report.change.get("accuracy")
    if report is not None and own is not None and "accuracy" in report.lost:
        after = report.metrics["accuracy"] or 0.0
        figures = f"{100 * (after - own.value):.1f} % to {100 * after:.1f} %"
        yield f"lowers the model's accuracy from {figures} ({_points(own)})"
    if change is not None and change.change.high < 0:
        yield (
            f"is less accurate than version {change.against} on rows that both were judged on "
            f"({_points(change.change)})"
        )


def _points(change: Interval) -> str:
    """Return a change in percentage points, with its interval."""
    low, value, high = (f"{100 * one:+.1f}" for one in (change.low, change.value, change.high))
    return f"{value} points, {100 * change.level:g} % interval {low} to {high}"


def _needs_features(version: Version) -> bool:
    map_type = all_maps().get(version.method)
    return map_type is not None and map_type.has_features


def _input(version: Version) -> str:
    return f"{version.kind} of {version.classes} classes"


def check_reason(reason: str) -> str:
    """Return the reason; raise Invalid if it is too long or contains control characters."""
    if len(reason) > LONGEST_REASON or not is_readable(reason, lines=True):
        raise Invalid(
            "bad_reason",
            f"a reason must have at most {LONGEST_REASON} characters, and no control characters "
            f"except newlines and tabs, got {len(reason)} characters",
        )
    return reason


def _check_count(store: Store, version: Version, name: str) -> None:
    """Raise Conflict if a calibrator has the maximum number of aliases."""
    store.calibrators.lock(version.calibrator)  # otherwise concurrent calls could exceed it
    if store.aliases.count(version.calibrator) >= MAX_ALIASES:
        raise Conflict(
            "too_many_aliases",
            f"{name} already has {MAX_ALIASES} aliases, the maximum: move one of them, or refer to "
            "the version by its number",
            limit=MAX_ALIASES,
        )


def _check_expected(there: Alias | None, expected: int | None, alias: str) -> None:
    revision = 0 if there is None else there.revision
    if expected is not None and expected != revision:
        now = "there is no such alias" if there is None else f"it points at version {there.version}"
        raise Stale(
            "alias_has_moved", f"{alias!r} has changed since you read it: {now}", revision=revision
        )


def _move(
    store: Store,
    principal: Principal,
    version: Version,
    there: Alias | None,
    alias: str,
    reason: str,
    *,
    forced: bool = False,
    rollback: bool = False,
) -> Alias:
    moved = store.aliases.move(
        version.calibrator,
        alias,
        version=version.number,
        expected=there,
        by=principal.actor,
        reason=check_reason(reason),
        forced=forced,
        rollback=rollback,
    )
    if moved is None:
        raise Stale(
            "alias_has_moved", f"{alias!r} was moved by another caller: read it and try again"
        )
    return moved
