"""Datasets: bytes that arrive, are checked once, and are kept under their hash."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from service.core import formats
from service.core.access import Principal
from service.core.blob_keys import dataset_key, part_key
from service.core.formats import Format
from service.core.formats.bodies import check_size
from service.core.landing import Landing, landing
from service.core.naming import Unnamed
from service.core.retention import forget_dataset
from service.errors import BlobMissing, Conflict, Invalid, Malformed, NotFound
from service.storage.blobs import Blobs
from service.storage.database import Database
from service.storage.records import Dataset, Kind, Part
from service.storage.rows import new_id
from service.storage.store import Store

DAY = 86400.0
MOST_PARTS = 10_000
COMMITTED = "\x1fcommit "  # no client's Idempotency-Key can begin so


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
        facts = self._facts(arrived, content_type, kind)
        while True:
            known = self._known(principal, facts, keeping)
            if known is not None:
                # should the stored bytes be damaged, these are the cure
                self._blobs.put(_key(known), arrived.path)
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

    def open(self, principal: Principal, kind: Kind | None, keeping: Keeping) -> Dataset:
        """A dataset to be uploaded in parts."""
        with self._database.write() as store:
            opened = store.datasets.add(
                principal.workspace,
                new_id("ds"),
                kind=kind,
                delete_after_fit=keeping.delete_after_fit,
                keep_seconds=keeping.seconds,
            )
        assert opened is not None  # noqa: S101 - it has no bytes that could be there already
        return opened

    def put_part(self, principal: Principal, id: str, number: int, arrived: Landing) -> Part:
        """Take a part; sending a part again replaces it."""
        if not 1 <= number <= MOST_PARTS:
            raise Invalid("bad_part", f"parts are numbered from 1 to {MOST_PARTS}, got {number}")
        with self._database.read() as store:
            _open_one(store, principal, id)
        arrived.flush()
        part = Part(id, number, arrived.bytes, arrived.sha256)
        self._blobs.put(part_key(principal.workspace, id, number, part.sha256), arrived.path)
        with self._database.write() as store:
            _open_one(store, principal, id, lock=True)
            replaced = [old for old in store.datasets.parts_of(id) if old.number == number]
            store.datasets.put_part(part)
        for old in replaced:
            if old.sha256 != part.sha256:
                self._blobs.delete(part_key(principal.workspace, id, number, old.sha256))
        return part

    def commit(
        self,
        principal: Principal,
        id: str,
        folder: Path,
        *,
        parts: int | None,
        sha256: str | None,
        content_type: str | None,
    ) -> Added:
        """Join the parts and check what they make; committing again gives the same answer."""
        with self._database.read() as store:
            dataset = _uploaded(store, principal, id)
            there = store.datasets.parts_of(id)
        if dataset.is_ready:
            return Added(dataset, is_new=False)
        _check_complete(there, parts)
        with landing(folder) as whole:
            try:
                for piece in self._joined(principal, there):
                    whole.write(piece)
            except BlobMissing:  # another commit was faster, or a part was replaced
                return self._committed_elsewhere(principal, id)
            if sha256 is not None and sha256 != whole.sha256:
                raise Invalid("hash_differs", f"the parts make sha256 {whole.sha256}, not {sha256}")
            facts = self._facts(whole, content_type, dataset.kind)
            self._blobs.put(dataset_key(principal.workspace, id, whole.sha256), whole.path)
            added = self._complete(principal, dataset, facts)
        for part in there:
            self._blobs.delete(part_key(principal.workspace, id, part.number, part.sha256))
        return added

    def _committed_elsewhere(self, principal: Principal, id: str) -> Added:
        with self._database.read() as store:
            dataset = _uploaded(store, principal, id)
        if not dataset.is_ready:
            raise Conflict(
                "upload_changed", "a part was sent again while the parts were joined: commit again"
            )
        return Added(dataset, is_new=False)

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

    def _facts(
        self, arrived: Landing, content_type: str | None, kind: Kind | None
    ) -> dict[str, Any]:
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
        }

    def _joined(self, principal: Principal, parts: Iterable[Part]) -> Iterator[bytes]:
        total = 0
        for part in parts:
            key = part_key(principal.workspace, part.dataset, part.number, part.sha256)
            for piece in self._blobs.chunks(key, part.sha256):
                total += len(piece)
                check_size(total, self._limits.bytes)
                yield piece

    def _known(
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

    def _complete(self, principal: Principal, dataset: Dataset, facts: dict[str, Any]) -> Added:
        with self._database.write() as store:
            made = store.datasets.complete(dataset.id, **facts)
        if made is not None:
            return Added(made, is_new=True)
        kept = None if dataset.expires_at is None else dataset.expires_at - dataset.created_at
        days = None if kept is None else kept / DAY
        known = self._known(principal, facts, Keeping(dataset.delete_after_fit, days))
        if known is None or known.id != dataset.id:
            self._blobs.delete(dataset_key(principal.workspace, dataset.id, facts["sha256"]))
        if known is None:
            raise Conflict(
                "upload_changed",
                "this upload was deleted, or committed with other parts, meanwhile: look at it",
            )
        if known.id != dataset.id:
            with self._database.write() as store:
                store.datasets.remove(dataset.id)
                store.idempotency.keep(
                    principal.workspace, COMMITTED + dataset.id, facts["sha256"], {"id": known.id}
                )
        return Added(known, is_new=False)


def _uploaded(store: Store, principal: Principal, id: str) -> Dataset:
    """An upload, or the dataset of equal bytes that its commit has found."""
    merged = store.idempotency.find(principal.workspace, COMMITTED + id)
    return find(store, principal, id if merged is None else merged[1]["id"])


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


def _open_one(store: Store, principal: Principal, id: str, *, lock: bool = False) -> Dataset:
    found = find(store, principal, id, lock=lock)
    if found.is_ready:
        raise Conflict("dataset_complete", "this dataset is complete and takes no more parts")
    return found


def _check_complete(parts: list[Part], expected: int | None) -> None:
    if not parts:
        raise Conflict("parts_missing", "no part has arrived yet")
    last = max(parts[-1].number, expected or 0)
    numbers = {part.number for part in parts}
    missing = [number for number in range(1, last + 1) if number not in numbers]
    if missing:
        raise Conflict(
            "parts_missing",
            f"{len(missing)} of {last} parts are missing, first part {missing[0]}",
            missing=missing[:100],
        )
    if expected is not None and len(parts) > expected:
        raise Conflict("too_many_parts", f"{len(parts)} parts have arrived, not {expected}")
