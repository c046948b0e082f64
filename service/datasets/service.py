"""Validate received datasets, store them by hash, and load them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from calibrators import CalibrationSet
from calibrators.errors import CalibrationError, FitCancelled
from service.access.permissions import Principal
from service.access.quota import Quota
from service.access.repository import DATASET_ROOM
from service.datasets import formats
from service.datasets.formats import Format
from service.datasets.spool import SpooledBody
from service.errors import (
    BlobCorrupt,
    BlobMissing,
    Conflict,
    Invalid,
    Malformed,
    NotFound,
    ServiceError,
)
from service.settings import DAY
from service.storage.blob_keys import dataset_key, part_key, parts_prefix
from service.storage.blobs import Blobs, PendingBlobs
from service.storage.database import Database
from service.storage.records import Dataset, Kind
from service.storage.repository import new_id
from service.storage.store import Store


@dataclass(frozen=True)
class Retention:
    """Retention policy of a dataset."""

    delete_after_fit: bool = False
    days: float | None = None

    @property
    def seconds(self) -> float | None:
        """The retention period in seconds; None if the dataset never expires."""
        return None if not self.days else self.days * DAY


class Added(NamedTuple):
    """A dataset, and whether it is new."""

    dataset: Dataset
    is_new: bool


class Datasets:
    """Dataset operations that need both the database and the blob store."""

    def __init__(
        self, database: Database, blobs: Blobs, limits: formats.Limits, quota: Quota
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._limits = limits
        self.quota = quota

    def add(
        self,
        principal: Principal,
        arrived: SpooledBody,
        content_type: str | None,
        kind: Kind | None,
        retention: Retention,
    ) -> Added:
        """Check a received body and store it; identical content is stored once.

        If ``kind`` is None, the array name defines it: logits or probabilities.
        """
        facts = self.facts(arrived, content_type, kind)
        while True:
            known = self.known(principal, facts, retention)
            if known is not None:
                # rewriting repairs the stored bytes if they are damaged
                if self._rewrite(known, arrived.path):
                    return Added(known, is_new=False)
                continue
            id, pending = new_id("ds"), PendingBlobs(self._blobs)
            key = dataset_key(principal.workspace, id, arrived.sha256)
            with self._database.read() as store:
                self.quota.check(store, principal.workspace, arrived.bytes + DATASET_ROOM)
            pending.put(key, arrived.path)
            with pending.named_in(self._database.write()) as store:
                pending.check()
                added = store.datasets.add(
                    principal.workspace,
                    id,
                    delete_after_fit=retention.delete_after_fit,
                    keep_seconds=retention.seconds,
                    **facts,
                )
            if added is not None:
                return Added(added, is_new=True)
            pending.delete()  # another caller has just stored identical content

    def _rewrite(self, dataset: Dataset, path: Path) -> bool:
        """Rewrite the bytes of a dataset; return True if it still exists afterwards."""
        try:
            self._blobs.put(_key(dataset), path)
        except BlobMissing:
            return False
        with self._database.read() as store:
            exists = store.datasets.get(dataset.workspace, dataset.id) is not None
        if not exists:
            self._blobs.delete(_key(dataset))
        return exists

    def remove(self, principal: Principal, id: str) -> None:
        """Delete a dataset unless an unfinished fit needs it; versions fitted on it are kept."""
        with self._database.read() as store:
            dataset = find(store, principal, id)
        if not forget_dataset(self._database, self._blobs, dataset):
            raise Conflict(
                "dataset_in_use",
                "an unfinished fit needs this dataset, or it was just uploaded again: "
                "cancel the fit, or try again",
            )

    def facts(
        self, arrived: SpooledBody, content_type: str | None, kind: Kind | None
    ) -> dict[str, Any]:
        """Validate a body as a dataset, and return the values of its database row."""
        format = formats.format_of(content_type, arrived.head())
        if not arrived.bytes:
            raise Malformed("empty_body", "the body is empty: send logits and labels")
        if not format.codec.is_named:
            raise Invalid(
                "no_labels", f"{format} holds only one array: send npz with logits and labels"
            )
        found = formats.inspect(arrived.path, format, kind, self._limits)
        return {
            "kind": found.kind,
            "sha256": arrived.sha256,
            "format": format,
            "bytes": arrived.bytes,
            "rows": found.rows,
            "classes": found.classes,
            "segments": found.segments,
            "features": None if found.features is None else found.features.width,
            "feature_bytes": None if found.features is None else found.features.nbytes,
            "has_head": found.features is not None and found.features.has_head,
        }

    def known(
        self, principal: Principal, facts: dict[str, Any], retention: Retention
    ) -> Dataset | None:
        """Return the dataset with identical content, if any, and extend its retention if needed."""
        with self._database.write() as store:
            known = store.datasets.by_hash(principal.workspace, facts["sha256"], facts["kind"])
            if known is None:
                return None
            return store.datasets.keep_longer(
                known.id,
                delete_after_fit=retention.delete_after_fit,
                keep_seconds=retention.seconds,
            )


def _key(dataset: Dataset) -> str:
    assert dataset.sha256 is not None  # noqa: S101
    return dataset_key(dataset.workspace, dataset.id, dataset.sha256)


def find(store: Store, principal: Principal, id: str, *, lock: bool = False) -> Dataset:
    """Return one of the caller's datasets by its id, or by ``sha256:<hash>`` if it is complete."""
    prefix, _, digest = id.partition(":")
    if prefix == "sha256":
        named = store.datasets.by_hash(principal.workspace, digest)
        id = "" if named is None else named.id
    found = store.datasets.get(principal.workspace, id, lock=lock)
    if found is None or (found.expires_at is not None and found.expires_at <= time.time()):
        raise NotFound("no_such_dataset", "there is no such dataset: it may have been deleted")
    return found


def find_ready(store: Store, principal: Principal, id: str) -> Dataset:
    """Return one of the caller's complete datasets, locked until the transaction ends."""
    found = find(store, principal, id, lock=True)
    if not found.is_ready:
        raise Conflict("dataset_not_complete", "this dataset has not been committed yet")
    return found


def forget_spent_datasets(database: Database, blobs: Blobs, *datasets: Dataset | None) -> None:
    """Delete the datasets of a finished fit that have ``delete_after_fit`` set."""
    for dataset in datasets:
        if dataset is not None and dataset.delete_after_fit:
            forget_dataset(database, blobs, dataset)


def forget_dataset(database: Database, blobs: Blobs, dataset: Dataset) -> bool:
    """Delete a dataset; keep it and return False if a fit needs it or it has changed."""
    with database.write(deletes=True) as store:
        current = store.datasets.get(dataset.workspace, dataset.id, lock=True)
        if current != dataset or store.datasets.is_in_use(dataset.id):
            return False
        parts = store.datasets.parts_of(dataset.id)
        store.datasets.remove(dataset.id)
    # parts without a row, too: failed writes and presigned uploads may have left some
    keys = {part_key(dataset.workspace, dataset.id, one.number, one.sha256) for one in parts}
    if dataset.sha256 is None:
        keys |= {one.key for one in blobs.list(parts_prefix(dataset.workspace, dataset.id))}
    else:
        keys.add(dataset_key(dataset.workspace, dataset.id, dataset.sha256))
    for key in keys:
        blobs.delete(key)
    return True


def load(
    blobs: Blobs, dataset: Dataset | None, name: str, *, with_features: bool = False
) -> CalibrationSet:
    """Load a dataset; error messages call it ``name``."""
    with stored_file(blobs, dataset, name) as path, named(name):
        assert dataset is not None  # noqa: S101 - its file was found
        format = Format(dataset.format or "")
        return formats.load(path, format, dataset.kind, with_features=with_features)


@contextmanager
def stored_file(blobs: Blobs, dataset: Dataset | None, name: str) -> Iterator[Path]:
    """Provide a dataset as a file whose hash has been checked."""
    if dataset is None or dataset.sha256 is None or dataset.format is None:
        raise NotFound("dataset_gone", f"the {name} of this fit was deleted: upload it again")
    key = dataset_key(dataset.workspace, dataset.id, dataset.sha256)
    try:
        with blobs.file(key, dataset.sha256) as path:
            yield path
    except BlobMissing as error:
        raise BlobMissing(
            "blob_missing", f"the stored bytes of the {name} are missing: upload it again"
        ) from error
    except BlobCorrupt as error:
        raise BlobCorrupt(
            "blob_corrupt", f"the stored bytes of the {name} are damaged: upload it again"
        ) from error


@contextmanager
def named(subject: str) -> Iterator[None]:
    """Prefix error messages from calibrators with ``subject``."""
    try:
        yield
    except FitCancelled:
        raise
    except CalibrationError as error:
        raise ServiceError(error.code, f"{subject}: {error}") from error
