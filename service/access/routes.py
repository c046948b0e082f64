"""Routes for keys: create, list, rotate, revoke."""

from __future__ import annotations

from fastapi import APIRouter, Response

from service.access import keys
from service.access.permissions import Scope
from service.access.schemas import KeyIn, KeyOut, NewKeyOut, RotateIn
from service.dependencies import Joined
from service.http import openapi
from service.http.callers import Caller, needs
from service.http.paging import Cursor, Limit, Page, json_response, paged, time_place
from service.http.strict_route import StrictRoute

router = APIRouter(
    prefix="/v1/keys", tags=["keys"], dependencies=needs(Scope.ADMIN), route_class=StrictRoute
)


@router.get("", summary="List keys, newest first", response_model=Page[KeyOut])
def list_keys(joined: Joined, caller: Caller, limit: Limit = 50, cursor: Cursor = None) -> Response:
    """List all keys, including revoked and expired ones, without their secrets."""
    after = time_place(cursor)
    with joined.database.read() as store:
        found = store.keys.page(caller.workspace, limit + 1, after)
    return json_response(paged(found, limit, KeyOut.of, lambda key: (key.created_at, key.id)))


@router.post("", status_code=201, summary="Create a key")
def create_key(joined: Joined, caller: Caller, body: KeyIn) -> NewKeyOut:
    """Create a key and show its token once; only its hash is stored.

    Once the first key exists, every request needs a key.
    """
    with joined.database.write() as store:
        scopes = [Scope(one) for one in body.scopes]
        new = keys.create(store, caller.workspace, name=body.name, scopes=scopes, days=body.days)
    joined.refresh_keys_if_possible()
    return NewKeyOut.of(new)


@router.delete("/{id}", summary="Revoke a key")
def revoke_key(joined: Joined, caller: Caller, id: openapi.KeyId) -> KeyOut:
    """Revoke a key, immediately in this process and within seconds in others."""
    with joined.database.write() as store:
        ended = keys.revoke(store, caller.workspace, id)
    joined.refresh_keys_if_possible()
    return KeyOut.of(ended)


@router.post("/{id}/rotate", status_code=201, summary="Replace a key")
def rotate_key(
    joined: Joined, caller: Caller, id: openapi.KeyId, body: RotateIn | None = None
) -> NewKeyOut:
    """Create a key with the same name and scopes; the old one stays valid for the grace period."""
    with joined.database.write() as store:
        grace = (body or RotateIn()).grace_hours
        new = keys.rotate(store, caller.workspace, id, grace_hours=grace)
    joined.refresh_keys_if_possible()
    return NewKeyOut.of(new)
