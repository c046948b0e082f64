"""The page that creates, rotates and revokes keys."""

from __future__ import annotations

import hashlib
import secrets
import time
from dataclasses import dataclass

from fastapi import Request, Response

from service.access import keys
from service.access.keys import (
    LONGEST_NAME,
    MAX_DAYS,
    MAX_GRACE_HOURS,
    NewKey,
    actor_of,
    is_valid,
)
from service.access.permissions import Principal, Scope
from service.dependencies import Joined, Parts
from service.errors import Conflict, Invalid
from service.http.callers import Caller, needs
from service.http.paging import Cursor, paged, time_place
from service.storage.records import Key
from service.storage.repository import After
from service.storage.store import Store
from service.web.components.forms import Form, Sent
from service.web.components.layout import lead_to, page, pages

router = pages()

PAGE = 100
GRACE_HOURS = 24.0
LONGEST_ONCE = 64
MEANINGS = {
    Scope.PREDICT: "apply maps over HTTP",
    Scope.FIT: "upload datasets, start and cancel fits, register versions, write training runs",
    Scope.PROMOTE: "move aliases, edit tags and descriptions",
    Scope.ADMIN: "all of the above, manage keys, read metrics",
}


@dataclass(frozen=True)
class Listed:
    """A key as shown on the page."""

    key: Key
    state: str
    is_valid: bool
    is_own: bool

    @classmethod
    def of(cls, key: Key, caller: Principal) -> Listed:
        """Build the row of a key, with its current state."""
        works = is_valid(key, time.time())
        ended = "revoked" if key.revoked_at is not None else "expired"
        return cls(key, "valid" if works else ended, works, actor_of(key) == caller.actor)


@router.api_route("/keys", methods=["GET", "HEAD"], dependencies=needs(Scope.ADMIN))
def keys_page(request: Request, joined: Joined, caller: Caller, cursor: Cursor = None) -> Response:
    """Show the keys of the caller's workspace."""
    return _page(request, joined, caller, after=time_place(cursor or None))


@router.post("/keys", dependencies=needs(Scope.ADMIN))
def create_key(request: Request, joined: Joined, caller: Caller, form: Sent) -> Response:
    """Create a key; only this response contains its token."""
    is_first = joined.keys.is_empty
    scopes = form.chosen("scope")
    if unknown := set(scopes) - set(Scope):
        raise Invalid("invalid_request", f"there is no scope {min(unknown)[:40]!r}")
    with joined.database.write() as store:
        _check_first(store, caller, form)
        made = keys.create(
            store,
            caller.workspace,
            name=form.text("name"),
            scopes=[Scope(one) for one in scopes],
            days=form.number("days", "days"),
        )
    joined.refresh_keys_if_possible()
    return _page(request, joined, caller, made, is_first=is_first)


@router.post("/keys/{id}/revoke", dependencies=needs(Scope.ADMIN))
def revoke_key(request: Request, joined: Joined, caller: Caller, id: str) -> Response:
    """Revoke a key."""
    with joined.database.write() as store:
        keys.revoke(store, caller.workspace, id)
    joined.refresh_keys_if_possible()
    return lead_to(request, "/keys")


@router.post("/keys/{id}/rotate", dependencies=needs(Scope.ADMIN))
def rotate_key(request: Request, joined: Joined, caller: Caller, id: str, form: Sent) -> Response:
    """Create a replacement for a key; the old key stays valid for some hours."""
    hours = form.number("grace_hours", "hours")
    with joined.database.write() as store:
        _check_first(store, caller, form)
        grace = GRACE_HOURS if hours is None else hours
        made = keys.rotate(store, caller.workspace, id, grace_hours=grace)
    joined.refresh_keys_if_possible()
    return _page(request, joined, caller, made)


def _check_first(store: Store, caller: Principal, form: Form) -> None:
    """Raise Conflict if this form was sent before, so that a reload does not create another key."""
    once = form.text("once")[:LONGEST_ONCE]
    digest = hashlib.sha256(once.encode()).hexdigest()
    if once and not store.idempotency.keep(caller.workspace, f"form {once}", digest, {}):
        raise Conflict(
            "sent_before",
            "this form was already submitted, and its key was shown then: if you lost the key, "
            "revoke it and create another",
        )


def _page(
    request: Request,
    joined: Parts,
    caller: Principal,
    made: NewKey | None = None,
    *,
    is_first: bool = False,
    after: After | None = None,
) -> Response:
    with joined.database.read() as store:
        found = store.keys.page(caller.workspace, PAGE + 1, after)
    listed = paged(
        found, PAGE, lambda key: Listed.of(key, caller), lambda key: (key.created_at, key.id)
    )
    values = {
        "keys": sorted(listed.items, key=lambda one: not one.is_valid),
        "next": listed.next,
        "is_first_page": after is None,
        "made": made,
        "once": secrets.token_urlsafe(16),
        "is_first": is_first,
        "scopes": MEANINGS,
        "longest_name": LONGEST_NAME,
        "most_days": MAX_DAYS,
        "grace_hours": GRACE_HOURS,
        "most_grace_hours": MAX_GRACE_HOURS,
    }
    return page(request, "keys.html", values, status=200 if made is None else 201)
