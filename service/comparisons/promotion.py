"""Promote a version, unless it is less accurate than the one that the alias points at."""

from __future__ import annotations

from calibrators import CalibrationError
from calibrators.comparison.compare import accuracy_change
from service.access.permissions import Principal
from service.access.quota import Quota
from service.comparisons.service import Pair, judged_rows
from service.errors import Stale
from service.names import check_alias
from service.registry import service as versions
from service.registry.aliases import service as aliases
from service.registry.aliases.service import AccuracyChange, Moved
from service.storage.blobs import Blobs
from service.storage.database import Database
from service.storage.records import Alias, Version
from service.storage.store import Store

TRIES = 5


def promote(
    database: Database,
    blobs: Blobs,
    quota: Quota,
    principal: Principal,
    name: str,
    alias: str,
    *,
    version: int,
    reason: str = "",
    force: bool = False,
    expected: int | None = None,
    must_exist: bool = False,
) -> Moved:
    """Point an alias at a version; see `aliases.move`.

    The judged rows of both versions are read outside the transaction. If the alias moves in the
    meantime, the comparison is repeated.
    """
    check_alias(alias)
    for _ in range(TRIES):
        with database.read() as store:
            quota.check(store, principal.workspace, len(reason.encode()), is_promotion=True)
            chosen = versions.find(store, principal, name, version)
            before = _pointed_at(store, chosen, alias)
        change = measured_change(blobs, principal, name, before, chosen)
        with database.write() as store:
            if must_exist and not aliases.exists(store, principal, name, alias):
                raise Stale("alias_has_moved", f"{name} has no alias {alias!r} yet")
            if _pointed_at(store, chosen, alias) != before:
                continue
            return aliases.move(
                store,
                principal,
                name,
                alias,
                version=version,
                reason=reason,
                force=force,
                expected=expected,
                change=change,
            )
    raise Stale("alias_has_moved", f"other callers keep moving {alias!r}: try again")


def measured_change(
    blobs: Blobs, principal: Principal, name: str, before: Version | None, after: Version
) -> AccuracyChange | None:
    """Return the change in accuracy on the common judged rows, or None if there are too few."""
    if before is None or before.number == after.number:
        return None
    if not Pair(name, before, after).has_judged_rows:
        return None
    first, second = (judged_rows(blobs, principal, one) for one in (before, after))
    if first is None or second is None:
        return None
    try:
        return AccuracyChange(before.number, accuracy_change(first, second))
    except CalibrationError:  # they have too few rows in common
        return None


def _pointed_at(store: Store, chosen: Version, alias: str) -> Version | None:
    there = store.aliases.get(chosen.calibrator, alias)
    return None if there is None else store.calibrators.version(chosen.calibrator, there.version)


def roll_back(
    database: Database,
    quota: Quota,
    principal: Principal,
    name: str,
    alias: str,
    *,
    reason: str = "",
    expected: int | None = None,
) -> Alias:
    """Undo the last move of an alias; see `aliases.roll_back`.

    Without a reason, this works even in a full workspace, because the bytes of a rollback were
    already counted when the alias was moved.
    """
    if reason:
        with database.read() as store:
            quota.check(store, principal.workspace, len(reason.encode()), is_promotion=True)
    with database.write() as store:
        return aliases.roll_back(store, principal, name, alias, reason=reason, expected=expected)
