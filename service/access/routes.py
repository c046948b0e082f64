"""Routes of keys: make, list, rotate, revoke."""

from __future__ import annotations

from fastapi import APIRouter, Response

from service.access import keys
from service.access.permissions import Scope
from service.access.schemas import KeyIn, KeyOut, NewKeyOut, RotateIn
from service.dependencies import Joined
from service.http import openapi
from service.http.callers import Caller, needs
from service.http.paging import Cursor, Limit, Page, paged, time_place, written
from service.http.strict_route import StrictRoute

router = APIRouter(
    prefix="/v1/keys", tags=["keys"], dependencies=needs(Scope.ADMIN), route_class=StrictRoute
)


@router.get("", summary="List keys, newest first", response_model=Page[KeyOut])
def list_keys(joined: Joined, caller: Caller, limit: Limit = 50, cursor: Cursor = None) -> Response:
    """Also those that were revoked or have expired; never their secrets."""
    after = time_place(cursor)
    with joined.database.read() as store:
        found = store.keys.page(caller.workspace, limit + 1, after)
    return written(paged(found, limit, KeyOut.of, lambda key: (key.created_at, key.id)))


@router.post("", status_code=201, summary="Make a key")
def create_key(joined: Joined, caller: Caller, body: KeyIn) -> NewKeyOut:
    """The token is shown this once; only its hash is kept. The first key ends open access."""
    with joined.database.write() as store:
        scopes = [Scope(one) for one in body.scopes]
        made = keys.create(store, caller.workspace, name=body.name, scopes=scopes, days=body.days)
    joined.refresh_if_possible()
    return NewKeyOut.of(made)


@router.delete("/{id}", summary="Revoke a key")
def revoke_key(joined: Joined, caller: Caller, id: openapi.KeyId) -> KeyOut:
    """It ends here at once, and in other processes within seconds."""
    with joined.database.write() as store:
        ended = keys.revoke(store, caller.workspace, id)
    joined.refresh_if_possible()
    return KeyOut.of(ended)


@router.post("/{id}/rotate", status_code=201, summary="Replace a key")
def rotate_key(
    joined: Joined, caller: Caller, id: openapi.KeyId, body: RotateIn | None = None
) -> NewKeyOut:
    """A new key with the same name and scopes; the old one works on for the grace time."""
    with joined.database.write() as store:
        grace = (body or RotateIn()).grace_hours
        made = keys.rotate(store, caller.workspace, id, grace_hours=grace)
    joined.refresh_if_possible()
    return NewKeyOut.of(made)
