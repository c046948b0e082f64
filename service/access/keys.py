"""API keys (``cal_<id>_<secret>``): creation, rotation, revocation and in-memory checks."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import threading
import time
from collections.abc import Collection
from typing import NamedTuple

from service.access.permissions import Principal, Scope
from service.errors import Conflict, Invalid, NotFound, Unauthenticated, Unavailable
from service.names import check_name, is_readable
from service.settings import DAY, HOUR
from service.storage.database import Database
from service.storage.records import Key, Workspace
from service.storage.store import Store

TOKEN = re.compile(r"cal_([0-9a-f]{12})_([0-9a-f]{48})")
DEFAULT_WORKSPACE = "default"
DEFAULT_SCOPE = Scope.PREDICT
MAX_DAYS = 36500
MAX_GRACE_HOURS = 8760
LONGEST_NAME = 100
MAX_KEYS = 1000  # valid keys of a workspace; the same number of ended keys is kept


class NewKey(NamedTuple):
    """A new key with its token, which is shown only once."""

    key: Key
    token: str


def workspace_named(store: Store, name: str, *, make: bool = False) -> Workspace:
    """Return the workspace with this name; with ``make``, create it if it does not exist."""
    found = store.keys.workspace_named(name)
    if found is not None:
        return found
    if not make:
        raise NotFound("no_such_workspace", f"there is no workspace {name!r}")
    return store.keys.add_workspace(check_name(name, "a workspace"))


def create(
    store: Store, workspace: str, *, name: str, scopes: list[Scope], days: float | None = None
) -> NewKey:
    """Create a key for a workspace, valid for ``days`` days or, by default, until it is revoked.

    The first key ends open access. It must have the admin scope, because only admin keys can
    create others over HTTP.
    """
    if not scopes:
        raise Invalid("no_scopes", f"a key needs at least one scope: {', '.join(Scope)}")
    if not (0 < len(name) <= LONGEST_NAME and is_readable(name)):
        raise Invalid("bad_name", f"a key name must have 1 to {LONGEST_NAME} printable characters")
    if days is not None and not 0 < days <= MAX_DAYS:
        raise Invalid("bad_days", f"days must be greater than 0 and at most {MAX_DAYS}")
    if Scope.ADMIN not in scopes and store.keys.count() == 0:
        raise Conflict(
            "first_key_needs_admin",
            "the first key must have the admin scope: once a key exists, every request needs one, "
            "and only an admin key can create more",
        )
    _make_room(store, workspace)
    id, secret = secrets.token_hex(6), secrets.token_hex(24)
    key = store.keys.add(
        id=id,
        workspace=workspace,
        name=name,
        secret_sha256=_digest(secret),
        scopes=sorted(set(scopes)),
        expires_at=None if days is None else time.time() + days * DAY,
    )
    return NewKey(key, f"cal_{id}_{secret}")


def _make_room(store: Store, workspace: str) -> None:
    """Delete old revoked and expired keys; raise Conflict if too many are still valid."""
    store.keys.lock_workspace(workspace)  # otherwise two callers could both create the last one
    store.keys.forget_ended(workspace, MAX_KEYS)
    if store.keys.count_live(workspace) >= MAX_KEYS:
        raise Conflict(
            "too_many_keys",
            f"this workspace has {MAX_KEYS} valid keys, which is the limit: revoke unused ones",
            limit=MAX_KEYS,
        )


def find(store: Store, workspace: str, id: str) -> Key:
    """Return a key of the workspace; raise NotFound if it does not exist."""
    key = store.keys.get(workspace, id)
    if key is None:
        raise NotFound("no_such_key", "there is no such key in this workspace")
    return key


def revoke(store: Store, workspace: str, id: str, *, even_last: bool = False) -> Key:
    """Revoke a key; revoking it twice is not an error.

    The last valid admin key is only revoked with ``even_last``, because without an admin key nobody
    could manage the workspace over HTTP.
    """
    if not even_last and is_last_admin(store, workspace, id):
        raise Conflict(
            "last_admin_key",
            "this is the last valid key with the admin scope: create another one first, or revoke "
            "this one on the server with python -m service keys revoke",
        )
    find(store, workspace, id)
    store.keys.revoke(workspace, id)
    return find(store, workspace, id)


def is_last_admin(store: Store, workspace: str, id: str) -> bool:
    """Return whether this is the workspace's only valid admin key."""
    admins = [key.id for key in store.keys.live(workspace) if Scope.ADMIN in key.scopes]
    return admins == [id]


def rotate(store: Store, workspace: str, id: str, *, grace_hours: float) -> NewKey:
    """Replace a key with one of the same lifetime; the old key ends after the grace period."""
    if not 0 <= grace_hours <= MAX_GRACE_HOURS:
        raise Invalid("bad_grace", f"grace_hours must be between 0 and {MAX_GRACE_HOURS}")
    old = find(store, workspace, id)
    if not is_valid(old, time.time()):
        raise Conflict("key_is_final", "a revoked or expired key cannot be rotated: create another")
    days = None if old.expires_at is None else (old.expires_at - old.created_at) / DAY
    scopes = [Scope(one) for one in old.scopes]
    new = create(store, workspace, name=old.name, scopes=scopes, days=days)
    store.keys.end_at(id, grace_hours * HOUR)
    return new


def is_valid(key: Key, at: float) -> bool:
    """Return whether a key is valid at the given time."""
    return key.revoked_at is None and (key.expires_at is None or at < key.expires_at)


class KeyRing:
    """All keys, kept in memory so that they can be checked while the database is down."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._keys: dict[str, Key] = {}
        self._principals: dict[str, Principal] = {}
        self._used: dict[str, float] = {}
        self._states: dict[str, tuple[object, ...]] = {}
        self._anyone: Principal | None = None
        self._lock = threading.Lock()

    def refresh(self) -> None:
        """Reload the keys of changed workspaces, and store the times when keys were last used."""
        with self._lock:
            with self._database.read() as store:
                states = store.keys.states()
                changed = {id for id, state in states.items() if state != self._states.get(id)}
                read = store.keys.of_workspaces(changed) if changed else []
                if self._anyone is None:
                    default = workspace_named(store, DEFAULT_WORKSPACE).id
                    self._anyone = Principal(default, "anonymous", frozenset(Scope))
            if changed or self._states.keys() != states.keys():
                self._replace(read, changed, states.keys())
                self._states = states
            used, self._used = self._used, {}
            if used:
                with self._database.write() as store:
                    store.keys.used(dict(used))

    def _replace(self, read: list[Key], changed: Collection[str], known: Collection[str]) -> None:
        """Replace the keys of ``changed`` workspaces; drop workspaces that are not ``known``."""
        keys = {
            key.id: key
            for key in self._keys.values()
            if key.workspace in known and key.workspace not in changed
        }
        keys |= {key.id: key for key in read}
        self._principals = {id: _principal(key) for id, key in keys.items()}
        self._keys = keys

    @property
    def is_empty(self) -> bool:
        """True if no key was ever created; revoking all keys does not restore open access."""
        return not self._keys

    @property
    def anyone(self) -> Principal:
        """The caller of every request while no key is required."""
        if self._anyone is None:
            raise Unavailable("not_ready", "the service is starting: try again")
        return self._anyone

    def authenticate(self, token: str) -> Principal:
        """Return the caller that a token belongs to."""
        return self.admit(self.key_of(token))

    def key_of(self, token: str) -> str:
        """Return the id of the key that a token belongs to."""
        match = TOKEN.fullmatch(token)
        key = self._keys.get(match[1]) if match else None
        if match is None or key is None:
            raise Unauthenticated("invalid_key", "unknown key")
        if not hmac.compare_digest(_digest(match[2]), key.secret_sha256):
            raise Unauthenticated("invalid_key", "unknown key")
        return key.id

    def admit(self, id: str) -> Principal:
        """Return the caller that a key belongs to; raise Unauthenticated if the key is invalid."""
        key, now = self._keys.get(id), time.time()
        if key is None:
            raise Unauthenticated("invalid_key", "unknown key")
        if not is_valid(key, now):
            why = "was revoked" if key.revoked_at is not None else "has expired"
            raise Unauthenticated("key_has_ended", f"this key {why}")
        self._used[key.id] = now
        return self._principals[key.id]

    def check(self, principal: Principal) -> None:
        """Raise Unauthenticated if the caller's access has ended since admission."""
        if principal.key is not None:
            self.admit(principal.key)
        elif not self.is_empty:
            raise Unauthenticated(
                "key_required", "a key has been created in the meantime: requests now require one"
            )


def actor_of(key: Key) -> str:
    """Return the name that histories show for requests with a key."""
    return f"{key.name} (key {key.id})"


def _principal(key: Key) -> Principal:
    scopes = frozenset(Scope(one) for one in key.scopes)
    return Principal(key.workspace, actor_of(key), scopes, key.id)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
