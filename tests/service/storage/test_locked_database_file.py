"""A SQLite file locked by another process, or a slow statement, is busy, not unavailable."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import pytest
from sqlalchemy import text

from service.errors import Unavailable
from service.storage import database as module
from service.storage.database import Database
from service.worker.startup import prepare_database


def test_a_locked_file_is_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BUSY_SECONDS", 0.1)
    database = Database(f"sqlite:///{tmp_path / 'locked.db'}")
    prepare_database(database)
    other = sqlite3.connect(tmp_path / "locked.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        with pytest.raises(Unavailable) as refused, database.write() as store:
            store.keys.count()
        assert refused.value.code == "database_busy"
        with database.read() as store:
            assert store.keys.count() == 0
    finally:
        other.close()
        database.close()


COUNTING = "WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < {}) "
COUNTING += "SELECT count(*) FROM n"
ENDLESS, LONG = COUNTING.format(10**12), COUNTING.format(2_000_000)


@pytest.mark.parametrize("how", ["read", "write"])
def test_a_slow_statement_is_ended_and_its_connection_stays_usable(
    tmp_path: Path, how: str
) -> None:
    database = Database(f"sqlite:///{tmp_path / 'slow.db'}", seconds=0.2)
    prepare_database(database)
    began = time.monotonic()
    with pytest.raises(Unavailable) as refused, getattr(database, how)() as store:
        store.session.execute(text(ENDLESS))
    assert refused.value.code == "database_busy"
    assert time.monotonic() - began < 5
    for _ in range(3):
        with database.write() as store:
            assert store.keys.count() == 0
    database.close()


def test_migrations_may_take_long(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'slow.db'}", seconds=0.01)
    with database.unlimited.connect() as connection:
        assert connection.scalar(text(LONG)) == 2_000_000
    database.close()
