"""The two storage backends over which storage tests run: embedded, and shared servers."""

from __future__ import annotations

import functools
import itertools
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from helpers.database_servers import S3, Postgres, postgres, s3
from service.storage.database import Database
from service.worker.startup import prepare_database

DATABASE_FILE = "calibrd.db"
BUCKET = "calibrd-tests"
TEMPLATE = "calibrd_template"


class Embedded:
    """SQLite and a folder of blobs, in the data directory."""

    name = "embedded"

    def settings(self, folder: Path, *, empty: bool = False) -> dict[str, Any]:
        """Return the settings of a service with its own folder, with tables unless ``empty``."""
        if not empty:
            add_database(folder)
        return {"data_dir": folder}


def add_database(folder: Path) -> None:
    """Copy a prepared SQLite database to a data directory, unless it has one."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / DATABASE_FILE).exists():
        (folder / DATABASE_FILE).write_bytes(_prepared_file())


@functools.cache
def _prepared_file() -> bytes:
    """Return a SQLite database that a service can start on."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / DATABASE_FILE
        prepared = Database(f"sqlite:///{file}")
        prepare_database(prepared)
        prepared.close()
        assert not list(file.parent.glob(f"{file.name}-*")), "what is not in the file yet"
        return file.read_bytes()


@dataclass
class Fleet:
    """PostgreSQL and S3: a new database and a new prefix for each folder."""

    database: Postgres
    blobs: S3
    name = "fleet"
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.blobs.make_bucket(BUCKET)
        self.database.execute(f"CREATE DATABASE {TEMPLATE}")
        prepared = Database(self.database.url(TEMPLATE))
        prepare_database(prepared)
        prepared.close()

    def settings(self, folder: Path, *, empty: bool = False) -> dict[str, Any]:
        """Return the settings of a service that shares nothing, with tables unless ``empty``."""
        name = f"calibrd_{next(self._numbers)}"
        template = "template0" if empty else TEMPLATE
        self.database.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return {
            "data_dir": folder,
            "database_url": self.database.url(name),
            "blobs_url": f"s3://{BUCKET}/{name}",
        }


Backend = Embedded | Fleet


@contextmanager
def fleet(*options: str) -> Iterator[Fleet]:
    """Start the servers; set the environment by which this process and its children find S3."""
    with postgres(*options) as database, s3() as blobs:
        before = dict(os.environ)
        os.environ.update(blobs.environment)
        try:
            yield Fleet(database, blobs)
        finally:
            os.environ.clear()
            os.environ.update(before)


def environment(settings: dict[str, Any]) -> dict[str, str]:
    """Return the same settings as environment variables for a process."""
    return {f"CALIBRD_{name.upper()}": str(value) for name, value in settings.items()}
