"""Notifications of changes: aliases, keys and finished fits for the API, waiting fits for workers.

PostgreSQL carries them (NOTIFY and LISTEN), so they are heard at once, but not for certain: who
listens must look for changes now and then as well. SQLite only tells that somebody has written.
"""

from __future__ import annotations

import logging
import selectors
import socket
import sqlite3
import threading
from collections.abc import Callable, Collection, Mapping

import psycopg
from sqlalchemy import Engine, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from service.concurrency.backoff import Backoff

NEWS = "calibrd_news"
FITS = "calibrd_fits"
FITS_DONE = "calibrd_fits_done"
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
STOP_SECONDS = 1.0

logger = logging.getLogger(__name__)


def announce(session: Session, channel: str = NEWS) -> None:
    """Let all who listen know of a change, once it is committed."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text("SELECT pg_notify(:channel, '')"), {"channel": channel})


class NotificationListener:
    """A thread with a connection of its own that calls what a channel has when there is news of it.

    It calls all of them after every new connection, because what was said before is not repeated.
    With ``poll_seconds`` it looks that often whether a SQLite file was written to.
    """

    def __init__(
        self,
        engine: Engine,
        heard: Mapping[str, Callable[[], None]],
        *,
        poll_seconds: float | None = None,
    ) -> None:
        self._engine = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._heard = heard
        self._poll_seconds = poll_seconds
        self._is_sqlite = engine.dialect.name == "sqlite"
        self._backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        self._ended = threading.Event()
        self._waker, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="news", daemon=True)

    def __enter__(self) -> NotificationListener:
        if not self._is_sqlite or self._poll_seconds is not None:
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
                if self._is_sqlite:
                    self._poll()
                else:
                    self._listen()
            except (SQLAlchemyError, psycopg.Error, sqlite3.Error, OSError) as error:
                if self._backoff.is_first:
                    logger.warning("nothing is heard of changes: %s", type(error).__name__)
                self._ended.wait(self._backoff.pause())

    def _listen(self) -> None:
        with self._engine.connect() as connection:
            line = connection.connection.driver_connection
            assert isinstance(line, psycopg.Connection)  # noqa: S101
            for channel in self._heard:
                connection.exec_driver_sql(f"LISTEN {channel}")
            self._backoff.reset()
            with selectors.DefaultSelector() as either:
                either.register(line, selectors.EVENT_READ)
                either.register(self._woken, selectors.EVENT_READ)
                channels = set(self._heard)
                while not self._ended.is_set():
                    self._tell(channels)
                    either.select()
                    channels = {one.channel for one in line.notifies(timeout=0)}

    def _tell(self, channels: Collection[str]) -> None:
        for channel in channels:
            self._heard[channel]()

    def _poll(self) -> None:
        """Compare SQLite's count of commits by other connections, which takes microseconds."""
        connection, seen = self._engine.raw_connection(), None
        try:
            while not self._ended.wait(self._poll_seconds):
                found = connection.cursor().execute("PRAGMA data_version").fetchone()
                if found != seen:
                    seen = found
                    self._backoff.reset()
                    self._tell(self._heard)
        finally:
            connection.close()
