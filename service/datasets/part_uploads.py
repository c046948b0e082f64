"""Uploads in parts: through the service, or directly to the store with signed URLs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from service.access.permissions import Principal
from service.datasets.formats.bodies import check_size
from service.datasets.service import Added, Datasets, Retention, find
from service.datasets.spool import Spool, SpooledBody
from service.errors import (
    BlobCorrupt,
    BlobMissing,
    Conflict,
    Invalid,
    TooLarge,
)
from service.settings import DAY
from service.storage.blob_keys import dataset_key, part_key, parts_prefix
from service.storage.blobs import Blobs
from service.storage.database import TRANSIENT, Database
from service.storage.records import Dataset, Kind, Part
from service.storage.repository import new_id
from service.storage.store import Store

MAX_PARTS = 10_000
MAX_OPEN_PARTS = 20_000  # of all uploads of a workspace
SIGNED_SECONDS = 15 * 60.0
COMMITTED = "\x1fcommit "  # no client's Idempotency-Key can begin with this


class SignedPart(NamedTuple):
    """Upload URL of a part, and when it expires."""

    number: int
    url: str
    expires_at: float


@dataclass(frozen=True)
class UploadLimits:
    """Limits on an upload, on a part, and on all open uploads of a workspace."""

    bytes: int
    part_bytes: int
    open_uploads: int
    open_bytes: int


class PartUploads:
    """Operations on uploads in parts.

    A part's row only describes the expected bytes. The blob store shows which parts have arrived,
    because clients may send them directly to it.
    """

    def __init__(
        self,
        database: Database,
        blobs: Blobs,
        datasets: Datasets,
        limits: UploadLimits,
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._datasets = datasets
        self._limits = limits

    def open(self, principal: Principal, kind: Kind | None, retention: Retention) -> Dataset:
        """Open an upload in parts."""
        with self._database.write() as store:
            store.keys.lock_workspace(principal.workspace)
            if store.datasets.open_uploads(principal.workspace) >= self._limits.open_uploads:
                raise Conflict(
                    "too_many_uploads",
                    f"a workspace may have at most {self._limits.open_uploads} uncommitted "
                    "uploads: commit or delete some; uncommitted uploads are deleted after a week",
                )
            opened = store.datasets.add(
                principal.workspace,
                new_id("ds"),
                kind=kind,
                delete_after_fit=retention.delete_after_fit,
                keep_seconds=retention.seconds,
            )
        assert opened is not None  # noqa: S101 - it has no bytes that could be a duplicate
        return opened

    def put(self, principal: Principal, id: str, number: int, arrived: SpooledBody) -> Part:
        """Store a part; sending a part again replaces it."""
        arrived.flush()
        part = Part(id, number, arrived.bytes, arrived.sha256)
        with self._database.read() as store:
            dataset = _open_one(store, principal, id)
            self._check(part)
            replaced = store.datasets.part(id, number)
            more = part.bytes - (replaced.bytes if replaced else 0)
            self._check_room(store, dataset, more)
            self._datasets.quota.check(store, dataset.workspace, more)
        try:
            self._blobs.put(_key(dataset, part), arrived.path)
        except BlobMissing as error:  # its folder was deleted in the meantime
            raise Conflict(
                "upload_changed", f"another request changed part {number}: send it again"
            ) from error
        try:
            self._record(principal, dataset, [part])
        except BaseException:
            self._withdraw(
                _key(dataset, part),
                arrived.path,
                lambda store: store.datasets.part(id, number) == part,
            )
            raise
        return part

    def sign(
        self,
        principal: Principal,
        id: str,
        parts: Sequence[tuple[int, int, str]],
        seconds: float = SIGNED_SECONDS,
    ) -> list[SignedPart]:
        """Return signed URLs for parts, each announced by its number, size and SHA-256."""
        announced = [Part(id, *part) for part in parts]
        more = sum(part.bytes for part in announced)
        with self._database.read() as store:
            dataset = _open_one(store, principal, id)
            self._datasets.quota.check(store, dataset.workspace, more)
        if not self._blobs.can_sign:
            raise Conflict(
                "no_presigned_uploads",
                "this service stores blobs in a folder, which does not support signed URLs: "
                f"send each part with PUT /v1/datasets/{dataset.id}/parts/{{number}}",
            )
        for part in announced:
            self._check(part)
        check_size(more, self._limits.bytes)
        number, times = Counter(part.number for part in announced).most_common(1)[0]
        if times > 1:
            raise Invalid("bad_part", f"part {number} is listed {times} times: list each part once")
        self._record(principal, dataset, announced)
        expires_at = time.time() + seconds
        return [
            SignedPart(part.number, self._blobs.sign_put(_key(dataset, part), seconds), expires_at)
            for part in announced
        ]

    def arrived(self, dataset: Dataset, parts: Sequence[Part]) -> list[Part]:
        """Return the parts whose bytes are in the store."""
        sizes = self._sizes(dataset)
        return [part for part in parts if sizes.get(_key(dataset, part)) == part.bytes]

    def commit(
        self,
        principal: Principal,
        id: str,
        spool: Spool,
        *,
        parts: int | None,
        sha256: str | None,
        content_type: str | None,
    ) -> Added:
        """Join the parts and check the dataset; committing again returns the same result."""
        with self._database.read() as store:
            dataset = _uploaded(store, principal, id)
            announced = store.datasets.parts_of(dataset.id)
        if dataset.is_ready:
            return Added(dataset, is_new=False)
        try:
            self._check_arrived(dataset, announced, parts)
            with spool.body(principal.workspace) as whole:
                for piece in self._joined(dataset, announced):
                    whole.write(piece)
                if sha256 is not None and sha256 != whole.sha256:
                    raise Invalid(
                        "hash_differs",
                        f"the joined parts have the SHA-256 {whole.sha256}, not {sha256}",
                    )
                facts = self._datasets.facts(whole, content_type, dataset.kind)
                key = dataset_key(principal.workspace, id, whole.sha256)
                self._blobs.put(key, whole.path)
                try:
                    added = self._complete(principal, dataset, facts, announced)
                except BaseException:
                    self._withdraw(
                        key, whole.path, lambda store: self._is_of(store, principal, id, whole)
                    )
                    raise
                if added.dataset.id == id and not self._blobs.has(key):
                    self._blobs.put(key, whole.path)  # a failed commit has just withdrawn it
        except (BlobMissing, Conflict) as error:
            return self._committed_elsewhere(principal, id, error)
        for key in self._sizes(dataset):
            self._blobs.delete(key)
        return added

    def _withdraw(self, key: str, path: Path, is_named: Callable[[Store], bool]) -> None:
        """Delete the bytes of a write that failed, unless a row names them.

        No quota counts bytes without a row. Another request may write the same bytes and its row at
        the same time, so they are restored if a row names them after all. If the database cannot be
        read, a row may name them.
        """

        def may_be_named() -> bool:
            try:
                with self._database.read() as store:
                    return is_named(store)
            except TRANSIENT:
                return True

        if not may_be_named():
            self._blobs.delete(key)
            if may_be_named():
                self._blobs.put(key, path)

    @staticmethod
    def _is_of(store: Store, principal: Principal, id: str, body: SpooledBody) -> bool:
        """Return whether a dataset has the bytes of this body."""
        current = store.datasets.get(principal.workspace, id)
        return current is not None and current.sha256 == body.sha256

    def _check_arrived(self, dataset: Dataset, announced: list[Part], parts: int | None) -> None:
        sizes = self._sizes(dataset)
        arrived = [part for part in announced if _key(dataset, part) in sizes]
        _check_complete(arrived, announced, parts)
        for part in announced:
            _check_size_of(part, sizes[_key(dataset, part)])

    def _committed_elsewhere(
        self, principal: Principal, id: str, error: BlobMissing | Conflict
    ) -> Added:
        """Return the result of a concurrent commit of the same parts, or raise ``error``."""
        with self._database.read() as store:
            dataset = _uploaded(store, principal, id)
        if dataset.is_ready:
            return Added(dataset, is_new=False)
        if isinstance(error, Conflict):
            raise error
        raise Conflict(
            "upload_changed",
            "a part was sent again during the commit: commit again",
        ) from error

    def _check(self, part: Part) -> None:
        if not 1 <= part.number <= MAX_PARTS:
            raise Invalid("bad_part", f"part numbers must be 1 to {MAX_PARTS}, got {part.number}")
        check_size(part.bytes, self._limits.part_bytes)

    def _check_room(
        self, store: Store, dataset: Dataset, more: int, *, is_recorded: bool = False
    ) -> None:
        """Raise TooLarge unless an upload may grow by ``more`` bytes.

        If ``is_recorded`` is true, the database already counts these bytes.
        """
        if more <= 0:
            return
        unrecorded = 0 if is_recorded else more
        check_size(store.datasets.bytes_of_parts(dataset.id) + unrecorded, self._limits.bytes)
        total = store.datasets.open_bytes(dataset.workspace) + unrecorded
        if total > self._limits.open_bytes:
            raise TooLarge(
                "uploads_too_large",
                f"the uncommitted uploads of a workspace may have at most "
                f"{self._limits.open_bytes} bytes in total, but this request would bring "
                f"them to {total}: commit or delete some; uncommitted uploads are deleted after a "
                "week",
                limit=self._limits.open_bytes,
            )

    def _record(self, principal: Principal, dataset: Dataset, parts: Sequence[Part]) -> None:
        """Record the expected parts, and delete the bytes of the parts they replace.

        Raises TooLarge, and changes nothing, if the upload would become too large; replaced parts
        do not count.
        """
        with self._database.write() as store:
            store.keys.lock_workspace(principal.workspace)
            _open_one(store, principal, dataset.id, lock=True)
            before = store.datasets.put_parts(dataset.id, parts)
            more = sum(part.bytes for part in parts) - sum(old.bytes for old in before)
            self._check_room(store, dataset, more, is_recorded=True)
            if store.datasets.open_parts(principal.workspace) > MAX_OPEN_PARTS:
                raise Conflict(
                    "too_many_open_parts",
                    f"the uncommitted uploads of a workspace may have at most {MAX_OPEN_PARTS} "
                    "parts in total: send larger parts, or commit or delete some uploads",
                )
        hashes = {part.number: part.sha256 for part in parts}
        for old in before:
            if hashes[old.number] != old.sha256:
                self._blobs.delete(_key(dataset, old))

    def _sizes(self, dataset: Dataset) -> dict[str, int]:
        """Return the sizes of the parts in the blob store, by key."""
        prefix = parts_prefix(dataset.workspace, dataset.id)
        return {blob.key: blob.bytes for blob in self._blobs.list(prefix)}

    def _joined(self, dataset: Dataset, parts: Sequence[Part]) -> Iterator[bytes]:
        total = 0
        for part in parts:
            pieces = self._blobs.chunks(_key(dataset, part), part.sha256, by_client=True)
            try:
                for piece in pieces:
                    total += len(piece)
                    check_size(total, self._limits.bytes)
                    yield piece
            except BlobCorrupt as error:
                raise _differs(part, f"its SHA-256 is not {part.sha256}") from error

    def _complete(
        self, principal: Principal, dataset: Dataset, facts: dict[str, Any], joined: list[Part]
    ) -> Added:
        with self._database.write() as store:
            store.keys.lock_workspace(principal.workspace)
            is_same = store.datasets.parts_of(dataset.id) == joined
            completed = store.datasets.complete(dataset.id, **facts) if is_same else None
        if not is_same:
            raise Conflict("upload_changed", "parts were sent during the commit: commit again")
        if completed is not None:
            return Added(completed, is_new=True)
        days = None
        if dataset.expires_at is not None:
            days = (dataset.expires_at - dataset.created_at) / DAY
        known = self._datasets.known(principal, facts, Retention(dataset.delete_after_fit, days))
        if known is not None and known.id == dataset.id:
            return Added(known, is_new=False)
        if known is not None:  # before deleting the bytes, so that a reader finds this row
            with self._database.write() as store:
                store.datasets.remove(dataset.id)
                store.idempotency.keep(
                    principal.workspace, COMMITTED + dataset.id, facts["sha256"], {"id": known.id}
                )
        self._blobs.delete(dataset_key(principal.workspace, dataset.id, facts["sha256"]))
        if known is None:
            raise Conflict(
                "upload_changed",
                "this upload was deleted, or committed with different parts: check its status",
            )
        return Added(known, is_new=False)


def _uploaded(store: Store, principal: Principal, id: str) -> Dataset:
    """Return an upload, or the identical existing dataset that its commit found."""
    merged = store.idempotency.find(principal.workspace, COMMITTED + id)
    return find(store, principal, id if merged is None else merged[1]["id"])


def _open_one(store: Store, principal: Principal, id: str, *, lock: bool = False) -> Dataset:
    found = find(store, principal, id, lock=lock)
    if found.is_ready:
        raise Conflict("dataset_complete", "this dataset is complete and accepts no more parts")
    return found


def _key(dataset: Dataset, part: Part) -> str:
    return part_key(dataset.workspace, dataset.id, part.number, part.sha256)


def _check_complete(arrived: list[Part], announced: list[Part], expected: int | None) -> None:
    if not arrived:
        raise Conflict("parts_missing", "no parts have arrived yet")
    last = max(announced[-1].number, expected or 0)
    numbers = {part.number for part in arrived}
    missing = [number for number in range(1, last + 1) if number not in numbers]
    if missing:
        raise Conflict(
            "parts_missing",
            f"{len(missing)} of {last} parts are missing, starting with part {missing[0]}",
            missing=missing[:100],
        )
    if expected is not None and len(arrived) > expected:
        raise Conflict(
            "too_many_parts", f"{len(arrived)} parts have arrived, but {expected} were expected"
        )


def _check_size_of(part: Part, bytes: int) -> None:
    if bytes != part.bytes:
        raise _differs(part, f"it has {bytes} bytes, not {part.bytes}")


def _differs(part: Part, how: str) -> Conflict:
    return Conflict(
        "part_differs",
        f"part {part.number} does not match its announcement: {how}; send it again",
        number=part.number,
    )
