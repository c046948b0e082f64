"""Detect damage in the file of the embedded database without changing it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from service.maintenance.doctor_messages import Finding
from service.storage.database import is_damage

MOST_MESSAGES = 10
CODE = "database_damaged"
RESTORE = "move the damaged file away and restore a backup: see docs/how-to/back-up.md"
REBUILD = (
    "every table can still be read: stop the service and rebuild the indexes, as described in "
    "docs/how-to/back-up.md. If that fails, restore a backup"
)


def damage_of(file: Path) -> Iterator[Finding]:
    """Run SQLite's integrity check on the whole file; yield a finding if it fails.

    Errors other than damage are not reported here, but when the database is opened.
    """
    try:
        with closing(_opened(file)) as connection:
            found = _messages(connection, f"PRAGMA integrity_check({MOST_MESSAGES})")
            if found:
                unreadable = _unreadable_tables(connection)
                messages = "; ".join([*found, *unreadable])
                yield Finding(
                    CODE, f"database {file}", messages, RESTORE if unreadable else REBUILD
                )
    except sqlite3.Error as error:
        if is_damage(error):
            yield Finding(CODE, f"database {file}", str(error), RESTORE)


def _opened(file: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(str(file.absolute()))}?mode=ro", uri=True)


def _messages(connection: sqlite3.Connection, pragma: str) -> list[str]:
    """Return the messages or the error of the check; empty if the file is intact."""
    found: list[str] = []
    try:
        for (row,) in connection.execute(pragma):
            found += [line for line in str(row).splitlines() if not line.startswith("***")]
    except sqlite3.Error as error:
        if not is_damage(error):
            raise
        found.append(f"integrity_check: {error}")
    return [] if found == ["ok"] else found[:MOST_MESSAGES]


def _unreadable_tables(connection: sqlite3.Connection) -> list[str]:
    """Return a message for every table that cannot be read in full."""
    connection.text_factory = bytes
    query = "SELECT name FROM sqlite_master WHERE type = 'table'"
    unreadable = []
    for (name,) in connection.execute(query).fetchall():
        table = name.decode()
        try:
            for _ in connection.execute(f'SELECT * FROM "{table}" NOT INDEXED'):  # noqa: S608
                pass
        except sqlite3.Error as error:
            if not is_damage(error):
                raise
            unreadable.append(f"the table {table} cannot be read")
    return unreadable
