"""Idempotency keys: a repeated request gets the first response without repeating the work."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from service.access.permissions import Principal
from service.errors import Conflict, Invalid
from service.storage.store import Store

LONGEST_KEY = 200


def check_key(key: str | None) -> str | None:
    """Return the key; raise Invalid unless it is short and printable."""
    if key is not None and not (0 < len(key) <= LONGEST_KEY and key.isprintable()):
        raise Invalid(
            "bad_idempotency_key",
            f"an Idempotency-Key must have 1 to {LONGEST_KEY} printable characters",
        )
    return key


def answered(
    store: Store, principal: Principal, key: str | None, request: dict[str, Any]
) -> dict[str, Any] | None:
    """Return the stored response if this key was already used for the same request, else None."""
    found = None if key is None else store.idempotency.find(principal.workspace, key)
    if found is None:
        return None
    request_sha256, answer = found
    if request_sha256 != _digest(request):
        raise Invalid(
            "idempotency_key_reused",
            "this Idempotency-Key was already used for a different request: use a new one",
        )
    return answer


def keep(
    store: Store,
    principal: Principal,
    key: str | None,
    request: dict[str, Any],
    answer: dict[str, Any],
) -> None:
    """Store the response in the same transaction as the work."""
    if key is None:
        return
    if not store.idempotency.keep(principal.workspace, key, _digest(request), answer):
        raise Conflict(
            "idempotency_key_in_use",
            "a concurrent request with this Idempotency-Key finished first: repeat this request",
        )


def _digest(request: dict[str, Any]) -> str:
    text = json.dumps(request, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
