"""SQL on workspaces and API keys."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sqlalchemy import func, insert, select, update

from service.storage.news import announce
from service.storage.records import Key, Workspace
from service.storage.rows import Repository, new_id, now
from service.storage.tables import keys, workspaces


class Keys(Repository):
    """Workspaces and their keys."""

    def workspace_named(self, name: str) -> Workspace | None:
        """The workspace of this name."""
        return self._one(Workspace, select(workspaces).where(workspaces.c.name == name))

    def workspaces_among(self, ids: Collection[str]) -> set[str]:
        """Those of the ids that are workspaces."""
        return set(self.session.scalars(select(workspaces.c.id).where(workspaces.c.id.in_(ids))))

    def add_workspace(self, name: str) -> Workspace:
        """A new workspace."""
        values = {"id": new_id("ws"), "name": name, "created_at": now()}
        made = self._one(Workspace, insert(workspaces).values(values).returning(*workspaces.c))
        assert made is not None  # noqa: S101
        return made

    def add(
        self,
        *,
        id: str,
        workspace: str,
        name: str,
        secret_sha256: str,
        scopes: list[str],
        expires_at: float | None,
    ) -> Key:
        """A new key."""
        values = {
            "id": id,
            "workspace": workspace,
            "name": name,
            "secret_sha256": secret_sha256,
            "scopes": scopes,
            "expires_at": expires_at,
            "created_at": now(),
        }
        announce(self.session)
        made = self._one(Key, insert(keys).values(values).returning(*keys.c))
        assert made is not None  # noqa: S101
        return made

    def get(self, workspace: str, id: str) -> Key | None:
        """A key of the workspace."""
        return self._one(Key, select(keys).where(keys.c.id == id, keys.c.workspace == workspace))

    def all_of(self, workspace: str) -> list[Key]:
        """The keys of the workspace, oldest first."""
        chosen = select(keys).where(keys.c.workspace == workspace)
        return self._all(Key, chosen.order_by(keys.c.created_at, keys.c.id))

    def everything(self) -> list[Key]:
        """The keys of all workspaces."""
        return self._all(Key, select(keys))

    def count(self) -> int:
        """How many keys there are, valid or not."""
        return int(self.session.scalar(select(func.count()).select_from(keys)) or 0)

    def revoke(self, workspace: str, id: str) -> bool:
        """End a key now; False if there is no such key or it was ended before."""
        mine = (keys.c.id == id) & (keys.c.workspace == workspace) & keys.c.revoked_at.is_(None)
        announce(self.session)
        return self._changed(update(keys).where(mine).values(revoked_at=now())) == 1

    def end_at(self, id: str, seconds_from_now: float) -> None:
        """Let a key expire in so many seconds, unless it does so earlier."""
        end = now() + seconds_from_now
        announce(self.session)
        earlier = keys.c.expires_at.is_not(None) & (keys.c.expires_at < end)
        self._changed(update(keys).where(keys.c.id == id, ~earlier).values(expires_at=end))

    def used(self, times: Mapping[str, float]) -> None:
        """Note when keys were last used."""
        for id, at in times.items():
            self._changed(update(keys).where(keys.c.id == id).values(last_used_at=at))
