"""Dashboard sessions: a random token in a cookie stands in for an API key for a few hours.

Only the SHA-256 of the token is stored. A session is only valid while its key is valid: check the
key against the key ring before admitting a session.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

from service.settings import HOUR
from service.storage.database import Database

SESSION_HOURS = 12
TOKEN_BYTES = 32
MAX_SESSIONS = 200  # browsers signed in with one key
LONGEST_TOKEN = 100


class Sessions:
    """Sessions, looked up in the database each time, so that they end in all processes at once."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def begin(self, key: str) -> str:
        """Start a session for a key and return its token."""
        token = secrets.token_urlsafe(TOKEN_BYTES)
        with self._database.write() as store:
            store.web_sessions.add(_digest(token), key, SESSION_HOURS * HOUR)
            store.web_sessions.keep_newest(key, MAX_SESSIONS)
        return token

    def key_of(self, token: str) -> str | None:
        """Return the key id of a session, or None if there is no such session."""
        if len(token) > LONGEST_TOKEN:
            return None
        with self._database.read() as store:
            return store.web_sessions.key_of(_digest(token))

    def end(self, token: str) -> None:
        """End a session; ending it twice is not an error."""
        with self._database.write() as store:
            store.web_sessions.remove(_digest(token))


def form_token(token: str) -> str:
    """Return the token that protects a session's forms from cross-site request forgery.

    >>> form_token("a") == form_token("a") != form_token("b")
    True
    """
    return hmac.new(token.encode(), b"form", hashlib.sha256).hexdigest()


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
