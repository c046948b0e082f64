"""A copy of the embedded database as of one moment, and all that its rows name."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import URL, make_url, select

from service.errors import Damaged, Unavailable
from service.storage.database import Database
from service.storage.records import Dataset, Part
from service.storage.rows import Repository
from service.storage.store import Store
from service.storage.tables import calibrators, datasets, parts, versions


@dataclass(frozen=True)
class VersionBlobs:
    """What a version's row says of its blobs, and whose it is."""

    workspace: str
    calibrator: str
    number: int
    id: str | None
    map_sha256: str
    onnx_sha256: str | None


class Inventory(Repository):
    """What rows of all workspaces say of blobs."""

    def datasets(self) -> list[Dataset]:
        """Datasets whose bytes are whole."""
        return self._all(Dataset, select(datasets).where(datasets.c.sha256.is_not(None)))

    def parts(self) -> list[tuple[str, Part]]:
        """Parts of uploads that are open, each with its workspace."""
        chosen = (
            select(datasets.c.workspace, *parts.c).join(parts).where(datasets.c.sha256.is_(None))
        )
        rows = self.session.execute(chosen)
        return [(workspace, Part(*part)) for workspace, *part in rows]

    def versions(self) -> list[VersionBlobs]:
        """All versions."""
        chosen = select(
            calibrators.c.workspace,
            calibrators.c.name.label("calibrator"),
            versions.c.number,
            versions.c.id,
            versions.c.map_sha256,
            versions.c.onnx_sha256,
        ).join(versions)
        return self._all(VersionBlobs, chosen)


def embedded_file(url: str) -> Path | None:
    """The file of a SQLite database, None for another database."""
    parsed = make_url(url)
    return Path(parsed.database or "") if parsed.get_backend_name() == "sqlite" else None


def copy_database(file: Path, target: Path) -> None:
    """Copy a SQLite database as of one moment, while others go on reading and writing."""
    with (
        _told(),
        closing(sqlite3.connect(file)) as source,
        closing(sqlite3.connect(target)) as copy,
    ):
        source.backup(copy)  # in one step: in several, every write would make it begin again
        (found,) = copy.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise Damaged("database_damaged", f"the database is damaged: {found}")


@contextmanager
def read_copy(path: Path) -> Iterator[Store]:
    """A copy, to be read; afterwards it is all in one file again."""
    url = URL.create("sqlite", database=str(path)).render_as_string()
    with closing(Database(url)) as copy, copy.read() as store:
        yield store
    with _told(), closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise Unavailable("cannot_copy", f"the database cannot be copied ({error})") from error
