"""Datasets: bytes that arrive, are checked once, and are kept under their hash."""

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
from service.storage.blob_keys import dataset_key, part_key
from service.storage.blobs import Blobs, Unnamed
from service.storage.database import Database
from service.storage.records import Dataset, Kind
from service.storage.repository import new_id
from service.storage.store import Store


@dataclass(frozen=True)
class Retention:
    """How long a dataset is kept."""

    delete_after_fit: bool = False
    days: float | None = None

    @property
    def seconds(self) -> float | None:
        """The time to keep it, None for ever."""
        return None if not self.days else self.days * DAY


class Added(NamedTuple):
    """A dataset, and whether it is new."""

    dataset: Dataset
    is_new: bool


class Datasets:
    """The use cases that need both the database and the blobs."""

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
        keeping: Retention,
    ) -> Added:
        """Check what has arrived and keep it; bytes that are there already are not kept twice.

        ``kind`` None takes the kind from the name of the array: logits or probabilities.
        """
        facts = self.facts(arrived, content_type, kind)
        while True:
            known = self.known(principal, facts, keeping)
            if known is not None:
                # should the stored bytes be damaged, these are the cure
                if self._cured(known, arrived.path):
                    return Added(known, is_new=False)
                continue
            id, unnamed = new_id("ds"), Unnamed(self._blobs)
            key = dataset_key(principal.workspace, id, arrived.sha256)
            with self._database.read() as store:
                self.quota.check(store, principal.workspace, arrived.bytes)
            unnamed.put(key, arrived.path)
            with self._database.write() as store:
                unnamed.check()
                made = store.datasets.add(
                    principal.workspace,
                    id,
                    delete_after_fit=keeping.delete_after_fit,
                    keep_seconds=keeping.seconds,
                    **facts,
                )
            if made is not None:
                return Added(made, is_new=True)
            unnamed.delete()  # somebody sent equal bytes meanwhile

    def _cured(self, dataset: Dataset, path: Path) -> bool:
        """Write the bytes of a dataset again; return whether it is still there afterwards."""
        try:
            self._blobs.put(_key(dataset), path)
        except BlobMissing:
            return False
        with self._database.read() as store:
            is_there = store.datasets.get(dataset.workspace, dataset.id) is not None
        if not is_there:
            self._blobs.delete(_key(dataset))
        return is_there

    def remove(self, principal: Principal, id: str) -> None:
        """Delete a dataset that no unfinished fit needs; what was fitted on it stays."""
        with self._database.read() as store:
            dataset = find(store, principal, id)
        if not forget_dataset(self._database, self._blobs, dataset):
            raise Conflict(
                "dataset_in_use",
                "a fit that is not finished needs this dataset, or it was just sent again: "
                "cancel the fit or try again",
            )

    def facts(
        self, arrived: SpooledBody, content_type: str | None, kind: Kind | None
    ) -> dict[str, Any]:
        """What there is to say of bytes that were checked to be a dataset."""
        format = formats.format_of(content_type, arrived.head())
        if not arrived.bytes:
            raise Malformed("empty_body", "the body is empty: send logits and labels")
        if not format.codec.is_named:
            raise Invalid("no_labels", f"{format} holds one array: send npz with logits and labels")
        found = formats.inspect(arrived.path, format, kind, self._limits)
        return {
            "kind": found.kind,
            "sha256": arrived.sha256,
            "format": format,
            "bytes": arrived.bytes,
            "rows": found.rows,
            "classes": found.classes,
            "segments": found.segments,
        }

    def known(
        self, principal: Principal, facts: dict[str, Any], keeping: Retention
    ) -> Dataset | None:
        """The dataset of equal bytes, kept as long as the one who wants it longest."""
        with self._database.write() as store:
            known = store.datasets.by_hash(principal.workspace, facts["sha256"], facts["kind"])
            if known is None:
                return None
            return store.datasets.keep_longer(
                known.id, delete_after_fit=keeping.delete_after_fit, keep_seconds=keeping.seconds
            )


def _key(dataset: Dataset) -> str:
    assert dataset.sha256 is not None  # noqa: S101
    return dataset_key(dataset.workspace, dataset.id, dataset.sha256)


def find(store: Store, principal: Principal, id: str, *, lock: bool = False) -> Dataset:
    """A dataset of the caller by its id, or by ``sha256:<hash>`` once it is complete."""
    prefix, _, digest = id.partition(":")
    if prefix == "sha256":
        named = store.datasets.by_hash(principal.workspace, digest)
        id = "" if named is None else named.id
    found = store.datasets.get(principal.workspace, id, lock=lock)
    if found is None or (found.expires_at is not None and found.expires_at <= time.time()):
        raise NotFound("no_such_dataset", "there is no such dataset: it may have been deleted")
    return found


def find_ready(store: Store, principal: Principal, id: str) -> Dataset:
    """A dataset of the caller that can be fitted on, and stays until the transaction ends."""
    found = find(store, principal, id, lock=True)
    if not found.is_ready:
        raise Conflict("dataset_not_complete", "the parts of this dataset are not committed yet")
    return found


def forget_spent_datasets(database: Database, blobs: Blobs, *datasets: Dataset | None) -> None:
    """Delete the datasets of a finished fit that were sent for fits only and have no more to do."""
    for dataset in datasets:
        if dataset is not None and dataset.delete_after_fit:
            forget_dataset(database, blobs, dataset)


def forget_dataset(database: Database, blobs: Blobs, dataset: Dataset) -> bool:
    """Delete a dataset's row and then its bytes; False if a fit needs it or it has changed."""
    with database.write(deletes=True) as store:
        current = store.datasets.get(dataset.workspace, dataset.id, lock=True)
        if current != dataset or store.datasets.is_in_use(dataset.id):
            return False
        parts = store.datasets.parts_of(dataset.id)
        store.datasets.remove(dataset.id)
    for part in parts:
        blobs.delete(part_key(dataset.workspace, dataset.id, part.number, part.sha256))
    if dataset.sha256 is not None:
        blobs.delete(dataset_key(dataset.workspace, dataset.id, dataset.sha256))
    return True


def load(blobs: Blobs, dataset: Dataset | None, name: str) -> CalibrationSet:
    """Return a dataset by its row; ``name`` is what it is called if that is not possible."""
    with stored_file(blobs, dataset, name) as path, named(name):
        assert dataset is not None  # noqa: S101 - its file was found
        return formats.load(path, Format(dataset.format or ""), dataset.kind)


@contextmanager
def stored_file(blobs: Blobs, dataset: Dataset | None, name: str) -> Iterator[Path]:
    """Provide a dataset as a file to read, its bytes checked against their hash."""
    if dataset is None or dataset.sha256 is None or dataset.format is None:
        raise NotFound("dataset_gone", f"the {name} of this fit was deleted: send it again")
    key = dataset_key(dataset.workspace, dataset.id, dataset.sha256)
    try:
        with blobs.file(key, dataset.sha256) as path:
            yield path
    except BlobMissing as error:
        raise BlobMissing(
            "blob_missing", f"the stored bytes of the {name} are gone: send it again"
        ) from error
    except BlobCorrupt as error:
        raise BlobCorrupt(
            "blob_corrupt", f"the stored bytes of the {name} are damaged: send it again"
        ) from error


@contextmanager
def named(subject: str) -> Iterator[None]:
    """Let the sentences of calibrators say what they are about."""
    try:
        yield
    except FitCancelled:
        raise
    except CalibrationError as error:
        raise ServiceError(error.code, f"{subject}: {error}") from error
