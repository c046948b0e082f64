"""Upload datasets: skip stored data, split large datasets, and resume after interruptions."""

from __future__ import annotations

import hashlib
import logging
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple

from calibrd.errors import Conflict, Invalid, NotFound, StoreAway
from calibrd.io.payload import Payload
from calibrd.models import Dataset, Part
from calibrd.progress import ProgressBar
from calibrd.transport.connection import drop_none
from calibrd.transport.disk_cache import Cache, CacheEntry
from calibrd.transport.flows import Flow, Together, Work
from calibrd.transport.names import Sha256
from calibrd.transport.responses import document_of, member_of, records_of

if TYPE_CHECKING:
    from calibrd.api.base import ApiBase

ID = re.compile(r"[A-Za-z0-9_-]{1,64}")  # the cached id comes from a file, which may be damaged
MAX_PARTS = 10_000
AT_ONCE = 4
SOON = timedelta(days=1)
# lower bound on the speed at which the service joins and checks parts
COMMIT_BYTES_PER_SECOND = 1 << 23

_log = logging.getLogger("calibrd")


class Retention(NamedTuple):
    """Retention settings of a dataset on the service."""

    delete_after_fit: bool = False
    days: float | None = None

    @property
    def query(self) -> dict[str, object]:
        """The query parameters of an upload."""
        query = dict(drop_none(days=self.days))
        return {**query, "delete_after_fit": "true"} if self.delete_after_fit else query


@dataclass
class Upload:
    """One upload; its parts are sent directly to the object store where possible."""

    client: ApiBase
    payload: Payload
    retention: Retention
    progress: bool
    is_direct: bool = True
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def flow(self) -> Flow[Dataset]:
        """Return the dataset; upload it unless the service already has it."""
        sha256: str = yield Work(lambda: self.payload.sha256)
        known = yield from self._known(sha256)
        if known is not None and self._is_kept(known):
            return known
        if self.payload.bytes <= self.client.connection.part_bytes:
            return (yield from self._send_whole())
        return (yield from self._send_in_parts(sha256))

    def _known(self, sha256: str) -> Flow[Dataset | None]:
        try:
            return (
                yield from self.client.request_record(
                    Dataset, "GET", "datasets", f"sha256:{sha256}"
                )
            )
        except NotFound as error:
            if error.code != "no_such_dataset":
                raise
            return None

    def _is_kept(self, known: Dataset) -> bool:
        """Return whether the dataset is kept long enough; if not, it is uploaded again."""
        if self.retention != Retention() or known.delete_after_fit:
            return False
        return known.expires_at is None or known.expires_at - datetime.now(UTC) > SOON

    def _send_whole(self) -> Flow[Dataset]:
        content: bytes = yield Work(lambda: self.payload.read(0, self.payload.bytes))
        return (
            yield from self.client.request_record(
                Dataset,
                "POST",
                "datasets",
                content=content,
                query=self.retention.query,
                headers={"Content-Type": self.payload.media_type},
                repeatable=True,  # identical content is stored once
            )
        )

    def _send_in_parts(self, sha256: str) -> Flow[Dataset]:
        size = max(self.client.connection.part_bytes, -(-self.payload.bytes // MAX_PARTS))
        retention = f"{self.retention.delete_after_fit:d}-{self.retention.days or 0:g}"
        entry = Cache(self.client.connection).upload(f"{sha256}-{size}-{retention}")
        try:
            try:
                made = yield from self._send_and_commit(sha256, size, entry)
            except (Conflict, NotFound) as error:
                # another process has uploaded the same data in the meantime, or a part was lost
                _log.info("retrying the upload of %s: %s", sha256, error)
                known = yield from self._known(sha256)
                if known is not None and self._is_kept(known):
                    made = known
                else:
                    made = yield from self._send_and_commit(sha256, size, entry)
        except (Conflict, Invalid) as error:
            if error.status != HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
                yield Work(entry.forget)  # the next upload starts over
            raise
        yield Work(entry.forget)
        return made

    def _send_and_commit(self, sha256: str, size: int, entry: CacheEntry) -> Flow[Dataset]:
        earlier: str | None = yield Work(entry.read)
        id, arrived = yield from self._opened(earlier)
        yield Work(lambda: entry.write(id))
        count = -(-self.payload.bytes // size)
        with ProgressBar(
            self.payload.bytes, "upload", shown=self.progress, unit="B", unit_scale=True
        ) as bar:
            sending = [
                self._sending(id, number, size, arrived, bar) for number in range(1, count + 1)
            ]
            yield Together(sending, at_once=AT_ONCE)
        body = {"parts": count, "sha256": sha256, "content_type": self.payload.media_type}
        place = ("datasets", id, "commit")
        timeout = self.client.connection.timeout + self.payload.bytes / COMMIT_BYTES_PER_SECOND
        return (
            yield from self.client.request_record(
                Dataset, "POST", *place, body=body, timeout=timeout, repeatable=True
            )
        )

    def _opened(self, id: str | None) -> Flow[tuple[str, dict[int, Part]]]:
        """Return the id and the uploaded parts of an interrupted upload, or of a new one."""
        if id is not None and ID.fullmatch(id):
            try:
                response = yield from self.client.request("GET", "datasets", id)
            except NotFound as error:
                if error.code != "no_such_dataset":
                    raise
            else:
                found = document_of(response)
                if member_of(found, "status") == "uploading":
                    parts = records_of(Part, member_of(found, "parts"))
                    return id, {part.number: part for part in parts}
        query = {"upload": "parts", **self.retention.query}
        # if a retry opens a second upload, the service drops the unused one
        opened = yield from self.client.request_record(
            Dataset, "POST", "datasets", query=query, repeatable=True
        )
        return opened.id, {}

    def _sending(
        self, id: str, number: int, size: int, arrived: dict[int, Part], bar: ProgressBar
    ) -> Callable[[], Flow[None]]:
        def send() -> Flow[None]:
            start = (number - 1) * size
            content: bytes = yield Work(lambda: self.payload.read(start, start + size))
            sha256: str = yield Work(lambda: hashlib.sha256(content).hexdigest())
            known = arrived.get(number)
            if known is None or known.sha256 != sha256:
                yield from self._send_part(id, Part(number, len(content), Sha256(sha256)), content)
            bar.add(len(content))

        return send

    def _send_part(self, id: str, part: Part, content: bytes) -> Flow[None]:
        """Send a part directly to the object store if possible, else through the service."""
        if self.is_direct:
            try:
                yield from self._send_directly(id, part, content)
                return
            except (Conflict, StoreAway) as error:
                if error.code not in ("no_presigned_uploads", StoreAway.code):
                    raise
                self._send_through_service(error)
        yield from self.client.request("PUT", "datasets", id, "parts", part.number, content=content)

    def _send_through_service(self, error: Conflict | StoreAway) -> None:
        with self._lock:
            if self.is_direct and isinstance(error, StoreAway):
                _log.warning("sending parts through the service from now on: %s", error)
            self.is_direct = False

    def _send_directly(self, id: str, part: Part, content: bytes) -> Flow[None]:
        place = ("datasets", id, "parts", "presigned")
        body = {"parts": [vars(part)]}
        response = yield from self.client.request("POST", *place, body=body, repeatable=True)
        signed = member_of(member_of(document_of(response), "parts"), 0)
        yield from self.client.connection.put_foreign(member_of(signed, "url"), content)
