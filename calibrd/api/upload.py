"""How a dataset gets to the service: asked for first, in parts if big, going on if it broke."""

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
from calibrd.transport.connection import given
from calibrd.transport.disk_cache import Cache, CacheEntry
from calibrd.transport.flows import Flow, Together, Work
from calibrd.transport.names import Sha256
from calibrd.transport.responses import document_of, member_of, records_of

if TYPE_CHECKING:
    from calibrd.api.base import Asking

ID = re.compile(r"[A-Za-z0-9_-]{1,64}")  # what may be one: the memory is a file, which may be cut
MOST_PARTS = 10_000
AT_ONCE = 4
SOON = timedelta(days=1)
# how fast the service joins parts and checks them, at least
JOINED_A_SECOND = 1 << 23

_log = logging.getLogger("calibrd")


class Retention(NamedTuple):
    """How long the service keeps a dataset."""

    delete_after_fit: bool = False
    days: float | None = None

    @property
    def query(self) -> dict[str, object]:
        """As parameters of an upload."""
        found = dict(given(days=self.days))
        return {**found, "delete_after_fit": "true"} if self.delete_after_fit else found


@dataclass
class Upload:
    """One upload, with what it has learned of the service on the way."""

    client: Asking
    payload: Payload
    keeping: Retention
    progress: bool
    straight: bool = True
    _learning: threading.Lock = field(default_factory=threading.Lock)

    def flow(self) -> Flow[Dataset]:
        """The dataset, sent if the service does not have its bytes."""
        sha256: str = yield Work(lambda: self.payload.sha256)
        known = yield from self._known(sha256)
        if known is not None and self._stays(known):
            return known
        if self.payload.bytes <= self.client.connection.part_bytes:
            return (yield from self._whole())
        return (yield from self._in_parts(sha256))

    def _known(self, sha256: str) -> Flow[Dataset | None]:
        try:
            return (yield from self.client.ask_for(Dataset, "GET", "datasets", f"sha256:{sha256}"))
        except NotFound as error:
            if error.code != "no_such_dataset":
                raise
            return None

    def _stays(self, known: Dataset) -> bool:
        """Whether it is kept as it should be; else sending it again says how long."""
        if self.keeping != Retention() or known.delete_after_fit:
            return False
        return known.expires_at is None or known.expires_at - datetime.now(UTC) > SOON

    def _whole(self) -> Flow[Dataset]:
        content: bytes = yield Work(lambda: self.payload.read(0, self.payload.bytes))
        return (
            yield from self.client.ask_for(
                Dataset,
                "POST",
                "datasets",
                content=content,
                query=self.keeping.query,
                headers={"Content-Type": self.payload.media_type},
                repeatable=True,  # equal bytes are kept once
            )
        )

    def _in_parts(self, sha256: str) -> Flow[Dataset]:
        size = max(self.client.connection.part_bytes, -(-self.payload.bytes // MOST_PARTS))
        kept = f"{self.keeping.delete_after_fit:d}-{self.keeping.days or 0:g}"
        memory = Cache(self.client.connection).upload(f"{sha256}-{size}-{kept}")
        try:
            try:
                made = yield from self._sent_and_joined(sha256, size, memory)
            except (Conflict, NotFound) as error:
                # another process, which sends the same, was faster; or a part was lost on its way
                _log.info("the upload of %s is looked at once more: %s", sha256, error)
                known = yield from self._known(sha256)
                if known is not None and self._stays(known):
                    made = known
                else:
                    made = yield from self._sent_and_joined(sha256, size, memory)
        except (Conflict, Invalid) as error:
            if error.status != HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
                yield Work(memory.forget)  # whatever is wrong with it, the next one begins anew
            raise
        yield Work(memory.forget)
        return made

    def _sent_and_joined(self, sha256: str, size: int, memory: CacheEntry) -> Flow[Dataset]:
        remembered: str | None = yield Work(memory.read)
        id, there = yield from self._opened(remembered)
        yield Work(lambda: memory.write(id))
        count = -(-self.payload.bytes // size)
        with ProgressBar(
            self.payload.bytes, "upload", shown=self.progress, unit="B", unit_scale=True
        ) as bar:
            sending = [
                self._sending(id, number, size, there, bar) for number in range(1, count + 1)
            ]
            yield Together(sending, at_once=AT_ONCE)
        body = {"parts": count, "sha256": sha256, "content_type": self.payload.media_type}
        place = ("datasets", id, "commit")
        timeout = self.client.connection.timeout + self.payload.bytes / JOINED_A_SECOND
        return (
            yield from self.client.ask_for(
                Dataset, "POST", *place, body=body, timeout=timeout, repeatable=True
            )
        )

    def _opened(self, id: str | None) -> Flow[tuple[str, dict[int, Part]]]:
        """An upload that broke off earlier and the parts it has, or a new one."""
        if id is not None and ID.fullmatch(id):
            try:
                answer = yield from self.client.ask("GET", "datasets", id)
            except NotFound as error:
                if error.code != "no_such_dataset":
                    raise
            else:
                found = document_of(answer)
                if member_of(found, "status") == "uploading":
                    parts = records_of(Part, member_of(found, "parts"))
                    return id, {part.number: part for part in parts}
        query = {"upload": "parts", **self.keeping.query}
        # one that is opened twice and never sent is given up by the service
        opened = yield from self.client.ask_for(
            Dataset, "POST", "datasets", query=query, repeatable=True
        )
        return opened.id, {}

    def _sending(
        self, id: str, number: int, size: int, there: dict[int, Part], bar: ProgressBar
    ) -> Callable[[], Flow[None]]:
        def send() -> Flow[None]:
            start = (number - 1) * size
            content: bytes = yield Work(lambda: self.payload.read(start, start + size))
            sha256: str = yield Work(lambda: hashlib.sha256(content).hexdigest())
            known = there.get(number)
            if known is None or known.sha256 != sha256:
                yield from self._send_part(id, Part(number, len(content), Sha256(sha256)), content)
            bar.add(len(content))

        return send

    def _send_part(self, id: str, part: Part, content: bytes) -> Flow[None]:
        """Straight to the store where that is possible, else through the service."""
        if self.straight:
            try:
                yield from self._send_straight(id, part, content)
                return
            except (Conflict, StoreAway) as error:
                if error.code not in ("no_presigned_uploads", StoreAway.code):
                    raise
                self._send_through_service(error)
        yield from self.client.ask("PUT", "datasets", id, "parts", part.number, content=content)

    def _send_through_service(self, error: Conflict | StoreAway) -> None:
        with self._learning:
            if self.straight and isinstance(error, StoreAway):
                _log.warning("parts go through the service from now on: %s", error)
            self.straight = False

    def _send_straight(self, id: str, part: Part, content: bytes) -> Flow[None]:
        place = ("datasets", id, "parts", "presigned")
        body = {"parts": [vars(part)]}
        answer = yield from self.client.ask("POST", *place, body=body, repeatable=True)
        signed = member_of(member_of(document_of(answer), "parts"), 0)
        yield from self.client.connection.put_elsewhere(member_of(signed, "url"), content)
