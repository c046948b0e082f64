"""SQL for workspaces, API keys, idempotency keys and dashboard sessions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import and_, delete, func, insert, select, tuple_, update
from sqlalchemy.sql import ColumnElement

from service.storage.notifications import announce
from service.storage.records import Key, Workspace
from service.storage.repository import DELETE_BATCH, After, Repository, new_id, now
from service.storage.run_tables import runs
from service.storage.tables import (
    calibrators,
    datasets,
    idempotency,
    keys,
    web_sessions,
    workspaces,
)

DATASET_ROOM = 8192


class Keys(Repository):
    """Workspaces and their keys."""

    def workspace_named(self, name: str) -> Workspace | None:
        """Return the workspace with this name, or None."""
        return self._one(Workspace, select(workspaces).where(workspaces.c.name == name))

    def workspaces_among(self, ids: Collection[str]) -> set[str]:
        """Return the subset of ``ids`` that are existing workspaces."""
        return set(self.session.scalars(select(workspaces.c.id).where(workspaces.c.id.in_(ids))))

    def stored_bytes(self, workspace: str) -> int:
        """Return the total bytes of a workspace's datasets, versions and runs.

        Each dataset adds DATASET_ROOM bytes for its row, file and folder.
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
        """Lock a workspace until the transaction ends, so that its limits can be checked."""
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
        """Return a key of the workspace, or None."""
        return self._one(Key, select(keys).where(keys.c.id == id, keys.c.workspace == workspace))

    def page(self, workspace: str, limit: int, after: After | None) -> list[Key]:
        """Return a page of a workspace's keys, valid or not, newest first."""
        chosen = select(keys).where(keys.c.workspace == workspace)
        if after is not None:
            chosen = chosen.where(tuple_(keys.c.created_at, keys.c.id) < tuple_(*after))
        order = (keys.c.created_at.desc(), keys.c.id.desc())
        return self._all(Key, chosen.order_by(*order).limit(limit))

    def of_workspaces(self, ids: Collection[str]) -> list[Key]:
        """Return the keys of the given workspaces."""
        return self._all(Key, select(keys).where(keys.c.workspace.in_(ids)))

    def live(self, workspace: str) -> list[Key]:
        """Return a workspace's valid keys, oldest first."""
        chosen = select(keys).where(keys.c.workspace == workspace, _is_live())
        return self._all(Key, chosen.order_by(keys.c.created_at, keys.c.id))

    def count_live(self, workspace: str) -> int:
        """Return the number of a workspace's valid keys."""
        mine = (keys.c.workspace == workspace) & _is_live()
        return self.session.scalar(select(func.count()).select_from(keys).where(mine)) or 0

    def forget_ended(self, workspace: str, keep: int) -> None:
        """Delete all but the newest ``keep`` revoked or expired keys of a workspace."""
        mine = (keys.c.workspace == workspace) & ~_is_live()
        oldest = select(keys.c.id).where(mine).order_by(keys.c.created_at.desc())
        surplus = list(self.session.scalars(oldest.offset(keep).limit(DELETE_BATCH)))
        if surplus:
            self._execute(delete(web_sessions).where(web_sessions.c.key.in_(surplus)))
            self._execute(delete(keys).where(keys.c.id.in_(surplus)))

    def states(self) -> dict[str, tuple[object, ...]]:
        """Return a summary of each workspace's keys that changes whenever a key changes."""
        facts = (
            func.count(),
            func.count(keys.c.revoked_at),
            func.coalesce(func.sum(keys.c.expires_at), 0.0),
            func.max(keys.c.created_at),
        )
        chosen = select(keys.c.workspace, *facts).group_by(keys.c.workspace)
        return {row[0]: tuple(row[1:]) for row in self.session.execute(chosen)}

    def count(self) -> int:
        """Return the number of keys, valid or not."""
        return int(self.session.scalar(select(func.count()).select_from(keys)) or 0)

    def revoke(self, workspace: str, id: str) -> bool:
        """Revoke a key; return False if there is no such key or it was already revoked."""
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
        """Store the times when keys were last used."""
        for id, at in times.items():
            self._execute(update(keys).where(keys.c.id == id).values(last_used_at=at))


def _is_live() -> ColumnElement[bool]:
    lasts = keys.c.expires_at.is_(None) | (keys.c.expires_at > now())
    return and_(keys.c.revoked_at.is_(None), lasts)


class Idempotency(Repository):
    """Stored responses by idempotency key."""

    def find(self, workspace: str, key: str) -> tuple[str, dict[str, Any]] | None:
        """Return the hash of the request that first used a key, and its response, or None."""
        mine = (idempotency.c.workspace == workspace) & (idempotency.c.key == key)
        chosen = select(idempotency.c.request_sha256, idempotency.c.answer).where(mine)
        row = self.session.execute(chosen).one_or_none()
        return None if row is None else (row[0], row[1])

    def keep(self, workspace: str, key: str, request_sha256: str, answer: dict[str, Any]) -> bool:
        """Store a response; return False if this key already has one."""
        row = {
            "workspace": workspace,
            "key": key,
            "request_sha256": request_sha256,
            "answer": answer,
            "created_at": now(),
        }
        inserted = insert(idempotency).values(row).returning(idempotency.c.key)
        return self._one_if_unique(dict, inserted) is not None

    def forget(self, older_than: float, limit: int = DELETE_BATCH) -> int:
        """Delete up to ``limit`` responses older than ``older_than`` seconds; return the count."""
        place = (idempotency.c.workspace, idempotency.c.key)
        old = select(*place).where(idempotency.c.created_at < now() - older_than).limit(limit)
        return self._execute(delete(idempotency).where(tuple_(*place).in_(old)))


class SessionRepository(Repository):
    """Dashboard sessions, identified by the SHA-256 of their tokens."""

    def add(self, token_sha256: str, key: str, seconds: float) -> None:
        """Add a session for a key; the session expires after ``seconds``."""
        values = {"token_sha256": token_sha256, "key": key}
        times = {"created_at": now(), "expires_at": now() + seconds}
        self._execute(insert(web_sessions).values(**values, **times))

    def keep_newest(self, key: str, most: int) -> None:
        """Delete all but the newest ``most`` sessions of a key."""
        mine = web_sessions.c.key == key
        token = web_sessions.c.token_sha256
        newest = select(token).where(mine).order_by(web_sessions.c.created_at.desc()).limit(most)
        self._execute(delete(web_sessions).where(mine, token.not_in(newest)))

    def key_of(self, token_sha256: str) -> str | None:
        """Return the key id of an unexpired session, or None."""
        mine = (web_sessions.c.token_sha256 == token_sha256) & (web_sessions.c.expires_at > now())
        found: str | None = self.session.scalar(select(web_sessions.c.key).where(mine))
        return found

    def remove(self, token_sha256: str) -> None:
        """End a session."""
        self._execute(delete(web_sessions).where(web_sessions.c.token_sha256 == token_sha256))

    def forget_expired(self, limit: int = DELETE_BATCH) -> int:
        """Delete up to ``limit`` expired sessions; return the count."""
        token = web_sessions.c.token_sha256
        expired = select(token).where(web_sessions.c.expires_at <= now()).limit(limit)
        return self._execute(delete(web_sessions).where(token.in_(expired)))
