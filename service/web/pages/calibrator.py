"""The page of a calibrator: versions, aliases and snippets."""

from __future__ import annotations

from typing import NamedTuple

from fastapi import Request, Response

from service.dependencies import Joined
from service.http.callers import Caller
from service.http.paging import Cursor, number_place, paged
from service.registry import service as versions
from service.registry.aliases.service import can_roll_back
from service.storage.records import PRODUCTION, Alias, AliasMove
from service.web.components.ece_chart import chart_scale, ece_chart
from service.web.components.layout import page, pages
from service.web.components.snippets import snippets
from service.web.queries import VersionLine

router = pages()

VERSIONS = 25
MOVES = 500


class AliasRow(NamedTuple):
    """An alias, its last move, and whether that can be rolled back."""

    alias: Alias
    move: AliasMove | None
    can_roll_back: bool

    @classmethod
    def of(cls, alias: Alias, newest_first: list[AliasMove]) -> AliasRow:
        """Build the row of an alias from its latest moves; older moves may be left out."""
        move = newest_first[0] if newest_first else None
        return cls(alias, move, can_roll_back(newest_first))


@router.api_route("/calibrators/{name}", methods=["GET", "HEAD"])
def calibrator_page(
    request: Request, joined: Joined, caller: Caller, name: str, cursor: Cursor = None
) -> Response:
    """Show the versions, newest first, and the aliases."""
    before = number_place(cursor or None)
    with joined.database.read() as store:
        calibrator = versions.calibrator_named(store, caller, name)
        aliases = store.aliases.all_of(calibrator.id)
        moves = store.aliases.moves(calibrator.id, MOVES)
        found = store.overview.versions(calibrator.id, VERSIONS + 1, before)
        called = _called(aliases, calibrator.last_version)
        shown = store.calibrators.version(calibrator.id, called[1]) if called else None
    listed = paged(found, VERSIONS, lambda one: one, lambda one: one.number)
    scale = chart_scale(listed.items)
    values = {
        "name": name,
        "aliases": [AliasRow.of(one, moves.get(one.name, [])) for one in aliases],
        "pointing": _pointing(aliases),
        "lines": [(one, ece_chart(one, scale)) for one in listed.items],
        "compared": _compared(listed.items, aliases),
        "snippets": ()
        if called is None or shown is None
        else snippets(request, name, called[0], shown, needs_key=not joined.keys.is_empty),
        "next": listed.next,
        "is_first_page": before is None,
    }
    return page(request, "calibrator.html", values)


def _called(aliases: list[Alias], last_version: int) -> tuple[str, int] | None:
    """Return the reference that snippets use, and its version; None if there are no versions."""
    for one in aliases:
        if one.name == PRODUCTION:
            return PRODUCTION, one.version
    return (str(last_version), last_version) if last_version else None


def _pointing(aliases: list[Alias]) -> dict[int, list[str]]:
    """Return the names of the aliases that point at each version."""
    found: dict[int, list[str]] = {}
    for one in aliases:
        found.setdefault(one.version, []).append(one.name)
    return found


def _compared(lines: list[VersionLine], aliases: list[Alias]) -> tuple[int | None, int | None]:
    """Return the default versions to compare: production, and the newest other version."""
    numbers = [one.number for one in lines]
    in_production = [one.version for one in aliases if one.name == PRODUCTION]
    others = [one for one in numbers if one not in in_production]
    first = next((one for one in [*in_production, *others[1:]] if one in numbers), None)
    return first, next(iter(others), None)
