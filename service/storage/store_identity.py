"""Bind a database to its blob store, so that neither is used with a different one by mistake.

The same id is stored in the database (the note of a chore) and as a small object in the blob store.
The first process that finds it in neither writes it; every process checks it when it starts.
"""

from __future__ import annotations

import logging
import secrets
from itertools import islice

from service.errors import Conflict, Unavailable
from service.storage.blob_keys import WORKSPACE
from service.storage.blobs import Blobs
from service.storage.database import Database
from service.storage.upgrade import migration_lock

CHORE = "blob_store"
ID_KEY = "store-id"
# follows an id that may not have been written to the blob store yet
UNCONFIRMED = "?"
LOOK_AT_MOST = 1000
WRONG = "the database was used with a different store"

logger = logging.getLogger(__name__)


def bind(database: Database, blobs: Blobs, *, adopt: bool = False) -> None:
    """Check that a database and a blob store belong together; bind them if neither is bound.

    ``adopt`` binds them even if they are bound to others; otherwise this raises Conflict if they do
    not belong together. If the blob store is unavailable, this only logs a warning, because maps in
    memory and the database can still be used.
    """
    try:
        if adopt or not _seems_bound(database, blobs):
            with migration_lock(database):
                if adopt or not _is_bound(database, blobs):
                    _write_id(database, blobs, adopt=adopt)
    except Unavailable as error:
        logger.warning("blob_store_not_checked", extra={"reason": error.message})


def _seems_bound(database: Database, blobs: Blobs) -> bool:
    """Return whether both are bound; False if that must be checked again under the lock.

    Another process that starts at the same time may bind them between the two reads.
    """
    try:
        return _is_bound(database, blobs)
    except Conflict:
        return False


def check_bound(database: Database, blobs: Blobs) -> None:
    """Raise Conflict if a database and a blob store do not belong together; change nothing."""
    _is_bound(database, blobs)


def check_unused(blobs: Blobs) -> None:
    """Raise Conflict if a blob store is in use and therefore cannot belong to a new database."""
    try:
        is_used = blobs.peek(ID_KEY) is not None or _has_blobs(blobs)
    except Unavailable:
        return  # ``bind`` logs it
    if is_used:
        raise Conflict(
            "blob_store_differs",
            f"the database is empty, but the blob store {blobs.url} is not: check "
            f"--database-url and --data-dir, or restore the database from a backup. {_INTENDED}",
        )


def id_of(database: Database) -> str:
    """Return the id of a database's blob store; empty if the database is not bound."""
    with database.read() as store:
        return store.chores.note(CHORE).removesuffix(UNCONFIRMED)


def _is_bound(database: Database, blobs: Blobs) -> bool:
    """Return whether the two are bound to each other; raise Conflict on a contradiction."""
    with database.read() as store:
        note, is_empty = store.chores.note(CHORE), store.inventory.is_empty()
    ours = note.removesuffix(UNCONFIRMED)
    there = (blobs.peek(ID_KEY) or b"").decode("ascii", "replace")
    if ours and ours == there:
        return True
    if there or (ours and ours == note):
        raise _differs(blobs.url, WRONG if there else f"{WRONG}: it has no object `{ID_KEY}`")
    if not note and not is_empty and not _has_blobs(blobs):
        raise _differs(blobs.url, f"{WRONG}: it is empty")
    return False


def _write_id(database: Database, blobs: Blobs, *, adopt: bool) -> None:
    with database.write() as store:
        known = store.chores.note(CHORE).removesuffix(UNCONFIRMED)
        id = secrets.token_hex(16) if adopt or not known else known
        # if this process dies now, the next one repeats the rest
        store.chores.set_note(CHORE, id + UNCONFIRMED)
    blobs.put(ID_KEY, id.encode())
    with database.write() as store:
        store.chores.set_note(CHORE, id)


def _has_blobs(blobs: Blobs) -> bool:
    return any(WORKSPACE.match(one.key) for one in islice(blobs.list(), LOOK_AT_MOST))


_INTENDED = (
    "If they do belong together, run `python -m service migrate --adopt` once with both settings"
)


def _differs(url: str, why: str) -> Conflict:
    return Conflict(
        "blob_store_differs",
        f"the database (--database-url or --data-dir) and the blob store {url} (--blobs-url) do "
        f"not belong together: {why}. Use the same CALIBRD_DATABASE_URL and "
        f"CALIBRD_BLOBS_URL for all processes. {_INTENDED}",
    )
