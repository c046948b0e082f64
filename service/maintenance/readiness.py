"""Readiness of the service: its components, probed at most once a second."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from pydantic import Field
from sqlalchemy.exc import SQLAlchemyError

from service.errors import ServiceError
from service.fits.service import WORKER_IS_ALIVE
from service.http.schemas import Body
from service.storage.blobs import Blobs
from service.storage.database import Database

FRESH_SECONDS = 1.0
DATABASE_SECONDS = 2.0
OK = "ok"
DAMAGED = "is damaged: run `calibrd doctor`"


class Readiness(Body):
    """The status of each component: ``ok``, or a description of the problem."""

    status: str = Field(examples=["ok"])
    database: str = Field(examples=["ok"])
    blobs: str = Field(examples=["ok"])
    workers: str = Field(examples=["ok"])


class Probe:
    """Probe of the database, the blob store and the workers.

    Results are cached, because the endpoint is unauthenticated and not rate-limited.
    """

    def __init__(self, database: Database, blobs: Blobs) -> None:
        self._database = database
        self._blobs = blobs
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="probe")
        self._second_thread = ThreadPoolExecutor(1, thread_name_prefix="probe-blobs")
        self._found: Readiness | None = None
        self._found_at = 0.0
        self._pending: asyncio.Future[Readiness] | None = None

    def read(self) -> Readiness:
        """Return the status of the components, at most a second old."""
        with self._lock:
            if self._found is None or time.monotonic() - self._found_at > FRESH_SECONDS:
                self._found = self._try()
                self._found_at = time.monotonic()
            return self._found

    async def read_async(self) -> Readiness:
        """Return the status, at most a second old; callers that wait share one probe."""
        if self._found is not None and time.monotonic() - self._found_at <= FRESH_SECONDS:
            return self._found
        if self._pending is None or self._pending.done():
            self._pending = asyncio.get_running_loop().run_in_executor(self._thread, self.read)
        return await asyncio.shield(self._pending)

    def _try(self) -> Readiness:
        """Probe both stores concurrently, so that two hanging stores take no longer than one."""
        pending = self._second_thread.submit(self._blobs_status)
        database, workers = self._database_status()
        blobs = pending.result()
        status = OK if database == blobs == workers == OK else "not ready"
        return Readiness(status=status, database=database, blobs=blobs, workers=workers)

    def _database_status(self) -> tuple[str, str]:
        try:
            with self._database.read(DATABASE_SECONDS) as store:
                is_staffed = bool(store.workers.alive(WORKER_IS_ALIVE))
        except (SQLAlchemyError, ServiceError):
            if self._database.is_damaged:
                return DAMAGED, "unknown"
            return "does not respond", "unknown"
        workers = OK if is_staffed else "no live worker: fits have to wait"
        # a damaged page elsewhere does not affect this query
        return DAMAGED if self._database.is_damaged else OK, workers

    def _blobs_status(self) -> str:
        try:
            self._blobs.ping()
        except ServiceError as error:
            return error.message
        return OK
