"""Keys of the workspace, for those whose key may manage them."""

from __future__ import annotations

from collections.abc import Sequence

from calibrd.api.base import Asking
from calibrd.models import Key, NewKey
from calibrd.transport.connection import given
from calibrd.transport.flows import Flow, call

LOOK = "client.keys() shows a key made by it, and client.revoke_key ends it: its token is lost"


class KeyCalls(Asking):
    """Calls about keys."""

    @call
    def keys(self, *, limit: int | None = None) -> Flow[list[Key]]:
        """The keys of this workspace, newest first, also those that have ended."""
        return (yield from self.ask_for_all(Key, "keys", limit=limit))

    @call
    def create_key(
        self, name: str, scopes: Sequence[str], *, days: float | None = None
    ) -> Flow[NewKey]:
        """A new key with scopes out of predict, fit, promote and admin; its token is shown once."""
        body = given(name=name, scopes=list(scopes), days=days)
        return (yield from self.ask_for(NewKey, "POST", "keys", body=body, look=LOOK))

    @call
    def rotate_key(self, id: str, *, grace_hours: float = 24.0) -> Flow[NewKey]:
        """A new key in place of this one, which works on for the grace time."""
        body = {"grace_hours": grace_hours}
        place = ("keys", id, "rotate")
        return (yield from self.ask_for(NewKey, "POST", *place, body=body, look=LOOK))

    @call
    def revoke_key(self, id: str) -> Flow[Key]:
        """End a key."""
        return (yield from self.ask_for(Key, "DELETE", "keys", id))
