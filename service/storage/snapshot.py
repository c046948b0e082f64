"""A copy of the embedded database as of one moment."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from sqlalchemy import URL

from service.errors import Damaged, Unavailable
from service.storage.database import Database
from service.storage.store import Store


def copy_database(file: Path, target: Path) -> None:
    """Copy a SQLite database as of one moment, while others go on reading and writing."""
    with (
        _told(),
        closing(sqlite3.connect(file)) as source,
        closing(sqlite3.connect(target)) as copy,
    ):
        source.backup(copy)  # in one step: in several, every write would make it begin again
        (found,) = copy.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise Damaged("database_damaged", f"the database is damaged: {found}")


@contextmanager
def read_copy(path: Path) -> Iterator[Store]:
    """A copy, to be read; afterwards it is all in one file again."""
    url = URL.create("sqlite", database=str(path)).render_as_string()
    with closing(Database(url)) as copy, copy.read() as store:
        yield store
    with _told(), closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise Unavailable("cannot_copy", f"the database cannot be copied ({error})") from error
