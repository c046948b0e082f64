"""Delete orphans: blobs that no row refers to or ever will.

Deleting them is safe while the service is running, for these reasons:

- The key of a blob contains the id of its row, which is new for each writer (``blob_keys``). A
  writer that has not committed the row within an hour of writing the blob never does
  (``PendingBlobs``). Transactions are short: PostgreSQL ends idle ones, and on SQLite the sweep's
  own transaction cannot start while another one writes. So if a much older blob has no row, its
  writer has ended.
- While a dataset is being uploaded, its parts and the results of commits are kept, even without
  a row.
- If a known dataset is uploaded again, its bytes are written under the key of the existing row.
- Blobs of unknown workspaces belong to another database, and are not deleted.
- A copy or an older state of a database lacks rows of the newer one. Therefore, every sweep writes
  a new token to the store and to the database, and only starts if the store has the last token.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from service.errors import Conflict
from service.storage.blob_keys import OF_VERSIONS, BlobKind, ParsedKey, parse_key
from service.storage.blobs import Blob, Blobs
from service.storage.database import Database
from service.storage.store import Store
from service.storage.store_identity import ID_KEY

BATCH = 500
CHORE = "sweep"
TOKEN = "swept-by"  # noqa: S105 - the key of the blob that holds the token


@dataclass
class Swept:
    """The result of a sweep; after a dry run the orphans still exist."""

    orphans: Counter[str] = field(default_factory=Counter)
    bytes: int = 0
    kept: int = 0
    unknown: int = 0

    def summary(self) -> str:
        """Return the result in one line."""
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.orphans.items()))
        found = f" ({kinds}; {self.bytes} bytes)" if kinds else ""
        unknown = f" and {self.unknown} of unknown origin" if self.unknown else ""
        return (
            f"{self.orphans.total()} orphans{found}; kept {self.kept} blobs in use or new{unknown}"
        )


def sweep(
    database: Database,
    blobs: Blobs,
    *,
    older_than: float,
    dry_run: bool = False,
    adopt: bool = False,
    on_orphan: Callable[[str], None] = lambda key: None,
    stop: Callable[[], bool] = lambda: False,
) -> Swept:
    """Delete orphans older than ``older_than`` seconds; call ``on_orphan`` with each key.

    ``adopt`` takes over a store that was last swept for another database.
    """
    if not dry_run:
        _take_store(database, blobs, adopt=adopt)
    swept = Swept()
    before = time.time() - older_than
    for some in _batches(blobs.list()):
        if stop():
            return swept
        for blob, kind in _orphans(database, some, before, swept):
            on_orphan(blob.key)
            if not dry_run:
                blobs.delete(blob.key)
            swept.orphans[kind] += 1
            swept.bytes += blob.bytes
    for blob in blobs.unfinished():
        if blob.modified_at < before and parse_key(blob.key.rpartition("#")[0]):
            on_orphan(blob.key)
            if not dry_run:
                blobs.delete_unfinished(blob.key)
            swept.orphans["unfinished"] += 1
            swept.bytes += blob.bytes
    return swept


def _take_store(database: Database, blobs: Blobs, *, adopt: bool) -> None:
    """Write a new token; raise Conflict if the store has an unknown one.

    A token is known if it is this database's last one or the one before it.
    """
    with database.read() as store:
        ours = store.chores.note(CHORE).split()
    there = (blobs.peek(TOKEN) or b"").decode()
    if there and there not in ours and not adopt:
        raise Conflict(
            "swept_by_another",
            "the blob store was last swept for another database, or for a later state of this one, "
            "which may refer to other blobs: nothing was deleted. If no other database uses it, "
            "run python -m service sweep --adopt",
        )
    token = secrets.token_hex(16)
    with database.write() as store:
        store.chores.set_note(CHORE, f"{token} {there}")
    blobs.put(TOKEN, token.encode())


def _batches(blobs: Iterator[Blob]) -> Iterator[tuple[Blob, ...]]:
    while some := tuple(itertools.islice(blobs, BATCH)):
        yield some


def _orphans(
    database: Database, some: Iterable[Blob], before: float, swept: Swept
) -> list[tuple[Blob, BlobKind]]:
    """Return the blobs that are old enough and have no row; count the others."""
    parsed = [(blob, parse_key(blob.key)) for blob in some if blob.key not in (TOKEN, ID_KEY)]
    ours = [(blob, key) for blob, key in parsed if key is not None]
    old = [(blob, key) for blob, key in ours if blob.modified_at < before]
    with database.write() as store:  # on SQLite this waits for running writers
        rows = _Rows(store, [key for _, key in old])
    orphans = [(blob, key.kind) for blob, key in old if rows.lack(key)]
    foreign = sum(key.workspace not in rows.workspaces for _, key in old)
    swept.unknown += len(parsed) - len(ours) + foreign
    swept.kept += len(ours) - foreign - len(orphans)
    return orphans


class _Rows:
    """The rows whose ids occur in a list of blob keys."""

    def __init__(self, store: Store, keys: list[ParsedKey]) -> None:
        self.workspaces = store.keys.workspaces_among({key.workspace for key in keys})
        of_versions = {key.id for key in keys if key.kind in OF_VERSIONS}
        self._versions = store.calibrators.hashes(of_versions)
        self._datasets = store.datasets.hashes({key.id for key in keys} - of_versions)

    def lack(self, key: ParsedKey) -> bool:
        """Return whether the key belongs to a known workspace but has no row."""
        return key.workspace in self.workspaces and not self._name(key)

    def _name(self, key: ParsedKey) -> bool:
        is_uploaded_now = self._datasets.get(key.id, "") is None
        match key.kind:
            case BlobKind.DATASET:
                return is_uploaded_now or self._datasets.get(key.id) == key.sha256
            case BlobKind.PART:
                return is_uploaded_now
            case BlobKind.MAP | BlobKind.ONNX | BlobKind.JUDGED:
                return key.sha256 in self._versions.get(key.id, ())
