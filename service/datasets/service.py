"""Datasets: bytes that arrive, are checked once, and are kept under their hash."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, NamedTuple

from service.access.permissions import Principal
from service.datasets import formats
from service.datasets.formats import Format
from service.datasets.retention import forget_dataset
from service.datasets.spool import Landing
from service.errors import BlobMissing, Conflict, Invalid, Malformed, NotFound
from service.settings import DAY
from service.storage.blob_keys import dataset_key
from service.storage.blobs import Blobs
from service.storage.database import Database
from service.storage.orphan_deadline import Unnamed
from service.storage.records import Dataset, Kind
from service.storage.repository import new_id
from service.storage.store import Store


@dataclass(frozen=True)
class Keeping:
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

    def __init__(self, database: Database, blobs: Blobs, limits: formats.Limits) -> None:
        self._database = database
        self._blobs = blobs
        self._limits = limits

    def add(
        self,
        principal: Principal,
        arrived: Landing,
        content_type: str | None,
        kind: Kind | None,
        keeping: Keeping,
    ) -> Added:
        """Check what has arrived and keep it; bytes that are there already are not kept twice.

        ``kind`` None takes the kind from the name of the array: logits or probabilities.
        """
        facts = self.facts(arrived, content_type, kind)
        while True:
            known = self.known(principal, facts, keeping)
            if known is not None:
                # should the stored bytes be damaged, these are the cure
                try:
                    self._blobs.put(_key(known), arrived.path)
                except BlobMissing:  # it was deleted while they were written
                    continue
                return Added(known, is_new=False)
            id, unnamed = new_id("ds"), Unnamed()
            key = dataset_key(principal.workspace, id, arrived.sha256)
            self._blobs.put(key, arrived.path)
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
            self._blobs.delete(key)  # somebody sent equal bytes meanwhile

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
        self, arrived: Landing, content_type: str | None, kind: Kind | None
    ) -> dict[str, Any]:
        """What there is to say of bytes that were checked to be a dataset."""
        format = formats.format_of(content_type, arrived.head())
        if not arrived.bytes:
            raise Malformed("empty_body", "the body is empty: send logits and labels")
        if format is Format.NPY:
            raise Invalid("no_labels", "npy holds one array: send npz with logits and labels")
        found = formats.inspect(arrived.path, format, kind, self._limits)
        return {
            "kind": found.kind,
            "sha256": arrived.sha256,
            "format": format,
            "bytes": arrived.bytes,
            "rows": found.rows,
            "classes": found.classes,
            "groups": found.groups,
        }

    def known(
        self, principal: Principal, facts: dict[str, Any], keeping: Keeping
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
