"""Open the database and check the folders for a command, with clear error messages."""

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
from service.errors import DatabaseDamaged, Invalid, ServiceError
from service.settings import Settings
from service.storage.blobs import Blobs
from service.storage.database import Database, is_damage
from service.storage.store_identity import check_bound
from service.storage.upgrade import open_current
from service.worker.startup import prepare_database

BUGS = (DataError, IntegrityError, ProgrammingError)
NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC)


def prepared(settings: Settings, *, adopt: bool = False) -> Database:
    """Check the stores and return the database, which is created or upgraded if necessary.

    With ``adopt``, the database takes over the blob store even if it belongs to another database.
    """
    check_blobs_url(settings)
    if not (settings.database_url and settings.blobs_url):
        check_writable(settings.data_dir)
    if settings.blobs.startswith("file:"):
        check_writable(Path(unquote(urlsplit(settings.blobs).path)))
    with database_explained():
        database = Database(settings.database)
        try:
            prepare_database(database, Blobs(settings.blobs), adopt=adopt)
        except BaseException:
            database.close()
            raise
    return database


def existing(settings: Settings) -> Database:
    """Open an existing database without changing it."""
    with database_explained():
        return open_current(settings.database)


def blobs_for(settings: Settings, database: Database) -> Blobs:
    """Return the blob store of a database; raise Conflict if it belongs to another database."""
    blobs = existing_blobs(settings)
    check_bound(database, blobs)
    return blobs


def existing_blobs(settings: Settings) -> Blobs:
    """Return the blob store without checking that it belongs to the database."""
    check_blobs_url(settings)
    return Blobs(settings.blobs)


def check_blobs_url(settings: Settings) -> None:
    """Raise Invalid if the database is PostgreSQL, but ``blobs_url`` is not set.

    Several machines may share the database, but not the default folder.
    """
    if not settings.blobs_url and not settings.database.startswith("sqlite"):
        raise Invalid(
            "no_blobs_url",
            "--blobs-url (CALIBRD_BLOBS_URL) is not set: with PostgreSQL, all processes must use "
            "the same blob store. Set it to s3://bucket/prefix or, if all processes run on this "
            f"machine, to a folder such as {settings.blobs}",
        )


@contextmanager
def database_explained() -> Iterator[None]:
    """Convert any database error into a service error that explains what to check."""
    try:
        yield
    except (SQLAlchemyError, CommandError, OSError, ValueError) as error:
        raise _no_database(error) from error


@contextmanager
def failures_explained() -> Iterator[None]:
    """Convert failures that the user can fix into errors that explain what to check.

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
            f"cannot use {error.filename or 'a file'} ({error.strerror}): grant this user read "
            "and write access, or free some space",
        ) from error


def _no_database(error: Exception) -> ServiceError:
    reason = " ".join(str(error.orig if isinstance(error, DBAPIError) else error).split())
    if is_damage(error):
        return DatabaseDamaged(
            "database_damaged",
            f"the database file is damaged ({reason}): run `python -m service doctor`, which says "
            "what is damaged and how to repair it",
        )
    return Invalid(
        "no_database",
        f"cannot use the database ({logs.redact(reason)}): check --database-url, that the database "
        "is running, and that this user may write to it",
    )


def check_writable(folder: Path) -> None:
    """Create a folder if necessary; raise Invalid unless it is writable."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise Invalid(
            "cannot_write",
            f"cannot write to the folder {folder} ({error.strerror}): "
            "grant this user write access, or choose another folder with --data-dir or --blobs-url",
        ) from error
