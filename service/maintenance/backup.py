"""Backup and restore in embedded mode: a snapshot of the database with its blobs."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib import metadata
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from service.errors import (
    BlobMissing,
    Conflict,
    Damaged,
    DatabaseDamaged,
    Invalid,
    NoSpace,
    Unavailable,
)
from service.maintenance.archive_file import (
    BLOBS,
    DATABASE,
    BackupReader,
    BackupWriter,
    Manifest,
    pieces_of,
    reading,
)
from service.maintenance.inventory_repository import Inventory, pages
from service.maintenance.snapshot import (
    check_copy,
    copy_database,
    opened_copy,
    schema_of,
    store_id_of,
)
from service.settings import Settings
from service.storage.blob_keys import (
    BlobKind,
    dataset_key,
    judged_key,
    map_key,
    onnx_key,
    part_key,
)
from service.storage.blobs import FULL, Blobs, fsync_paths
from service.storage.database import Database, embedded_file
from service.storage.store_identity import ID_KEY, check_bound
from service.storage.upgrade import (
    check_current,
    check_exists,
    is_known,
    migration_lock,
    newest_revision,
)

MAX_ROUNDS = 20


class NamedBlob(NamedTuple):
    """A blob that a row refers to; ``what`` describes its content."""

    key: str
    sha256: str
    kind: BlobKind
    what: str


def back_up(
    settings: Settings, target: Path, *, force: bool = False, keep_going: bool = False
) -> Manifest:
    """Write a backup while the service is running; ``keep_going`` skips damaged blobs."""
    database = embedded_file(settings.database)
    if database is None:
        raise _only_embedded()
    check_exists(database)
    _check_free(target, force=force)
    with (
        _explain_write_errors(target.parent),
        tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as folder,
    ):
        whole = Path(folder) / "backup.tar"
        with whole.open("xb") as file:
            writer = BackupWriter(file, time.time())
            copier = _Copier(database, Blobs(settings.blobs), writer, keep_going)
            manifest = copier.run(Path(folder) / DATABASE)
            file.flush()
            os.fsync(file.fileno())
        _check_free(target, force=force)
        whole.replace(target)
        fsync_paths(target.parent)
    return manifest


class _Copier:
    """A copier of the database and its blobs, which starts over if blobs are deleted meanwhile.

    Blobs never change, so copied ones stay valid, and each round leaves less to copy. The finished
    backup contains a copy of the database and all of its blobs.
    """

    def __init__(
        self, database: Path, blobs: Blobs, writer: BackupWriter, keep_going: bool
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._writer = writer
        self._keep_going = keep_going
        self._copied: set[str] = set()
        self._absent: set[str] = set()
        self._damaged: dict[str, str] = {}

    def run(self, copy: Path) -> Manifest:
        """Copy everything; ``copy`` is the path for the snapshot of the database."""
        created_at = time.time()
        for _ in range(MAX_ROUNDS):
            copy.unlink(missing_ok=True)
            copy_database(self._database, copy)
            with opened_copy(copy) as database:
                check_current(database)
                if not self._keep_going:
                    check_bound(database, self._blobs)
                with database.read() as store:
                    named = list(named_blobs(store.inventory))
            absent = {blob.key for blob in named if not self._copy(blob)}
            if not absent:
                break
            self._absent = absent
        else:
            raise Unavailable(
                "too_much_change",
                "datasets are being deleted faster than they can be copied: "
                "try again when the service is less busy",
            )
        self._writer.add(DATABASE, pieces_of(copy))
        manifest = Manifest(
            schema=newest_revision(),
            calibrd=metadata.version("calibrd"),
            created_at=created_at,
            members=self._writer.members.copy(),
            damaged=sorted(self._damaged.values()),
            counts=dict(Counter(blob.kind for blob in named if blob.key in self._copied)),
        )
        self._writer.finish(manifest)
        return manifest

    def _copy(self, blob: NamedBlob) -> bool:
        """Copy a blob; return False if it is missing, possibly because its row was deleted."""
        if blob.key in self._copied or blob.key in self._damaged:
            return True
        try:
            self._writer.add(BLOBS + blob.key, self._blobs.chunks(blob.key, blob.sha256))
        except Damaged as error:
            if blob.kind is BlobKind.PART:
                return True  # it was not uploaded completely, or its upload was committed
            if isinstance(error, BlobMissing) and blob.key not in self._absent:
                return False
            self._note_damage(blob, error)
        else:
            self._copied.add(blob.key)
        return True

    def _note_damage(self, blob: NamedBlob, error: Damaged) -> None:
        message = f"{blob.what}: {error.message}"
        if not self._keep_going:
            raise type(error)(
                error.code, f"{message}; use --keep-going to skip and list damaged blobs"
            )
        self._damaged[blob.key] = message


def named_blobs(inventory: Inventory) -> Iterator[NamedBlob]:
    """Yield every blob that a row refers to."""
    for found in chain.from_iterable(pages(inventory.versions, ("", 0), attrgetter("place"))):
        version, what = found.version, f"{found.name}@{found.version.number}"
        key = map_key(found.workspace, version.id, version.map_sha256)
        yield NamedBlob(key, version.map_sha256, BlobKind.MAP, f"the map of {what}")
        if version.onnx_sha256 is not None:
            key = onnx_key(found.workspace, version.id, version.onnx_sha256)
            yield NamedBlob(key, version.onnx_sha256, BlobKind.ONNX, f"the ONNX model of {what}")
        if version.judged_sha256 is not None:
            key = judged_key(found.workspace, version.id, version.judged_sha256)
            yield NamedBlob(
                key, version.judged_sha256, BlobKind.JUDGED, f"the judged rows of {what}"
            )
    for dataset in chain.from_iterable(pages(inventory.datasets, "", attrgetter("id"))):
        sha256 = dataset.sha256 or ""
        key = dataset_key(dataset.workspace, dataset.id, sha256)
        yield NamedBlob(key, sha256, BlobKind.DATASET, f"dataset {dataset.id}")
    for one in chain.from_iterable(pages(inventory.parts, ("", 0), attrgetter("place"))):
        part = one.part
        key = part_key(one.workspace, part.dataset, part.number, part.sha256)
        what = f"part {part.number} of {part.dataset}"
        yield NamedBlob(key, part.sha256, BlobKind.PART, what)


def restore(settings: Settings, source: Path) -> Manifest:
    """Restore a backup into an empty data directory, after verifying every byte of it."""
    place = embedded_file(settings.database)
    if place is None:
        raise _only_embedded()
    with reading(source) as backup:
        schema = backup.manifest.schema
        if not is_known(schema):
            raise Invalid(
                "newer_backup",
                f"the backup was made by calibrd {backup.manifest.calibrd}, whose schema {schema} "
                f"is unknown to this version: restore it with that version or a newer one",
            )
        _check_empty(settings.data_dir, place)
        backup.check()
        with _explain_write_errors(settings.data_dir):
            _check_database(settings.data_dir, backup)
            settings.data_dir.mkdir(parents=True, exist_ok=True)
            # other processes that start now wait for the lock
            with closing(Database(settings.database)) as database, migration_lock(database):
                _check_empty(settings.data_dir, place)
                _put_in_place(settings, place, backup)
        return backup.manifest


def _check_database(home: Path, backup: BackupReader) -> None:
    """Raise Invalid unless the database in a backup is intact and has the manifest's schema."""
    # the data directory, or the parent in which it will be created: the same file system
    near = next(folder for folder in (home, *home.absolute().parents) if folder.is_dir())
    with tempfile.TemporaryDirectory(dir=near, prefix="restoring-") as folder:
        copy = Path(folder) / DATABASE
        _extract(backup, copy)
        try:
            check_copy(copy)
        except DatabaseDamaged as error:
            raise Invalid(
                "backup_damaged", f"in the backup, {error.message}; nothing was restored"
            ) from error
        found = schema_of(copy)
    if found != backup.manifest.schema:
        raise Invalid(
            "backup_damaged",
            f"the database in the backup has schema {found}, but the manifest states "
            f"{backup.manifest.schema}; nothing was restored",
        )


def _extract(backup: BackupReader, target: Path) -> None:
    with target.open("wb") as copy, backup.database() as file:
        shutil.copyfileobj(file, copy)
        copy.flush()
        os.fsync(copy.fileno())


def _put_in_place(settings: Settings, place: Path, backup: BackupReader) -> None:
    """Write the blobs first and the database last, so that a restore is all or nothing."""
    home = settings.data_dir.resolve()
    with tempfile.TemporaryDirectory(dir=home, prefix="restoring-") as folder:
        new = Path(folder) / "blobs"
        blobs = Blobs(settings.blobs_url or new.as_uri())
        copy = place.with_name(f"{place.name}.restoring")
        try:
            _extract(backup, copy)
            store_id = store_id_of(copy)
            _check_store(blobs, store_id)
            for key in backup.blobs:
                with backup.blob(key) as file:
                    blobs.put(key, file)
            if store_id:
                blobs.put(ID_KEY, store_id.encode())
            if not settings.blobs_url:
                new.rename(home / "blobs")
                fsync_paths(home)
            copy.rename(place)
            fsync_paths(place.parent)
        finally:
            copy.unlink(missing_ok=True)


def _check_store(blobs: Blobs, store_id: str) -> None:
    """Raise Conflict if a blob store belongs to a database other than the restored one."""
    there = blobs.peek(ID_KEY)
    if there is not None and there != store_id.encode():
        raise Conflict(
            "blob_store_differs",
            f"the blob store {blobs.url} belongs to another database: choose another with "
            "--blobs-url; nothing was restored",
        )


def _only_embedded() -> Invalid:
    return Invalid(
        "not_embedded",
        "this command only works with the embedded database: for PostgreSQL, use pg_dump and copy "
        "the blobs, as described in docs/how-to/back-up.md",
    )


def _check_free(target: Path, *, force: bool) -> None:
    if target.is_dir():
        raise Invalid(
            "is_a_folder",
            f"{target} is a folder: specify a file, such as {target}/backup.tar",
        )
    if target.is_symlink() or (target.exists() and not target.is_file()):
        raise Invalid(
            "not_a_file",
            f"{target} is a symlink, device or pipe, which is never replaced: choose another path",
        )
    if target.exists() and not force:
        raise Invalid(
            "file_exists", f"{target} already exists: choose another path, or add --force"
        )
    if not target.parent.is_dir():
        raise Invalid("no_such_folder", f"the folder {target.parent} does not exist: create it")


def _check_empty(folder: Path, database: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise Invalid("not_empty", f"{folder} is a file: choose a folder with --data-dir")
    there = folder.iterdir() if folder.is_dir() else ()
    # the service leaves a lock file, and so does a restore that ran out of space
    found = sorted(one.name for one in there if one.suffix != ".lock")
    if database.parent.resolve() != folder.resolve():
        # journal files that another database left behind would be applied to this one
        beside = [database, *(Path(f"{database}-{one}") for one in ("wal", "shm", "journal"))]
        found += [one.name for one in beside if one.exists()]
    if found:
        found = list(dict.fromkeys(found))
        raise Invalid(
            "not_empty",
            f"the data directory {folder} is not empty ({', '.join(found[:3])}): "
            "restore into a new one with --data-dir",
        )


@contextmanager
def _explain_write_errors(folder: Path) -> Iterator[None]:
    """Convert write errors in a folder to service errors."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        kind = NoSpace if error.errno in FULL else Invalid
        raise kind("cannot_write", f"cannot write to {folder} ({reason})") from error
