"""Bring a database to where the service can start on it."""

from __future__ import annotations

from contextlib import closing

from dbos import DBOS

from service.access.keys import DEFAULT_WORKSPACE, workspace_named
from service.fits.queue import DbosQueue
from service.storage.database import Database
from service.storage.upgrade import migration_lock, upgrade


def prepare_database(database: Database) -> None:
    """All tables, the queues and the first workspace; many starters may do so at once."""
    with migration_lock(database):
        # ours first: it is our engine that puts a new SQLite file into WAL mode
        upgrade(database)
        with database.write() as store:
            workspace_named(store, DEFAULT_WORKSPACE, make=True)
        if database.is_sqlite:
            _migrate_dbos(database)
    if not database.is_sqlite:
        # it has a lock of its own there, and builds indexes that wait for the holders of ours
        _migrate_dbos(database)
    with closing(DbosQueue(database)) as queue:
        queue.register()


def _migrate_dbos(database: Database) -> None:
    DBOS.migrate(database.url.render_as_string(hide_password=False))
