"""Calls for the API keys of the workspace; they require the ``admin`` scope."""

from __future__ import annotations

from collections.abc import Sequence

from calibrd.api.base import ApiBase
from calibrd.models import Key, NewKey
from calibrd.transport.connection import drop_none
from calibrd.transport.flows import Flow, call

CHECK_HINT = "client.keys() lists the key if it was created; revoke it, because its token is lost"


class KeyCalls(ApiBase):
    """Calls for keys."""

    @call
    def keys(self, *, limit: int | None = None) -> Flow[list[Key]]:
        """List the keys of this workspace, newest first, including revoked and expired ones."""
        return (yield from self.request_all(Key, "keys", limit=limit))

    @call
    def create_key(
        self, name: str, scopes: Sequence[str], *, days: float | None = None
    ) -> Flow[NewKey]:
        """Create a key with one or more of the scopes predict, fit, promote and admin.

        The token is returned only once.
        """
        body = drop_none(name=name, scopes=list(scopes), days=days)
        return (
            yield from self.request_record(NewKey, "POST", "keys", body=body, check_hint=CHECK_HINT)
        )

    @call
    def rotate_key(self, id: str, *, grace_hours: float = 24.0) -> Flow[NewKey]:
        """Replace a key with a new one; the old key stays valid for the grace period."""
        body = {"grace_hours": grace_hours}
        place = ("keys", id, "rotate")
        return (
            yield from self.request_record(NewKey, "POST", *place, body=body, check_hint=CHECK_HINT)
        )

    @call
    def revoke_key(self, id: str) -> Flow[Key]:
        """Revoke a key."""
        return (yield from self.request_record(Key, "DELETE", "keys", id))
