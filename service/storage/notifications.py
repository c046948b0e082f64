"""Notifications of changes: aliases, keys and finished fits for the API, queued fits for workers.

PostgreSQL delivers them (NOTIFY and LISTEN) immediately but not reliably, so listeners must also
poll for changes occasionally. SQLite only reveals that another connection has written.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any

from sqlalchemy import Engine, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from calibrators.backoff import Backoff

CHANGES = "calibrd_news"
FITS = "calibrd_fits"
FITS_DONE = "calibrd_fits_done"
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
STOP_SECONDS = 1.0

logger = logging.getLogger(__name__)


def announce(session: Session, channel: str = CHANGES) -> None:
    """Notify all listeners of a change when the transaction commits."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text("SELECT pg_notify(:channel, '')"), {"channel": channel})


class NotificationListener:
    """A thread, with its own connection, that calls the callback of each notified channel.

    After connecting, it calls all callbacks, because earlier notifications are not repeated. On
    SQLite, it checks every ``poll_seconds`` whether the file was written to.
    """

    def __init__(
        self,
        engine: Engine,
        callbacks: Mapping[str, Callable[[], None]],
        *,
        poll_seconds: float | None = None,
    ) -> None:
        self._engine = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._callbacks = callbacks
        self._poll_seconds = poll_seconds
        self._is_sqlite = engine.dialect.name == "sqlite"
        self._driver_error = engine.dialect.loaded_dbapi.Error
        self._backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE, jitter=0.0)
        self._ended = threading.Event()
        self._waker, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="notifications", daemon=True)

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
            except (SQLAlchemyError, self._driver_error, OSError) as error:
                if self._backoff.is_first:
                    logger.warning(
                        "notifications_unavailable", extra={"error": type(error).__name__}
                    )
                self._ended.wait(self._backoff.pause())

    def _listen(self) -> None:
        with self._engine.connect() as connection:
            driver: Any = connection.connection.driver_connection
            for channel in self._callbacks:
                connection.exec_driver_sql(f"LISTEN {channel}")
            self._backoff.reset()
            with selectors.DefaultSelector() as selector:
                selector.register(driver, selectors.EVENT_READ)
                selector.register(self._woken, selectors.EVENT_READ)
                channels = set(self._callbacks)
                while not self._ended.is_set():
                    self._call(channels)
                    selector.select()
                    channels = {one.channel for one in driver.notifies(timeout=0)}

    def _call(self, channels: Collection[str]) -> None:
        for channel in channels:
            self._callbacks[channel]()

    def _poll(self) -> None:
        """Poll SQLite's count of commits by other connections, which takes microseconds."""
        connection, last = self._engine.raw_connection(), None
        try:
            while not self._ended.wait(self._poll_seconds):
                current = connection.cursor().execute("PRAGMA data_version").fetchone()
                if current != last:
                    last = current
                    self._backoff.reset()
                    self._call(self._callbacks)
        finally:
            connection.close()
