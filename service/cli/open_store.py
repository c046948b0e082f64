"""The database and the folders that a command works on; what is wrong with them is told."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from alembic.util import CommandError
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from service import logs
from service.errors import Invalid
from service.settings import Settings
from service.storage.database import Database
from service.storage.upgrade import open_current
from service.worker.startup import prepare_database


def prepared(settings: Settings) -> Database:
    """The database, made or brought up to date, with the folders in use."""
    if not (settings.database_url and settings.blobs_url):
        check_writable(settings.data_dir)
    if settings.blobs.startswith("file:"):
        check_writable(Path(unquote(urlsplit(settings.blobs).path)))
    with database_explained():
        database = Database(settings.database)
        prepare_database(database)
    return database


def existing(settings: Settings) -> Database:
    """The database as it is."""
    with database_explained():
        return open_current(settings.database)


@contextmanager
def database_explained() -> Iterator[None]:
    """Say what to look at when the database cannot be used."""
    try:
        yield
    except (SQLAlchemyError, CommandError, OSError, ValueError) as error:
        reason = " ".join(str(error.orig if isinstance(error, DBAPIError) else error).split())
        raise Invalid(
            "no_database",
            f"cannot use the database ({logs.redact(reason)}): check that it runs, that this user "
            "may change it, and --database-url",
        ) from error


def check_writable(folder: Path) -> None:
    """Make a folder, and raise unless files can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise Invalid(
            "cannot_write",
            f"cannot write to the folder {folder} ({error.strerror}): "
            "let this user write there, or choose another with --data-dir or --blobs-url",
        ) from error
