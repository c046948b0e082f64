"""The queue of fits, kept by DBOS in our own database: row and entry in one transaction."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from dbos import DBOS, DBOSClient, DBOSPortableJSONSerializer, EnqueueOptions
from sqlalchemy.exc import SQLAlchemyError

from service.fits.service import QUEUES
from service.settings import HOUR
from service.storage.database import PASSING, Database, connection_arguments
from service.storage.records import Fit, FitStatus
from service.storage.store import Store

APPLICATION = "calibrd"
# by default DBOS hashes the code, and the jobs of an older deployment would wait for ever
VERSION = "1"
WORKFLOW = "fit"
POLL_SECONDS = 0.2
# while the database is away DBOS warns ten times a second; housekeeping does once a heartbeat
QUIET = "ERROR"
# before the next fit of a workspace whose fits lose workers
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 600.0
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


def listen(database: Database, worker: str, queues: Sequence[str]) -> None:
    """Let DBOS hand over the entries of queues to a worker, from now on."""
    url = database.url
    DBOS(
        config={
            "name": APPLICATION,
            "application_version": VERSION,
            "executor_id": worker,
            "system_database_url": url.render_as_string(hide_password=False),
            "db_engine_kwargs": {}
            if database.is_sqlite
            else {"connect_args": connection_arguments(url)},
            "serializer": DBOSPortableJSONSerializer(),
            "run_migrations": False,
            "notification_listener_polling_interval_sec": 0.5,
            "log_level": QUIET,
        }
    )
    DBOS.listen_queues(list(queues))
    try:
        DBOS.launch()
    except PASSING:
        DBOS.destroy()  # what was launched by half cannot be launched again
        raise


def pause_after(losses: int) -> float:
    """Return the seconds that a workspace waits after so many workers lost in the last hour.

    A fit that needs more memory than there is takes its worker with it, and starting another
    takes seconds: the fits of others must not wait for that again and again.

    >>> [pause_after(losses) for losses in (0, 1, 2, 3, 50)]
    [0.0, 5.0, 10.0, 20.0, 600.0]
    """
    return min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(losses - 1, 30)) if losses else 0.0


def seconds_to_wait(store: Store, workspace: str) -> float:
    """Return how long no fit of a workspace may start."""
    losses = store.fits.losses(workspace, HOUR)
    return max(0.0, pause_after(losses.attempts) - losses.seconds_ago)


def postpone(database: Database, queue: DbosQueue, id: str) -> bool:
    """Put a fit that was taken from its queue back for later if its workspace has to wait."""
    with database.read() as store:
        fit = store.fits.get(id)
        seconds = 0.0 if fit is None else seconds_to_wait(store, fit.workspace)
    if fit is None or fit.status is not FitStatus.QUEUED or not seconds:
        return False
    with database.write() as store:
        queue.enqueue_again(store, fit, seconds)
    return True
