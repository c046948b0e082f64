"""SQL for dashboard sessions."""

from __future__ import annotations

from sqlalchemy import delete, insert, select

from service.storage.repository import DELETE_BATCH, Repository, now
from service.storage.tables import web_sessions


class SessionRepository(Repository):
    """Sessions by the SHA-256 of their tokens."""

    def add(self, token_sha256: str, key: str, seconds: float) -> None:
        """Add a session for a key; the session expires after ``seconds``."""
        values = {"token_sha256": token_sha256, "key": key}
        times = {"created_at": now(), "expires_at": now() + seconds}
        self._execute(insert(web_sessions).values(**values, **times))

    def keep_newest(self, key: str, most: int) -> None:
        """Delete the oldest sessions of a key, so that at most ``most`` remain."""
        mine = web_sessions.c.key == key
        token = web_sessions.c.token_sha256
        newest = select(token).where(mine).order_by(web_sessions.c.created_at.desc()).limit(most)
        self._execute(delete(web_sessions).where(mine, token.not_in(newest)))

    def key_of(self, token_sha256: str) -> str | None:
        """Return the id of the key of a session that has not expired."""
        mine = (web_sessions.c.token_sha256 == token_sha256) & (web_sessions.c.expires_at > now())
        found: str | None = self.session.scalar(select(web_sessions.c.key).where(mine))
        return found

    def remove(self, token_sha256: str) -> None:
        """End a session."""
        self._execute(delete(web_sessions).where(web_sessions.c.token_sha256 == token_sha256))

    def forget_expired(self, limit: int = DELETE_BATCH) -> int:
        """Delete up to ``limit`` expired sessions; return how many."""
        token = web_sessions.c.token_sha256
        expired = select(token).where(web_sessions.c.expires_at <= now()).limit(limit)
        return self._execute(delete(web_sessions).where(token.in_(expired)))
