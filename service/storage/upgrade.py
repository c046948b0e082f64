"""Migration of the database, by only one of several processes that start together."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text

from service.errors import Invalid
from service.storage.database import Database, embedded_file
from service.storage.schema_check import check_schema

LOCK = 0x63616C6962726400
MIGRATIONS = Path(__file__).parent / "migrations"
VERSION_TABLE = "calibrd_schema"

logger = logging.getLogger(__name__)


@contextmanager
def migration_lock(database: Database) -> Iterator[None]:
    """Hold the migration lock: a PostgreSQL advisory lock, or a lock on a file next to SQLite's."""
    if not database.is_sqlite:
        # no transaction may stay open here, because index builds wait for open transactions
        outside = database.unlimited.execution_options(isolation_level="AUTOCOMMIT")
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
    """Return Alembic's configuration for this database."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.set_main_option("path_separator", "os")
    config.attributes["version_table"] = VERSION_TABLE
    config.attributes["engine"] = database.unlimited
    return config


def newest_revision() -> str:
    """Return the revision that this program migrates databases to."""
    found = _scripts().get_current_head()
    assert found is not None  # noqa: S101
    return found


def is_known(revision: str) -> bool:
    """Return whether this program can migrate a database at this revision."""
    return revision in {one.revision for one in _scripts().walk_revisions()}


def revision_of(database: Database) -> str | None:
    """Return the revision of a database; None if it is not a calibrd database."""
    with database.unlimited.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
        return context.get_current_revision()


def open_current(url: str) -> Database:
    """Open an existing database without creating or migrating it.

    Raises Invalid if it does not exist or is not at this program's revision.
    """
    file = embedded_file(url)
    if file is not None:
        check_exists(file)
    database = Database(url)
    try:
        check_current(database)
    except Invalid:
        database.close()
        raise
    return database


def check_exists(file: Path) -> None:
    """Raise Invalid unless the file of an embedded database exists."""
    if not file.is_file():
        raise Invalid(
            "no_database",
            f"there is no database at {file}: check --data-dir and --database-url. For a new "
            "service, create it with `python -m service migrate`",
        )


def check_current(database: Database) -> None:
    """Raise Invalid unless a database has this program's revision and schema."""
    found = revision_of(database)
    if found is None:
        raise Invalid(
            "other_schema",
            "the database is empty: check --data-dir and --database-url. If it contained data, "
            "restore a backup; for a new service, run `python -m service migrate`",
        )
    _check_known(found)
    if found != newest_revision():
        raise Invalid(
            "other_schema",
            f"the database is at revision {found}, but this version of the service expects "
            f"{newest_revision()}: use the version that serves it, or first run "
            "`python -m service migrate`",
        )
    check_schema(database, found)


def _scripts() -> ScriptDirectory:
    return ScriptDirectory(str(MIGRATIONS))


def _check_known(revision: str) -> None:
    if not is_known(revision):
        raise Invalid(
            "newer_database",
            f"the database is at revision {revision}, but this version of the service knows only "
            f"revisions up to {newest_revision()}: start the version that created it, or a newer "
            "one",
        )


def upgrade(database: Database) -> None:
    """Run the missing migrations; the caller holds the lock.

    Raises Invalid if the database was created by a newer version of the service, or if its schema
    does not match its revision.
    """
    before = revision_of(database)
    if before is not None:
        _check_known(before)
    command.upgrade(alembic_config(database), "head")
    after = revision_of(database)
    check_schema(database, after or "")
    if after != before:
        logger.info("database_migrated", extra={"from": before, "to": after})
