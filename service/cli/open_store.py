"""Open the database and check the folders of a command, with clear errors."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from alembic.util import CommandError
from sqlalchemy.exc import (
    DataError,
    DBAPIError,
    IntegrityError,
    ProgrammingError,
    SQLAlchemyError,
)

from service import logs
from service.errors import Invalid
from service.settings import Settings
from service.storage.database import Database
from service.storage.upgrade import open_current
from service.worker.startup import prepare_database

BUGS = (DataError, IntegrityError, ProgrammingError)
NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC)


def prepared(settings: Settings) -> Database:
    """Check the folders, and return the database, created or upgraded if necessary."""
    if not (settings.database_url and settings.blobs_url):
        check_writable(settings.data_dir)
    if settings.blobs.startswith("file:"):
        check_writable(Path(unquote(urlsplit(settings.blobs).path)))
    with database_explained():
        database = Database(settings.database)
        prepare_database(database)
    return database


def existing(settings: Settings) -> Database:
    """Return an existing database, without changing it."""
    with database_explained():
        return open_current(settings.database)


@contextmanager
def database_explained() -> Iterator[None]:
    """Turn any database error into one that says what to check."""
    try:
        yield
    except (SQLAlchemyError, CommandError, OSError, ValueError) as error:
        raise _no_database(error) from error


@contextmanager
def failures_explained() -> Iterator[None]:
    """Convert failures that the user can fix into errors that say what to check.

    Other errors, such as a violated constraint, are bugs and keep their traceback.
    """
    try:
        yield
    except DBAPIError as error:
        if isinstance(error, BUGS):
            raise
        raise _no_database(error) from error
    except OSError as error:
        if error.errno not in NOT_WRITABLE:
            raise
        raise Invalid(
            "cannot_write",
            f"cannot use {error.filename or 'a file'} ({error.strerror}): allow this user to read "
            "and write there, or free some space",
        ) from error


def _no_database(error: Exception) -> Invalid:
    reason = " ".join(str(error.orig if isinstance(error, DBAPIError) else error).split())
    return Invalid(
        "no_database",
        f"cannot use the database ({logs.redact(reason)}): check that it is running, that this "
        "user may write to it, and --database-url",
    )


def check_writable(folder: Path) -> None:
    """Create a folder, and raise Invalid unless it is writable."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise Invalid(
            "cannot_write",
            f"cannot write to the folder {folder} ({error.strerror}): "
            "allow this user to write there, or choose another with --data-dir or --blobs-url",
        ) from error
