"""Client-side deadlines on PostgreSQL: a server that does not answer is given up in time.

The server's own timeouts do not help while its processes are stopped, and TCP's do not either,
because its kernel still acknowledges. So every wait on a connection is counted on this side. When
the time of a transaction is used up, its connection is closed and the caller gets an error.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError, SQLAlchemyError, TimeoutError

PROBE_SECONDS = 0.5  # that callers wait for the first look
PROBE_PAUSE = 0.05  # between two looks for a database that is away and refuses at once
LEAST_CONNECT_SECONDS = 2  # psycopg waits no less
TICK = 0.1


class DeadlineMissed(psycopg.OperationalError):
    """The database did not answer in time; the connection is closed."""


class LimitedConnection(psycopg.Connection[Any]):
    """A connection whose waits are counted; ``left`` are the seconds of its transaction."""

    deadlines: Deadlines
    left: float | None = None

    def wait(self, gen: Any, interval: float = TICK, timeout: float | None = None) -> Any:
        """Wait for an answer; close the connection and raise DeadlineMissed if none comes."""
        seconds = max(0.0, self.deadlines.seconds_left(self))
        began = time.monotonic()
        try:
            shorter = seconds if timeout is None else min(seconds, timeout)
            return super().wait(gen, interval, shorter)
        except psycopg.OperationalError as error:
            if time.monotonic() - began < seconds:
                raise
            self.close()
            raise DeadlineMissed("the database did not answer in time") from error
        finally:
            if self.left is not None:
                self.left -= time.monotonic() - began


class Deadlines:
    """The deadline of every transaction on an engine: so many seconds of waiting in all.

    What the caller does between two statements does not count. After a missed deadline a thread of
    its own looks whether the database answers; if it does not, callers are refused at once,
    whatever their number, until it does. The look has a connection of its own: a pool that slow
    transactions have emptied says nothing of the database.
    """

    def __init__(self, engine: Engine, alone: Engine, seconds: float) -> None:
        """Limit the transactions of ``engine``; ``alone`` has no pool and serves the look."""
        self.seconds = seconds
        self._alone = alone
        self._checkout = threading.local()
        self._is_away = False
        self._is_probing = False
        self._looked = threading.Event()
        self._ended = threading.Event()
        self._starting = threading.Lock()
        for one in (engine, alone):
            event.listen(one, "do_connect", self._connect)

    def close(self) -> None:
        """Look no more whether the database is back."""
        self._ended.set()

    @contextmanager
    def connected(self, engine: Engine, seconds: float | None = None) -> Iterator[Connection]:
        """Yield a connection for one transaction; waiting for it counts."""
        if self._is_probing and not self._looked.wait(PROBE_SECONDS):
            self._is_away = True
            self._looked.set()
        if self._is_away:
            raise TimeoutError("the database did not answer others a moment ago")
        with self._noting(), self._connected(engine, seconds or self.seconds) as connection:
            yield connection

    @contextmanager
    def _connected(self, engine: Engine, seconds: float) -> Iterator[Connection]:
        began = time.monotonic()
        with self._until(began + seconds):
            connection = engine.connect()
        line = connection.connection.driver_connection
        assert isinstance(line, LimitedConnection)  # noqa: S101
        line.left = seconds - (time.monotonic() - began)
        with connection:
            try:
                yield connection
            finally:
                line.left = None

    def seconds_left(self, line: LimitedConnection) -> float:
        """Return the seconds that a connection may still wait."""
        deadline: float | None = getattr(self._checkout, "deadline", None)
        if deadline is not None:
            return deadline - time.monotonic()
        return self.seconds if line.left is None else line.left

    def _connect(self, _dialect: Any, _record: Any, _args: Any, given: dict[str, Any]) -> Any:
        """Connect within the time that is left; called by the pool."""
        deadline = getattr(self._checkout, "deadline", None)
        left = self.seconds if deadline is None else deadline - time.monotonic()
        if left <= 0:
            raise DeadlineMissed("no time is left to connect to the database")
        most = min(math.ceil(left), int(given.get("connect_timeout", math.ceil(left))))
        timeout = max(LEAST_CONNECT_SECONDS, most)
        line = LimitedConnection.connect(**{**given, "connect_timeout": timeout})
        line.deadlines = self
        return line

    @contextmanager
    def _until(self, deadline: float) -> Iterator[None]:
        self._checkout.deadline = deadline
        try:
            yield
        finally:
            del self._checkout.deadline

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """Note that the database is away when a deadline was missed, or none could connect."""
        try:
            yield
        except DBAPIError as error:
            if isinstance(error.orig, DeadlineMissed | psycopg.errors.ConnectionTimeout):
                self._note_away()
            raise

    def _note_away(self) -> None:
        with self._starting:
            if self._is_probing or self._ended.is_set():
                return
            self._is_probing = True
            self._looked.clear()
            threading.Thread(target=self._probe, name="database-probe", daemon=True).start()

    def _probe(self) -> None:
        """Try the database until it answers."""
        while not self._ended.is_set():
            with (
                suppress(SQLAlchemyError),
                self._connected(self._alone, LEAST_CONNECT_SECONDS) as connection,
            ):
                connection.exec_driver_sql("SELECT 1")
                self._is_away = self._is_probing = False
                self._looked.set()
                return
            self._is_away = True
            self._looked.set()
            self._ended.wait(PROBE_PAUSE)
