"""The database: one URL, short read and write transactions, and its own clock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import Connection, make_url
from sqlalchemy.exc import InterfaceError, OperationalError, TimeoutError
from sqlalchemy.orm import Session

from service.storage.store import Store

AWAY = (OperationalError, InterfaceError, TimeoutError)  # what a database that is away raises
BUSY_SECONDS = 10
CONNECT_SECONDS = 5


class Database:
    """Transactions on SQLite or PostgreSQL.

    SQLite runs in WAL mode; its write transactions take the write lock at once (a plain BEGIN that
    writes later fails under concurrency), and its read transactions never wait for a writer.
    """

    def __init__(self, url: str) -> None:
        self.url = make_url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        if self.is_sqlite and self.url.database:
            Path(self.url.database).parent.mkdir(parents=True, exist_ok=True)
        self.engine = _engine(url, is_sqlite=self.is_sqlite)
        self._writing = self.engine.execution_options(writes=True)

    @contextmanager
    def read(self) -> Iterator[Store]:
        """A transaction that only reads."""
        with Session(self.engine) as session:
            yield Store(session)

    @contextmanager
    def write(self) -> Iterator[Store]:
        """A transaction that is committed at its end, and rolled back on any error."""
        with Session(self._writing) as session, session.begin():
            yield Store(session)

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()


def _engine(url: str, *, is_sqlite: bool) -> Engine:
    if not is_sqlite:
        return create_engine(
            url,
            connect_args={"connect_timeout": CONNECT_SECONDS},
            pool_pre_ping=True,
            pool_size=10,
            max_overflow=20,
            hide_parameters=True,
        )
    engine = create_engine(
        url,
        connect_args={"timeout": BUSY_SECONDS},
        pool_size=10,
        max_overflow=20,
        hide_parameters=True,
    )

    @event.listens_for(engine, "connect")
    def _prepare(connection: Any, _record: Any) -> None:
        connection.isolation_level = None
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get("writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine
