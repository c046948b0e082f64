"""SQL for workspaces and API keys."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sqlalchemy import and_, delete, func, insert, select, tuple_, update
from sqlalchemy.sql import ColumnElement

from service.storage.notifications import announce
from service.storage.records import Key, Workspace
from service.storage.repository import DELETE_BATCH, After, Repository, new_id, now
from service.storage.run_tables import runs
from service.storage.tables import calibrators, datasets, keys, web_sessions, workspaces

DATASET_ROOM = 8192


class Keys(Repository):
    """Workspaces and their keys."""

    def workspace_named(self, name: str) -> Workspace | None:
        """Return the workspace with this name."""
        return self._one(Workspace, select(workspaces).where(workspaces.c.name == name))

    def workspaces_among(self, ids: Collection[str]) -> set[str]:
        """Return the ids that belong to workspaces."""
        return set(self.session.scalars(select(workspaces.c.id).where(workspaces.c.id.in_(ids))))

    def stored_bytes(self, workspace: str) -> int:
        """Return the bytes that a workspace stores: datasets, versions and runs.

        A dataset counts DATASET_ROOM more than its bytes, for its row, file and folder.
        """
        size = func.coalesce(datasets.c.bytes, datasets.c.part_bytes)
        sizes = (
            (datasets, size + DATASET_ROOM),
            (calibrators, calibrators.c.stored_bytes),
            (runs, runs.c.stored_bytes),
        )
        return sum(
            int(
                self.session.scalar(select(func.sum(size)).where(table.c.workspace == workspace))
                or 0
            )
            for table, size in sizes
        )

    def lock_workspace(self, id: str) -> None:
        """Lock a workspace until the transaction ends, to check its limits."""
        # not FOR UPDATE, which would block every new row of the workspace
        row = select(workspaces.c.id).where(workspaces.c.id == id)
        self.session.execute(row.with_for_update(key_share=True))

    def add_workspace(self, name: str) -> Workspace:
        """Add a workspace."""
        values = {"id": new_id("ws"), "name": name, "created_at": now()}
        added = self._one(Workspace, insert(workspaces).values(values).returning(*workspaces.c))
        assert added is not None  # noqa: S101
        return added

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
        """Add a key."""
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
        added = self._one(Key, insert(keys).values(values).returning(*keys.c))
        assert added is not None  # noqa: S101
        return added

    def get(self, workspace: str, id: str) -> Key | None:
        """Return a key of the workspace."""
        return self._one(Key, select(keys).where(keys.c.id == id, keys.c.workspace == workspace))

    def page(self, workspace: str, limit: int, after: After | None) -> list[Key]:
        """Return a page of the keys of a workspace, newest first, including ended ones."""
        chosen = select(keys).where(keys.c.workspace == workspace)
        if after is not None:
            chosen = chosen.where(tuple_(keys.c.created_at, keys.c.id) < tuple_(*after))
        order = (keys.c.created_at.desc(), keys.c.id.desc())
        return self._all(Key, chosen.order_by(*order).limit(limit))

    def of_workspaces(self, ids: Collection[str]) -> list[Key]:
        """Return the keys of some workspaces."""
        return self._all(Key, select(keys).where(keys.c.workspace.in_(ids)))

    def live(self, workspace: str) -> list[Key]:
        """Return the keys of a workspace that have not ended, oldest first."""
        chosen = select(keys).where(keys.c.workspace == workspace, _is_live())
        return self._all(Key, chosen.order_by(keys.c.created_at, keys.c.id))

    def count_live(self, workspace: str) -> int:
        """Return how many keys of a workspace have not ended."""
        mine = (keys.c.workspace == workspace) & _is_live()
        return self.session.scalar(select(func.count()).select_from(keys).where(mine)) or 0

    def forget_ended(self, workspace: str, keep: int) -> None:
        """Delete the ended keys of a workspace, except for the newest ``keep``."""
        mine = (keys.c.workspace == workspace) & ~_is_live()
        oldest = select(keys.c.id).where(mine).order_by(keys.c.created_at.desc())
        surplus = list(self.session.scalars(oldest.offset(keep).limit(DELETE_BATCH)))
        if surplus:
            self._execute(delete(web_sessions).where(web_sessions.c.key.in_(surplus)))
            self._execute(delete(keys).where(keys.c.id.in_(surplus)))

    def states(self) -> dict[str, tuple[object, ...]]:
        """Return, by workspace, a state that changes whenever one of its keys does."""
        facts = (
            func.count(),
            func.count(keys.c.revoked_at),
            func.coalesce(func.sum(keys.c.expires_at), 0.0),
            func.max(keys.c.created_at),
        )
        chosen = select(keys.c.workspace, *facts).group_by(keys.c.workspace)
        return {row[0]: tuple(row[1:]) for row in self.session.execute(chosen)}

    def count(self) -> int:
        """Return how many keys there are, valid or not."""
        return int(self.session.scalar(select(func.count()).select_from(keys)) or 0)

    def revoke(self, workspace: str, id: str) -> bool:
        """Revoke a key; return False if there is no such key or it was revoked before."""
        mine = (keys.c.id == id) & (keys.c.workspace == workspace) & keys.c.revoked_at.is_(None)
        announce(self.session)
        return self._execute(update(keys).where(mine).values(revoked_at=now())) == 1

    def end_at(self, id: str, seconds_from_now: float) -> None:
        """Make a key expire after ``seconds_from_now``, unless it expires earlier."""
        end = now() + seconds_from_now
        announce(self.session)
        earlier = keys.c.expires_at.is_not(None) & (keys.c.expires_at < end)
        self._execute(update(keys).where(keys.c.id == id, ~earlier).values(expires_at=end))

    def used(self, times: Mapping[str, float]) -> None:
        """Store when keys were last used."""
        for id, at in times.items():
            self._execute(update(keys).where(keys.c.id == id).values(last_used_at=at))


def _is_live() -> ColumnElement[bool]:
    lasts = keys.c.expires_at.is_(None) | (keys.c.expires_at > now())
    return and_(keys.c.revoked_at.is_(None), lasts)
