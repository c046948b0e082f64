"""Bring the database up to date, by exactly one of many starters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import text

from service.storage.database import Database

LOCK = 0x63616C6962726400
MIGRATIONS = Path(__file__).parent / "migrations"


@contextmanager
def migration_lock(database: Database) -> Iterator[None]:
    """Held by one starter at a time: an advisory lock, or a lock on a file beside SQLite's."""
    if not database.is_sqlite:
        # no transaction may stay open meanwhile: index builds wait for those there are
        outside = database.engine.execution_options(isolation_level="AUTOCOMMIT")
        with outside.connect() as connection:
            connection.execute(text("SELECT pg_advisory_lock(:lock)"), {"lock": LOCK})
            try:
                yield
            finally:
                connection.execute(text("SELECT pg_advisory_unlock(:lock)"), {"lock": LOCK})
        return
    import fcntl

    with Path(f"{database.url.database}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def alembic_config(database: Database) -> Config:
    """Alembic's configuration for this database."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.set_main_option("path_separator", "os")
    config.attributes["engine"] = database.engine
    return config


def upgrade(database: Database) -> None:
    """Run the migrations that are missing; the caller holds the lock."""
    command.upgrade(alembic_config(database), "head")
