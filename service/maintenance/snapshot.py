"""Consistent snapshots of the embedded database."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import URL

from service.errors import DatabaseDamaged, Unavailable
from service.storage.database import Database, is_damage
from service.storage.store_identity import CHORE, UNCONFIRMED
from service.storage.upgrade import VERSION_TABLE

NOT_WRITABLE = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)


def copy_database(file: Path, target: Path) -> None:
    """Copy a consistent snapshot of an SQLite database that other processes may be writing to."""
    with _translate_errors():
        try:
            # writable if possible, because closing the last connection then removes -wal and -shm
            _copy(file, target, "mode=rw")
        except sqlite3.OperationalError as error:
            if _kind(error) not in NOT_WRITABLE or _changes(file).exists():
                raise
            _copy_at_rest(file, target)
        check_copy(target)


def check_copy(path: Path) -> None:
    """Raise DatabaseDamaged unless a file is an intact database."""
    with _translate_errors(), closing(sqlite3.connect(path)) as copy:
        (found,) = copy.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise DatabaseDamaged(
            "database_damaged", f"the database is damaged: {' '.join(found.split())}"
        )


def schema_of(path: Path) -> str | None:
    """Return the schema revision of a copy; None if it is not a calibrd database."""
    with _translate_errors(), closing(sqlite3.connect(path)) as copy:
        try:
            found = copy.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchall()  # noqa: S608
        except sqlite3.OperationalError:
            return None
    return ", ".join(str(revision) for (revision,) in found) or None


def store_id_of(path: Path) -> str:
    """Return the id of the blob store that a copy is bound to; empty if there is none."""
    with _translate_errors(), closing(sqlite3.connect(path)) as copy:
        try:
            found = copy.execute("SELECT note FROM chores WHERE name = ?", (CHORE,)).fetchone()
        except sqlite3.OperationalError:  # the schema of an old backup has no notes
            return ""
    return found[0].removesuffix(UNCONFIRMED) if found else ""


@contextmanager
def opened_copy(path: Path) -> Iterator[Database]:
    """Open a copy for reading, and turn it back into a single file afterwards."""
    url = URL.create("sqlite", database=str(path)).render_as_string()
    with closing(Database(url)) as copy:
        yield copy
    with _translate_errors(), closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")


def _copy(file: Path, target: Path, how: str) -> None:
    with (
        closing(sqlite3.connect(f"file:{quote(str(file.absolute()))}?{how}", uri=True)) as source,
        closing(sqlite3.connect(target)) as copy,
    ):
        source.backup(copy)  # in a single step, because a write between two steps would restart it


def _copy_at_rest(file: Path, target: Path) -> None:
    """Copy without a lock, for a read-only folder; raise Unavailable if the file changes."""
    before = file.stat()
    _copy(file, target, "immutable=1")
    after = file.stat()
    is_same = (before.st_mtime_ns, before.st_size) == (after.st_mtime_ns, after.st_size)
    if _changes(file).exists() or not is_same:
        raise Unavailable(
            "cannot_copy",
            f"the database changed while it was being copied, and {file.parent} is not writable: "
            "run the backup where the service runs",
        )


def _changes(file: Path) -> Path:
    return Path(f"{os.fspath(file)}-wal")


def _kind(error: sqlite3.Error) -> int:
    """Return SQLite's primary error code."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


@contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        if is_damage(error):
            raise DatabaseDamaged(
                "database_damaged", f"the database is damaged: {error}"
            ) from error
        raise Unavailable("cannot_copy", f"the database cannot be copied ({error})") from error
