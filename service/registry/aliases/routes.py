"""Routes for aliases: move with compare-and-set, history, rollback."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import APIRouter, Header, Response

from service.access.permissions import Scope
from service.comparisons.promotion import promote, roll_back
from service.dependencies import Joined
from service.errors import Invalid, Stale
from service.http import openapi
from service.http.callers import Caller, needs
from service.http.paging import Cursor, Limit, Page, number_place, paged
from service.http.strict_route import StrictRoute
from service.registry.aliases import service as aliases
from service.registry.aliases.schemas import AliasOut, MoveIn, MoveOut, RollbackIn

router = APIRouter(
    prefix="/v1/calibrators/{name}/aliases/{alias}", tags=["aliases"], route_class=StrictRoute
)

REVISION = re.compile(r'"(\d{1,9})"')

IfMatch = Annotated[
    str | None, Header(max_length=100, description="ETag of the alias; 412 if it has changed")
]
IfNoneMatch = Annotated[
    str | None, Header(max_length=100, description="`*`: 412 if the alias already exists")
]


@router.get("", summary="Get an alias")
def get_alias(
    response: Response,
    joined: Joined,
    caller: Caller,
    name: openapi.Name,
    alias: openapi.Alias,
) -> AliasOut:
    """Return the version that an alias points at; send its ETag as `If-Match` to move it safely."""
    with joined.database.read() as store:
        found = aliases.find(store, caller, name, alias)
    response.headers["ETag"] = f'"{found.revision}"'
    return AliasOut.of(found)


@router.put(
    "",
    summary="Point an alias at a version",
    dependencies=needs(Scope.PROMOTE),
    responses=openapi.errors(
        {
            409: "The version was judged worse or at chance, could not be judged, takes different "
            "input from the version that the alias points at, or is measurably less accurate: "
            "needs_force",
            412: "The alias has moved in the meantime: alias_has_moved",
        }
    ),
)
def move_alias(
    response: Response,
    joined: Joined,
    caller: Caller,
    name: openapi.Name,
    alias: openapi.Alias,
    body: MoveIn,
    if_match: IfMatch = None,
    if_none_match: IfNoneMatch = None,
) -> AliasOut:
    """Point an alias at a version.

    A version with the verdict `worse`, `insufficient_data` or `at_chance` needs `force` and a
    `reason`. So does a version that is measurably less accurate than the uncalibrated model or, on
    the rows that both were judged on, than the current version. For a `trade_off`, the response
    contains a `warning`.
    """
    moved = promote(
        joined.database,
        joined.blobs,
        joined.quota,
        caller,
        name,
        alias,
        version=body.version,
        reason=body.reason,
        force=body.force,
        expected=_expected(if_match, if_none_match),
        must_exist=if_match == "*",
    )
    joined.follow_if_possible(caller, name, moved.alias)
    response.headers["ETag"] = f'"{moved.alias.revision}"'
    return AliasOut.of(moved.alias, moved.warning)


@router.get("/history", summary="List the moves of an alias, newest first")
def alias_history(
    joined: Joined,
    caller: Caller,
    name: openapi.Name,
    alias: openapi.Alias,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[MoveOut]:
    """List the moves of an alias: who made them, when, from and to which version, and why."""
    with joined.database.read() as store:
        there = aliases.find(store, caller, name, alias)
        before = number_place(cursor)
        found = store.aliases.history(there.calibrator, there.name, limit + 1, before)
    return paged(found, limit, MoveOut.of, lambda move: move.revision)


@router.post("/rollback", summary="Roll back an alias", dependencies=needs(Scope.PROMOTE))
def roll_back_alias(
    response: Response,
    joined: Joined,
    caller: Caller,
    name: openapi.Name,
    alias: openapi.Alias,
    body: RollbackIn | None = None,
    if_match: IfMatch = None,
) -> AliasOut:
    """Undo the last move; another call undoes the one before it. 409 if none is left."""
    moved = roll_back(
        joined.database,
        joined.quota,
        caller,
        name,
        alias,
        reason="" if body is None else body.reason,
        expected=_expected(if_match, None),
    )
    joined.follow_if_possible(caller, name, moved)
    response.headers["ETag"] = f'"{moved.revision}"'
    return AliasOut.of(moved)


def _expected(if_match: str | None, if_none_match: str | None) -> int | None:
    """Return the revision that the caller expects: 0 for no alias, None for any revision."""
    if if_none_match is not None:
        if if_none_match.strip() != "*" or if_match is not None:
            raise Invalid("bad_condition", "send If-Match with an ETag, or If-None-Match: *")
        return 0
    if if_match is None or if_match.strip() == "*":
        return None
    found = REVISION.fullmatch(if_match.strip())
    if found is None:
        raise Stale("alias_has_moved", "this If-Match is not the ETag of an alias")
    return int(found[1])
