"""SQL for idempotency keys."""

from __future__ import annotations

from typing import Any

from sqlalchemy import delete, insert, select, tuple_

from service.storage.repository import DELETE_BATCH, Repository, now
from service.storage.tables import idempotency


class Idempotency(Repository):
    """Stored responses by idempotency key."""

    def find(self, workspace: str, key: str) -> tuple[str, dict[str, Any]] | None:
        """Return the hash of the request that first used a key, and its response."""
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
        """Delete up to ``limit`` responses older than ``older_than`` seconds; return how many."""
        place = (idempotency.c.workspace, idempotency.c.key)
        old = select(*place).where(idempotency.c.created_at < now() - older_than).limit(limit)
        return self._execute(delete(idempotency).where(tuple_(*place).in_(old)))
