"""News of moved aliases and changed keys, from whoever makes them to every replica of the API.

PostgreSQL carries them (NOTIFY and LISTEN), so they are heard at once, but not for certain: who
listens must look for changes now and then as well. With SQLite there are none.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
from collections.abc import Callable

import psycopg
from sqlalchemy import Engine, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

CHANNEL = "calibrd_news"
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
STOP_SECONDS = 1.0

logger = logging.getLogger(__name__)


def announce(session: Session) -> None:
    """Let all who listen know of a change, once it is committed."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text("SELECT pg_notify(:channel, '')"), {"channel": CHANNEL})


class NotificationListener:
    """A thread with a connection of its own that calls ``heard`` when there is news.

    It does so after every new connection too, because what was said before is not repeated.
    """

    def __init__(self, engine: Engine, heard: Callable[[], None]) -> None:
        self._engine = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._heard = heard
        self._pause = FIRST_PAUSE
        self._ended = threading.Event()
        self._waker, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="news", daemon=True)

    def __enter__(self) -> NotificationListener:
        if self._engine.dialect.name == "postgresql":
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._waker.send(b"!")
        if self._thread.ident is not None:
            self._thread.join(STOP_SECONDS)
        if not self._thread.is_alive():
            self._waker.close()
            self._woken.close()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self._listen()
            except (SQLAlchemyError, psycopg.Error, OSError) as error:
                if self._pause == FIRST_PAUSE:
                    logger.warning("nothing is heard of changes: %s", type(error).__name__)
                self._ended.wait(self._pause)
                self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def _listen(self) -> None:
        with self._engine.connect() as connection:
            line = connection.connection.driver_connection
            assert isinstance(line, psycopg.Connection)  # noqa: S101
            connection.exec_driver_sql(f"LISTEN {CHANNEL}")
            self._pause = FIRST_PAUSE
            with selectors.DefaultSelector() as either:
                either.register(line, selectors.EVENT_READ)
                either.register(self._woken, selectors.EVENT_READ)
                while not self._ended.is_set():
                    self._heard()
                    either.select()
                    list(line.notifies(timeout=0))
