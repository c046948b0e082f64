"""A SQLite file that another process keeps locked is busy, not away."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

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
