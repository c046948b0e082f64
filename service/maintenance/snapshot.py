"""A copy of the embedded database as of one moment."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import URL

from service.errors import Damaged, Unavailable
from service.storage.database import Database
from service.storage.upgrade import VERSION_TABLE

DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
NOT_WRITABLE = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)


def copy_database(file: Path, target: Path) -> None:
    """Copy a SQLite database as of one moment, while others go on reading and writing."""
    with _told():
        try:
            # read-only if it must be; else the last to close takes away what it has put beside it
            _copy(file, target, "mode=rw")
        except sqlite3.OperationalError as error:
            if _kind(error) not in NOT_WRITABLE or _changes(file).exists():
                raise
            _copy_at_rest(file, target)
        check_copy(target)


def check_copy(path: Path) -> None:
    """Raise Damaged unless a file is a database that is whole."""
    with _told(), closing(sqlite3.connect(path)) as copy:
        (found,) = copy.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise Damaged("database_damaged", f"the database is damaged: {' '.join(found.split())}")


def schema_of(path: Path) -> str | None:
    """The revision that a copy says it has, None if it has no tables of ours."""
    with _told(), closing(sqlite3.connect(path)) as copy:
        try:
            found = copy.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchall()  # noqa: S608
        except sqlite3.OperationalError:
            return None
    return ", ".join(str(revision) for (revision,) in found) or None


@contextmanager
def opened_copy(path: Path) -> Iterator[Database]:
    """A copy, to be read; afterwards it is all in one file again."""
    url = URL.create("sqlite", database=str(path)).render_as_string()
    with closing(Database(url)) as copy:
        yield copy
    with _told(), closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")


def _copy(file: Path, target: Path, how: str) -> None:
    with (
        closing(sqlite3.connect(f"file:{quote(str(file.absolute()))}?{how}", uri=True)) as source,
        closing(sqlite3.connect(target)) as copy,
    ):
        source.backup(copy)  # in one step: in several, every write would make it begin again


def _copy_at_rest(file: Path, target: Path) -> None:
    """Where nothing can be written no reader can be announced: nobody may write meanwhile."""
    before = file.stat()
    _copy(file, target, "immutable=1")
    after = file.stat()
    is_same = (before.st_mtime_ns, before.st_size) == (after.st_mtime_ns, after.st_size)
    if _changes(file).exists() or not is_same:
        raise Unavailable(
            "cannot_copy",
            f"the database was changed while it was copied, and nothing can be written to "
            f"{file.parent}: back up where the service runs",
        )


def _changes(file: Path) -> Path:
    return Path(f"{os.fspath(file)}-wal")


def _kind(error: sqlite3.Error) -> int:
    """SQLite's code without its details."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        if _kind(error) in DAMAGED:
            raise Damaged("database_damaged", f"the database is damaged: {error}") from error
        raise Unavailable("cannot_copy", f"the database cannot be copied ({error})") from error
