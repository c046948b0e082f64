"""Client-side deadlines for PostgreSQL servers that do not respond.

The server's own timeouts do not help while its processes are stopped. Neither do TCP timeouts,
because the server's kernel still sends acknowledgements. The client therefore adds up all waits on
a connection. When a transaction has used up its time, its connection is closed, and the caller gets
an error.
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

PROBE_SECONDS = 0.5  # how long callers wait for the first probe
PROBE_PAUSE = 0.05  # between two probes of a database that refuses connections at once
MIN_CONNECT_SECONDS = 2  # the minimum of psycopg
TICK = 0.1


class DeadlineMissed(psycopg.OperationalError):
    """The database did not respond in time; the connection is closed."""


class LimitedConnection(psycopg.Connection[Any]):
    """A connection that may wait for ``left`` more seconds in its current transaction."""

    deadlines: Deadlines
    left: float | None = None

    def wait(self, gen: Any, interval: float = TICK, timeout: float | None = None) -> Any:
        """Wait for a response; close the connection and raise DeadlineMissed if none comes."""
        seconds = max(0.0, self.deadlines.seconds_left(self))
        began = time.monotonic()
        try:
            shorter = seconds if timeout is None else min(seconds, timeout)
            return super().wait(gen, interval, shorter)
        except psycopg.OperationalError as error:
            if time.monotonic() - began < seconds:
                raise
            self.close()
            raise DeadlineMissed("the database did not respond in time") from error
        finally:
            if self.left is not None:
                self.left -= time.monotonic() - began


class Deadlines:
    """Limit on the total time that each transaction on an engine waits for the server.

    The caller's own time between two statements does not count. After a missed deadline, a thread
    probes the database, and all callers get an error at once until it responds. The probe has its
    own connection, because slow transactions may exhaust the pool of a healthy database.
    """

    def __init__(self, engine: Engine, probe_engine: Engine, seconds: float) -> None:
        """Limit the transactions of ``engine``; ``probe_engine`` has no pool."""
        self.seconds = seconds
        self._probe_engine = probe_engine
        self._checkout = threading.local()
        self._is_down = False
        self._is_probing = False
        self._probed = threading.Event()
        self._ended = threading.Event()
        self._starting = threading.Lock()
        for one in (engine, probe_engine):
            event.listen(one, "do_connect", self._connect)

    def close(self) -> None:
        """Stop probing."""
        self._ended.set()

    @contextmanager
    def connected(self, engine: Engine, seconds: float | None = None) -> Iterator[Connection]:
        """Yield a connection for one transaction; waiting for it counts towards the deadline."""
        if self._is_probing and not self._probed.wait(PROBE_SECONDS):
            self._is_down = True
            self._probed.set()
        if self._is_down:
            raise TimeoutError("the database is not responding to other callers")
        with (
            self._probing_on_failure(),
            self._connected(engine, seconds or self.seconds) as connection,
        ):
            yield connection

    @contextmanager
    def _connected(self, engine: Engine, seconds: float) -> Iterator[Connection]:
        began = time.monotonic()
        with self._until(began + seconds):
            connection = engine.connect()
        limited = connection.connection.driver_connection
        assert isinstance(limited, LimitedConnection)  # noqa: S101
        limited.left = seconds - (time.monotonic() - began)
        with connection:
            try:
                yield connection
            finally:
                limited.left = None

    def seconds_left(self, limited: LimitedConnection) -> float:
        """Return how many seconds a connection may still wait."""
        deadline: float | None = getattr(self._checkout, "deadline", None)
        if deadline is not None:
            return deadline - time.monotonic()
        return self.seconds if limited.left is None else limited.left

    def _connect(self, _dialect: Any, _record: Any, _args: Any, arguments: dict[str, Any]) -> Any:
        """Connect within the remaining time; the pool calls this."""
        deadline = getattr(self._checkout, "deadline", None)
        left = self.seconds if deadline is None else deadline - time.monotonic()
        if left <= 0:
            raise DeadlineMissed("no time is left to connect to the database")
        most = min(math.ceil(left), int(arguments.get("connect_timeout", math.ceil(left))))
        timeout = max(MIN_CONNECT_SECONDS, most)
        limited = LimitedConnection.connect(**{**arguments, "connect_timeout": timeout})
        limited.deadlines = self
        return limited

    @contextmanager
    def _until(self, deadline: float) -> Iterator[None]:
        self._checkout.deadline = deadline
        try:
            yield
        finally:
            del self._checkout.deadline

    @contextmanager
    def _probing_on_failure(self) -> Iterator[None]:
        """Start probing if a deadline was missed or the connection timed out."""
        try:
            yield
        except DBAPIError as error:
            if isinstance(error.orig, DeadlineMissed | psycopg.errors.ConnectionTimeout):
                self._start_probing()
            raise

    def _start_probing(self) -> None:
        with self._starting:
            if self._is_probing or self._ended.is_set():
                return
            self._is_probing = True
            self._probed.clear()
            threading.Thread(target=self._probe, name="database-probe", daemon=True).start()

    def _probe(self) -> None:
        """Try to query the database until it responds."""
        while not self._ended.is_set():
            with (
                suppress(SQLAlchemyError),
                self._connected(self._probe_engine, MIN_CONNECT_SECONDS) as connection,
            ):
                connection.exec_driver_sql("SELECT 1")
                self._is_down = self._is_probing = False
                self._probed.set()
                return
            self._is_down = True
            self._probed.set()
            self._ended.wait(PROBE_PAUSE)
