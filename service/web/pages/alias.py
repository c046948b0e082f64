"""Alias pages: history, promotion and rollback."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from fastapi import Query, Request, Response

from calibrators.comparison.key_figures import Figure, deciding_figures
from service.access.permissions import Principal, Scope
from service.comparisons.promotion import measured_change
from service.comparisons.promotion import promote as promote_version
from service.comparisons.promotion import roll_back as roll_back_alias
from service.comparisons.service import Pair
from service.dependencies import Joined, Parts
from service.errors import Invalid
from service.http.callers import Caller, needs
from service.http.paging import Cursor, number_place, paged
from service.names import check_alias
from service.registry import service as versions
from service.registry.aliases import service as aliases
from service.registry.aliases.service import LONGEST_REASON, AccuracyChange
from service.registry.service import JudgedVersion
from service.storage.records import PRODUCTION, Alias, Version
from service.storage.store import Store
from service.web.components.forms import Form, Sent
from service.web.components.layout import lead_to, page, pages
from service.web.components.promotion_preview import Change, changes
from service.web.pages.compare import Measured, measure

router = pages()

MOVES = 50
CALIBRATOR = "/calibrators/{name}"

AliasName = Annotated[str, Query(max_length=64)]
Number = Annotated[int | None, Query(ge=1, lt=2**31)]


@dataclass(frozen=True)
class PromotionPlan:
    """A planned move of an alias, and what it changes for callers."""

    name: str
    alias: str
    there: Alias | None
    before: JudgedVersion | None
    after: JudgedVersion
    accuracy: AccuracyChange | None = None

    @classmethod
    def of(
        cls,
        store: Store,
        caller: Principal,
        name: str,
        alias: str,
        there: Alias | None,
        number: int,
    ) -> PromotionPlan:
        """Return the plan to point an alias at a version."""
        after = versions.judged(store, caller, name, number)
        before = None
        if there is not None:
            before = versions.judged(store, caller, name, there.version)
        return cls(name, alias, there, before, after)

    def measured(self, joined: Parts, caller: Principal) -> PromotionPlan:
        """Return the plan with the measured change in accuracy from the current version, if any."""
        before = None if self.before is None else self.before.version
        found = measured_change(joined.blobs, caller, self.name, before, self.after.version)
        return replace(self, accuracy=found)

    @property
    def chosen(self) -> Version:
        """The version that the alias would point at."""
        return self.after.version

    @property
    def pair(self) -> Pair | None:
        """Both versions, if they differ."""
        if self.before is None or self.before.version.number == self.chosen.number:
            return None
        return Pair(self.name, self.before.version, self.chosen)

    @property
    def objection(self) -> str | None:
        """Reason why the move requires force; None if it does not."""
        before = None if self.before is None else self.before.version
        return aliases.objection(self.after, before, self.alias, self.accuracy)

    @property
    def changes(self) -> tuple[Change, ...]:
        """The changes for callers."""
        return changes(self.before, self.after)

    @property
    def figures(self) -> list[Figure]:
        """The figures that compare the version with the uncalibrated model."""
        report = self.after.report
        return [] if report is None or report.before is None else deciding_figures(report)

    @property
    def revision(self) -> int:
        """The revision that the alias must still have when the plan is carried out."""
        return 0 if self.there is None else self.there.revision


@router.api_route(f"{CALIBRATOR}/aliases/{{alias}}", methods=["GET", "HEAD"])
def alias_page(
    request: Request, joined: Joined, caller: Caller, name: str, alias: str, cursor: Cursor = None
) -> Response:
    """Show the moves of an alias, newest first."""
    before = number_place(cursor or None)
    with joined.database.read() as store:
        there = aliases.find(store, caller, name, alias)
        found = store.aliases.history(there.calibrator, alias, MOVES + 1, before)
        newest = store.aliases.history(there.calibrator, alias, aliases.HISTORY)
    listed = paged(found, MOVES, lambda one: one, lambda one: one.revision)
    values = {
        "name": name,
        "alias": there,
        "moves": listed.items,
        "can_roll_back": aliases.can_roll_back(newest),
        "next": listed.next,
        "is_first_page": before is None,
    }
    return page(request, "alias.html", values)


@router.api_route(
    f"{CALIBRATOR}/promote", methods=["GET", "HEAD"], dependencies=needs(Scope.PROMOTE)
)
def promote_page(
    request: Request,
    joined: Joined,
    caller: Caller,
    name: str,
    version: Number = None,
    alias: AliasName = PRODUCTION,
) -> Response:
    """Show the form for an alias and a version; with both, also show what would change."""
    with joined.database.read() as store:
        calibrator = versions.calibrator_named(store, caller, name)
        known = store.aliases.all_of(calibrator.id)
        there = store.aliases.get(calibrator.id, check_alias(alias))
        plan = PromotionPlan.of(store, caller, name, alias, there, version) if version else None
    if plan is not None and request.method == "GET":
        plan = plan.measured(joined, caller)
    values = {
        "name": name,
        "alias": alias,
        "known": known,
        "newest": calibrator.last_version,
        "plan": plan,
        "against": _against(joined, caller, plan),
        "seconds": joined.settings.refresh_seconds,
        "longest_reason": LONGEST_REASON,
    }
    return page(request, "promote.html", values)


@router.post(f"{CALIBRATOR}/promote", dependencies=needs(Scope.PROMOTE))
def promote(request: Request, joined: Joined, caller: Caller, name: str, form: Sent) -> Response:
    """Point the alias at the version, unless it has moved since the page was shown."""
    with joined.database.read() as store:
        versions.calibrator_named(store, caller, name)  # 404 before form errors
    moved = promote_version(
        joined.database,
        joined.blobs,
        joined.quota,
        caller,
        name,
        form.text("alias"),
        version=_whole(form, "version"),
        reason=form.text("reason"),
        force=form.text("force") == "yes",
        expected=_whole(form, "expected"),
    )
    joined.follow_if_possible(caller, name, moved.alias)
    return lead_to(request, f"/calibrators/{name}")


@router.api_route(
    f"{CALIBRATOR}/aliases/{{alias}}/rollback",
    methods=["GET", "HEAD"],
    dependencies=needs(Scope.PROMOTE),
)
def rollback_page(
    request: Request, joined: Joined, caller: Caller, name: str, alias: str
) -> Response:
    """Show what a rollback would change."""
    with joined.database.read() as store:
        plan = _rollback(store, caller, name, alias)
    values = {
        "name": name,
        "alias": alias,
        "plan": plan,
        "against": _against(joined, caller, plan) if request.method == "GET" else None,
        "seconds": joined.settings.refresh_seconds,
        "longest_reason": LONGEST_REASON,
    }
    return page(request, "rollback.html", values)


@router.post(f"{CALIBRATOR}/aliases/{{alias}}/rollback", dependencies=needs(Scope.PROMOTE))
def roll_back(
    request: Request, joined: Joined, caller: Caller, name: str, alias: str, form: Sent
) -> Response:
    """Undo the last move, unless the alias has moved again since the page was shown."""
    with joined.database.read() as store:
        aliases.find(store, caller, name, alias)  # 404 before form errors
    moved = roll_back_alias(
        joined.database,
        joined.quota,
        caller,
        name,
        alias,
        reason=form.text("reason"),
        expected=_whole(form, "expected"),
    )
    joined.follow_if_possible(caller, name, moved)
    return lead_to(request, f"/calibrators/{name}")


def _against(joined: Parts, caller: Principal, plan: PromotionPlan | None) -> Measured | None:
    """Return the state of the comparison of both versions; None without common judged rows."""
    pair = None if plan is None else plan.pair
    return measure(joined, caller, pair) if pair is not None and pair.has_judged_rows else None


def _rollback(store: Store, caller: Principal, name: str, alias: str) -> PromotionPlan:
    there = aliases.find(store, caller, name, alias)
    number = aliases.rollback_target(store, caller, name, there).number
    return PromotionPlan.of(store, caller, name, alias, there, number)


def _whole(form: Form, name: str) -> int:
    found = form.text(name)
    if not (found.isascii() and found.isdigit() and len(found) < 10):
        raise Invalid("invalid_request", f"{name} must be a non-negative integer")
    return int(found)
