"""The database: short read and write transactions on SQLite or PostgreSQL, chosen by URL."""

from __future__ import annotations

import builtins
import logging
import math
import shutil
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import URL, Engine, NullPool, create_engine, event, make_url
from sqlalchemy.engine import Connection
from sqlalchemy.exc import (
    DatabaseError,
    InterfaceError,
    InternalError,
    OperationalError,
    TimeoutError,
)
from sqlalchemy.orm import Session
from sqlalchemy.pool import ConnectionPoolEntry

from service.errors import DatabaseDamaged, NoSpace, Unavailable
from service.storage.repository import as_json
from service.storage.store import Store
from service.storage.write_turns import WriteTurns

if TYPE_CHECKING:
    from service.storage.deadlines import Deadlines

# raised while the database is down, or is a read-only replica because of a failover
DATABASE_DOWN = (OperationalError, InternalError, InterfaceError, TimeoutError)
# failures of the database or the blob store that may be temporary
TRANSIENT = (*DATABASE_DOWN, Unavailable)
# error names of a full disk and of timeouts
FULL = ("SQLITE_FULL", "SQLITE_IOERR_WRITE", "53100")
SLOW = (
    "57014",
    "55P03",
    "25P03",
    "SQLITE_BUSY",
    "SQLITE_BUSY_SNAPSHOT",
    "SQLITE_LOCKED",
    "SQLITE_INTERRUPT",
)
# primary error codes of a damaged SQLite file
DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
BUSY_SECONDS = 10
DAMAGED_SENTENCE = "the database file is damaged: run `calibrd doctor` on the server"
BUSY = "the database took too long: try again"
# connections of an API process or a worker; those beyond the first ten are closed after use
POOL = {"pool_size": 10, "max_overflow": 20}
# both ends notice a broken connection within about 10 s, instead of 15 minutes by default
CONNECTION = {
    "application_name": "calibrd",
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 2,
    "tcp_user_timeout": 10_000,
}
SERVER = {
    "tcp_keepalives_idle": "5s",
    "tcp_keepalives_interval": "2s",
    "tcp_keepalives_count": "2",
    "tcp_user_timeout": "10s",
}
# transactions take milliseconds, so these limits only affect stalled clients, which would block
# others
STATEMENT_SECONDS = 30
LIMITS = {
    "statement_timeout": f"{STATEMENT_SECONDS}s",
    "lock_timeout": "10s",
    "idle_in_transaction_session_timeout": "10s",
}
# the server's timeout as a share of the client's
SERVER_SHARE = 0.8
# deleting needs disk space too: this much is reserved for it, or a twentieth of a small disk
RESERVE_BYTES = 64 << 20
RESERVE_PART = 20
MIN_FREE_PART = 4  # small rows may use the reserve down to this fraction
SHARE_PART = 4
# SQLite VM operations between two checks of the clock; they take milliseconds
CHECK_EVERY = 50_000
# the write-ahead log is cut to this length once no reader needs it
LOG_BYTES = 64 << 20
# how many seconds writers may wait while a log of twice that length is emptied
LOG_WAIT = 0.2
SQLITE_PRAGMAS = (
    "journal_mode=WAL",
    "synchronous=FULL",
    "foreign_keys=ON",
    f"journal_size_limit={LOG_BYTES}",
)
UNLIMITED = "unlimited"  # the execution option of connections without the time limit

logger = logging.getLogger(__name__)


class Database:
    """Transactions on SQLite or PostgreSQL.

    SQLite runs in WAL mode and is durable at every commit. Its write transactions take the write
    lock when they begin, round-robin over workspaces, because a plain BEGIN that writes later fails
    under concurrency. Its read transactions never wait for a writer.

    ``unlimited`` is an engine without time limits, for migrations and the like. ``seconds`` limits
    the total time that a PostgreSQL transaction waits for the server, even one that hangs, and the
    time of a SQLite statement. With ``leaves_room``, a SQLite file on a nearly full disk accepts
    only transactions that delete. ``is_damaged`` is set once SQLite has reported that the file is
    damaged.
    """

    def __init__(
        self, url: str, *, seconds: float | None = None, leaves_room: bool = False
    ) -> None:
        self.url = make_url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self._checked_folder: Path | None = None
        if self.is_sqlite and self.url.database:
            folder = Path(self.url.database).parent
            folder.mkdir(parents=True, exist_ok=True)
            self._checked_folder = folder if leaves_room else None
        if self.is_sqlite:
            self.engine = _sqlite(self.url)
            limit_statements(self.engine, seconds or STATEMENT_SECONDS)
            self.unlimited: Engine = self.engine.execution_options(**{UNLIMITED: True})
        else:
            limits, pool = _limits(seconds)
            self.engine = _postgresql(self.url, limits, pool_pre_ping=True, **pool)
            self.unlimited = _postgresql(self.url, {}, poolclass=NullPool)
        self._turns = WriteTurns(Path(self.url.database) if self.url.database else None)
        self._writing = self.engine.execution_options(writes=True)
        self._is_closed = False
        self.is_damaged = False
        event.listen(self.engine, "checkin", self._returned)
        self._deadlines: Deadlines | None = None
        if seconds is not None and not self.is_sqlite:
            from service.storage.deadlines import Deadlines  # loads psycopg

            probe_engine = _postgresql(self.url, limits, poolclass=NullPool)
            self._deadlines = Deadlines(self.engine, probe_engine, seconds)

    @contextmanager
    def read(self, seconds: float | None = None) -> Iterator[Store]:
        """Begin a read-only transaction; ``seconds`` replaces the usual deadline."""
        with (
            self._translated_errors(),
            self._bound(self.engine, seconds) as bind,
            Session(bind) as session,
        ):
            yield Store(session)

    @contextmanager
    def write(self, *, deletes: bool = False) -> Iterator[Store]:
        """Begin a transaction that commits at the end, or rolls back on any error."""
        if self._checked_folder is not None and not deletes:
            check_free(self._checked_folder, MIN_FREE_PART)
        with (
            self._turn(),
            self._translated_errors(),
            self._bound(self._writing) as bind,
            Session(bind) as session,
            session.begin(),
        ):
            yield Store(session)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Wait for a turn to write to SQLite; PostgreSQL has its own queues."""
        with ExitStack() as held:
            if self.is_sqlite:
                try:
                    held.enter_context(self._turns.turn(BUSY_SECONDS))
                except builtins.TimeoutError as error:
                    raise Unavailable("database_busy", BUSY) from error
            yield

    def _bound(
        self, engine: Engine, seconds: float | None = None
    ) -> AbstractContextManager[Engine | Connection]:
        """Return the bind of a session: the engine, or a connection with a deadline."""
        if self._deadlines is None:
            return nullcontext(engine)
        return self._deadlines.connected(engine, seconds)

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Translate errors for a damaged file, a full disk and a slow statement."""
        try:
            yield
        except DatabaseError as error:
            if is_damage(error):
                if not self.is_damaged:
                    logger.error("database_damaged", extra={"reason": str(error.orig)})
                self.is_damaged = True
                raise DatabaseDamaged("database_damaged", DAMAGED_SENTENCE) from error
            name = getattr(error.orig, "sqlite_errorname", getattr(error.orig, "sqlstate", None))
            is_temporary = isinstance(error, OperationalError | InternalError)
            if is_temporary and name in FULL:
                raise NoSpace("no_space", "the database disk is full: try again later") from error
            if is_temporary and name in SLOW:
                raise Unavailable("database_busy", BUSY) from error
            raise

    def shorten_log(self) -> None:
        """Empty SQLite's write-ahead log if it is too long.

        SQLite cannot reuse the log if some read is always in progress. Most of the log is copied
        into the database without blocking writers. Then writers wait for the reads in progress, for
        at most LOG_WAIT seconds, or proportionally longer for a longer log.
        """
        if not self.is_sqlite or not self.url.database:
            return
        log = Path(f"{self.url.database}-wal")
        size = log.stat().st_size if log.exists() else 0
        if size <= 2 * LOG_BYTES:
            return
        wait = min(BUSY_SECONDS, LOG_WAIT * size / (2 * LOG_BYTES))
        with closing(sqlite3.connect(self.url.database, timeout=wait)) as connection:
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
            with self._turn():
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Close all connections; those in use are closed when they are returned."""
        self._is_closed = True
        if self._deadlines is not None:
            self._deadlines.close()
        self.engine.dispose()

    def _returned(self, _connection: Any, entry: ConnectionPoolEntry) -> None:
        """Close a connection that was in use when the database was closed."""
        if self._is_closed:
            entry.close()


def is_damage(error: BaseException | None) -> bool:
    """Return whether a SQLite error reports a damaged file."""
    cause = error.orig if isinstance(error, DatabaseError) else error
    return int(getattr(cause, "sqlite_errorcode", 0)) & 0xFF in DAMAGED


def embedded_file(url: str) -> Path | None:
    """Return the file of a SQLite database; None for other databases."""
    parsed = make_url(url)
    return Path(parsed.database or "") if parsed.get_backend_name() == "sqlite" else None


def connection_arguments(url: URL, limits: Mapping[str, str] = LIMITS) -> dict[str, Any]:
    """Return the arguments for connecting to PostgreSQL; the URL takes precedence."""
    ours = {name: value for name, value in CONNECTION.items() if name not in url.query}
    options = [f"-c {name}={value}" for name, value in {**SERVER, **limits}.items()]
    return {**ours, "options": " ".join([*options, str(url.query.get("options", ""))]).strip()}


def _limits(seconds: float | None) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the limits for the server and the connection pool.

    The server's timeouts are shorter than the client's, so that a slow server that still responds
    can be distinguished from one that does not.
    """
    if seconds is None:
        return LIMITS, POOL
    most = f"{int(1000 * seconds * SERVER_SHARE)}ms"
    return (
        {**LIMITS, "statement_timeout": most, "lock_timeout": most},
        {**POOL, "pool_timeout": seconds},
    )


def _postgresql(url: URL, limits: Mapping[str, str], **pool: Any) -> Engine:
    arguments = connection_arguments(url, limits)
    return create_engine(
        url, connect_args=arguments, hide_parameters=True, json_serializer=as_json, **pool
    )


def _sqlite(url: URL) -> Engine:
    engine = create_engine(
        url,
        connect_args={"timeout": BUSY_SECONDS},
        hide_parameters=True,
        json_serializer=as_json,
        **POOL,
    )

    @event.listens_for(engine, "connect")
    def _prepare(connection: Any, _record: Any) -> None:
        connection.isolation_level = None
        for pragma in SQLITE_PRAGMAS:
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get("writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def limit_statements(engine: Engine, seconds: float) -> None:
    """Interrupt SQLite statements after ``seconds``, also while their rows are fetched."""

    @event.listens_for(engine, "connect")
    def _watch(connection: Any, record: Any) -> None:
        facts = record.info
        facts["deadline"] = math.inf
        connection.set_progress_handler(lambda: time.monotonic() > facts["deadline"], CHECK_EVERY)

    @event.listens_for(engine, "checkin")
    def _end(_connection: Any, record: Any) -> None:
        # the next user may bypass SQLAlchemy's cursors, as NotificationListener does
        record.info["deadline"] = math.inf

    @event.listens_for(engine, "before_cursor_execute")
    def _begin(connection: Connection, *_: Any) -> None:
        is_limited = not connection.get_execution_options().get(UNLIMITED, False)
        connection.info["deadline"] = time.monotonic() + seconds if is_limited else math.inf


def check_free(folder: Path, part: int = 1) -> None:
    """Raise NoSpace if a folder's disk has less free space than its reserve divided by ``part``."""
    disk = shutil.disk_usage(folder)
    if disk.free < min(RESERVE_BYTES, disk.total // RESERVE_PART) // part:
        raise NoSpace("no_space", "the service's disk is full: delete datasets, or try again later")


def share_of_disk(folder: Path) -> int:
    """Return the number of bytes that one workspace may store on a folder's disk."""
    return shutil.disk_usage(folder).total // SHARE_PART
