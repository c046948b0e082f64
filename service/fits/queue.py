"""The queue of fits, kept by DBOS in our own database: row and entry in one transaction."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from dbos import DBOSClient, DBOSPortableJSONSerializer, EnqueueOptions
from sqlalchemy.exc import SQLAlchemyError

from service.fits.service import QUEUES
from service.storage.database import Database
from service.storage.records import Fit
from service.storage.store import Store

APPLICATION = "calibrd"
# by default DBOS hashes the code, and the jobs of an older deployment would wait for ever
VERSION = "1"
WORKFLOW = "fit"
POLL_SECONDS = 0.2
OPEN = ["ENQUEUED", "PENDING", "DELAYED"]
DONE = ["SUCCESS", "ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED"]


class QueueEntry(NamedTuple):
    """An entry of the queue, and the fit it is for."""

    id: str
    fit: str


class DbosQueue:
    """Where fits wait. A fit may have several entries; whoever comes after the first does nothing.

    Each workspace is a partition of its queue, and DBOS looks at partitions in random order: a
    workspace with many fits delays the first fit of another by about one of its own in the mean.

    So a fit that has to wait again gets a new entry in the transaction that says so, rather than
    its old entry back in a second step that might not happen.
    """

    def __init__(self, database: Database) -> None:
        self._client = DBOSClient(
            system_database_engine=database.engine.execution_options(writes=True),
            application_name=APPLICATION,
            serializer=DBOSPortableJSONSerializer(),
            lazy=True,
            retry_connection_errors=False,
        )

    def register(self) -> None:
        """Make the queues known; a worker takes one entry at a time from each of its queues."""
        for name in QUEUES:
            self._client.register_queue(
                name,
                worker_concurrency=1,
                partition_worker_concurrency=1,
                polling_interval_sec=POLL_SECONDS,
            )

    def enqueue(self, store: Store, fit: Fit) -> None:
        """Put a fit on its queue, inside the store's transaction."""
        self._enqueue(store, fit, fit.id)

    def enqueue_again(self, store: Store, fit: Fit, seconds: float = 0.0) -> None:
        """Put a fit that was taken from its queue back on it, inside the store's transaction.

        No worker takes it before so many seconds have passed.
        """
        self._enqueue(store, fit, f"{fit.id}.{secrets.token_hex(6)}", seconds)

    def withdraw(self, fit: str) -> None:
        """Delete the entry of a cancelled fit, which a worker would have to take in vain.

        In a transaction of its own, and without complaint: an entry that is left over does no harm.
        Those of fits that were put back are, because finding them takes a look at all entries.
        """
        with suppress(SQLAlchemyError):
            found = self._client.list_workflows(
                status="ENQUEUED", workflow_ids=[fit], load_input=False, load_output=False
            )
            self.forget([one.workflow_id for one in found])

    def without_workspace(self) -> list[QueueEntry]:
        """Return entries of releases before partitions, which no worker would take."""
        found = self._client.list_workflows(
            status="ENQUEUED", queue_name=list(QUEUES), load_input=False, load_output=False
        )
        return [_entry(one.workflow_id) for one in found if one.queue_partition_key is None]

    def taken_by(self, worker: str) -> list[QueueEntry]:
        """The entries that a worker has taken and not finished."""
        found = self._client.list_workflows(
            status="PENDING", executor_id=worker, load_input=False, load_output=False
        )
        return [_entry(one.workflow_id) for one in found]

    def takers(self) -> set[str]:
        """The workers that have taken entries and not finished them."""
        found = self._client.list_workflows(status="PENDING", load_input=False, load_output=False)
        return {one.executor_id for one in found if one.executor_id}

    def waiting(self, fits: Collection[str]) -> set[str]:
        """Those of the fits that have an entry which is not done."""
        found = self._client.list_workflows(
            status=OPEN, workflow_id_prefix=list(fits), load_input=False, load_output=False
        )
        return {one.workflow_id.partition(".")[0] for one in found}

    def forget(self, ids: Collection[str]) -> None:
        """Delete entries."""
        if ids:
            self._client.delete_workflows(list(ids))

    def forget_done(self, hours: float = 24, limit: int = 1000) -> None:
        """Delete old entries that have nothing more to do."""
        before = (datetime.now(UTC) - timedelta(hours=hours)).isoformat()
        found = self._client.list_workflows(
            status=DONE,
            completed_before=before,
            limit=limit,
            load_input=False,
            load_output=False,
        )
        self.forget([one.workflow_id for one in found])

    def close(self) -> None:
        """Let go of the database; its connections are not ours to close."""
        self._client.destroy()

    def _enqueue(self, store: Store, fit: Fit, id: str, seconds: float = 0.0) -> None:
        options: EnqueueOptions = {
            "workflow_name": WORKFLOW,
            "workflow_id": id,
            "queue_name": fit.queue,
            "queue_partition_key": fit.workspace,
            "app_version": VERSION,
            "application_name": APPLICATION,
        }
        if seconds:
            options["delay_seconds"] = seconds
        self._client.enqueue_in_transaction(store.session, options, fit.id)


def _entry(id: str) -> QueueEntry:
    return QueueEntry(id, id.partition(".")[0])
