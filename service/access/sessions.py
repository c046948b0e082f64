"""Sessions of the dashboard: a random token in a cookie stands for an API key, for some hours.

Of the token only its SHA-256 is stored. A session is worth what its key is: who admits it asks the
key ring whether that is still valid.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

from service.settings import HOUR
from service.storage.database import Database

SESSION_HOURS = 12
TOKEN_BYTES = 32
MOST_SESSIONS = 200  # of a key: browsers that are signed in with it
LONGEST_TOKEN = 100


class Sessions:
    """Sessions are looked up in the database each time, so that an ended one is ended for all."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def begin(self, key: str) -> str:
        """The token of a new session of a key."""
        token = secrets.token_urlsafe(TOKEN_BYTES)
        with self._database.write() as store:
            store.web_sessions.add(_digest(token), key, SESSION_HOURS * HOUR)
            store.web_sessions.keep_newest(key, MOST_SESSIONS)
        return token

    def key_of(self, token: str) -> str | None:
        """The id of the key that a session stands for; None if there is no such session."""
        if len(token) > LONGEST_TOKEN:
            return None
        with self._database.read() as store:
            return store.web_sessions.key_of(_digest(token))

    def end(self, token: str) -> None:
        """End a session; again is no error."""
        with self._database.write() as store:
            store.web_sessions.remove(_digest(token))


def form_token(token: str) -> str:
    """What the forms of a session carry, so that no other site can send them.

    >>> form_token("a") == form_token("a") != form_token("b")
    True
    """
    return hmac.new(token.encode(), b"form", hashlib.sha256).hexdigest()


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
