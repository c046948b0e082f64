"""Aliases: the only thing that moves, and every move is recorded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from calibrators import Report
from calibrators.methods.segmented import Segmented
from calibrators.metrics import Interval
from calibrators.report.verdict import Verdict
from service.access.permissions import Principal
from service.errors import Conflict, Invalid, NotFound, Stale
from service.names import check_alias, is_readable
from service.registry.service import JudgedVersion, calibrator_named, judged, version_of
from service.storage.records import Alias, AliasMove, Version
from service.storage.store import Store

HISTORY = 1000
MOST_ALIASES = 100  # of a calibrator
LONGEST_REASON = 1000


class AccuracyChange(NamedTuple):
    """How the accuracy changes from the version ``against``, on rows that judged both."""

    against: int
    change: Interval


class Moved(NamedTuple):
    """An alias after a move, and what its mover should know."""

    alias: Alias
    warning: str | None


def find(store: Store, principal: Principal, name: str, alias: str) -> Alias:
    """Where an alias points."""
    calibrator = calibrator_named(store, principal, name)
    found = store.aliases.get(calibrator.id, alias)
    if found is None:
        raise NotFound("no_such_alias", f"{name} has no alias {alias!r}")
    return found


def exists(store: Store, principal: Principal, name: str, alias: str) -> bool:
    """Whether the calibrator has such an alias."""
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

    ``expected`` is the revision that the caller saw last: 0 for "there is none yet", None for
    whatever it is now. A version that was judged worse, could not be judged, takes other input
    than the one that the alias points at, or measurably loses accuracy needs ``force`` and a
    reason; ``change`` is that of the accuracy on rows that judged both.
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
            f"version {version} {refused}: to point {alias!r} at it all the same, "
            "send force=true and a reason",
            verdict=chosen.verdict,
        )
    if there is not None and there.version == version:
        moved = there  # a repeated call is no move: it must not hide the one before from a rollback
    else:
        if there is None:
            _check_count(store, chosen, name)
        moved = _move(store, principal, chosen, there, alias, reason, forced=refused is not None)
    warning = None
    if chosen.verdict == Verdict.TRADE_OFF:
        told = "" if report is None else report.verdict_sentence
        warning = f"version {version} is a trade-off: {told or Verdict.TRADE_OFF.meaning}"
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
    """Point an alias back at what it pointed at before its last move that still stands."""
    there = find(store, principal, name, alias)
    _check_expected(there, expected, alias)
    chosen = rollback_target(store, principal, name, there)
    return _move(store, principal, chosen, there, alias, reason, rollback=True)


def rollback_target(store: Store, principal: Principal, name: str, there: Alias) -> Version:
    """The version that a rollback of an alias would point it at."""
    # no move that somebody commits meanwhile
    before = store.aliases.version_before(there, HISTORY)
    if before is None:
        raise Conflict("nothing_to_roll_back", f"{there.name!r} of {name} has no earlier version")
    return version_of(store, calibrator_named(store, principal, name), before)


def can_roll_back(newest_first: list[AliasMove]) -> bool:
    """Whether there is a version to go back to, by the moves of an alias."""
    return _before(newest_first) is not None


def _before(newest_first: list[AliasMove]) -> int | None:
    """The version before the last standing move: a rollback takes back a move."""
    taken_back = 0
    for one in newest_first:
        if one.rollback:
            taken_back += 1
        elif taken_back:
            taken_back -= 1
        else:
            return one.from_version
    return None


def objection(
    chosen: JudgedVersion, before: Version | None, alias: str, change: AccuracyChange | None = None
) -> str | None:
    """Why it needs force to point an alias at a version, which was at ``before``; None if not."""
    found, version = [], chosen.version
    if before is not None and _input(version) != _input(before):
        found.append(
            f"takes {_input(version)}, but callers of {alias!r} send {_input(before)} now, as "
            f"version {before.number} takes them"
        )
    if before is not None and before.method == Segmented.name != version.method:
        found.append(
            f"takes no segments, which callers of {alias!r} may send now, as version "
            f"{before.number} takes them"
        )
    if version.verdict is None:
        found.append("was not judged: it has no report, or one without a verdict")
    elif version.verdict in (Verdict.WORSE, Verdict.INSUFFICIENT_DATA):
        meaning = Verdict[version.verdict.upper()].meaning
        found.append(f"was judged {version.verdict} ({meaning})")
    return ", and ".join([*found, *_losses(chosen.report, change)]) or None


def _losses(report: Report | None, change: AccuracyChange | None) -> Iterator[str]:
    """Yield what is measurably less accurate: than the model itself, than the version before."""
    own = None if report is None else report.change.get("accuracy")
    if report is not None and own is not None and "accuracy" in report.lost:
        after = report.metrics["accuracy"] or 0.0
        figures = f"{100 * (after - own.value):.1f} % to {100 * after:.1f} %"
        yield f"takes the model's accuracy from {figures} ({_points(own)})"
    if change is not None and change.change.high < 0:
        yield (
            f"is less accurate than version {change.against} on the rows that judged both "
            f"({_points(change.change)})"
        )


def _points(change: Interval) -> str:
    """Return a change of a share in percentage points, with its interval."""
    low, value, high = (f"{100 * one:+.1f}" for one in (change.low, change.value, change.high))
    return f"{value} points, {100 * change.level:g} % interval {low} to {high}"


def _input(version: Version) -> str:
    return f"{version.kind} of {version.classes} classes"


def check_reason(reason: str) -> str:
    """Return the reason; Invalid if it is too long or holds control characters."""
    if len(reason) > LONGEST_REASON or not is_readable(reason, lines=True):
        raise Invalid(
            "bad_reason",
            f"a reason takes at most {LONGEST_REASON} characters, newlines and tabs among them, "
            f"and no other control characters, got {len(reason)} characters",
        )
    return reason


def _check_count(store: Store, version: Version, name: str) -> None:
    """Raise Conflict if a calibrator has as many aliases as it may."""
    store.calibrators.lock(version.calibrator)  # else two could both be the last
    if store.aliases.count(version.calibrator) >= MOST_ALIASES:
        raise Conflict(
            "too_many_aliases",
            f"{name} has {MOST_ALIASES} aliases, and no more are taken: move one of them, or name "
            "a version by its number",
            limit=MOST_ALIASES,
        )


def _check_expected(there: Alias | None, expected: int | None, alias: str) -> None:
    revision = 0 if there is None else there.revision
    if expected is not None and expected != revision:
        now = "there is no such alias" if there is None else f"it is at version {there.version}"
        raise Stale(
            "alias_has_moved", f"{alias!r} is not as you last saw it: {now}", revision=revision
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
        raise Stale("alias_has_moved", f"{alias!r} was moved by someone else at the same time")
    return moved
