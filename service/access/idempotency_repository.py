"""SQL on remembered Idempotency-Keys."""

from __future__ import annotations

from typing import Any

from sqlalchemy import delete, insert, select, tuple_

from service.storage.repository import AT_ONCE, Repository, now
from service.storage.tables import idempotency


class Idempotency(Repository):
    """What was answered to which key."""

    def find(self, workspace: str, key: str) -> tuple[str, dict[str, Any]] | None:
        """The hash of the request that first used a key, and its answer."""
        mine = (idempotency.c.workspace == workspace) & (idempotency.c.key == key)
        chosen = select(idempotency.c.request_sha256, idempotency.c.answer).where(mine)
        row = self.session.execute(chosen).one_or_none()
        return None if row is None else (row[0], row[1])

    def keep(self, workspace: str, key: str, request_sha256: str, answer: dict[str, Any]) -> bool:
        """Remember an answer; False if there is one for this key."""
        row = {
            "workspace": workspace,
            "key": key,
            "request_sha256": request_sha256,
            "answer": answer,
            "created_at": now(),
        }
        kept = insert(idempotency).values(row).returning(idempotency.c.key)
        return self._unless_there(dict, kept) is not None

    def forget(self, older_than: float, limit: int = AT_ONCE) -> int:
        """Delete so many answers older than so many seconds; return how many were."""
        place = (idempotency.c.workspace, idempotency.c.key)
        old = select(*place).where(idempotency.c.created_at < now() - older_than).limit(limit)
        return self._changed(delete(idempotency).where(tuple_(*place).in_(old)))
