"""Temporary files for incoming bodies, hashed as they arrive."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import IO

from starlette.requests import Request

from service.concurrency.temporary_files import new_file
from service.concurrency.thread_pools import Runner
from service.errors import NoSpace
from service.storage.blobs import FULL
from service.storage.database import SHARE_PART, check_free

HEAD = 512
DELETERS = 8  # deleting 4 GiB takes half a second


class ArrivingBytes:
    """Disk space occupied by incoming bodies, per owner.

    Each owner may use a quarter of the available space, so that its uploads do not block others.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._taken: Counter[str] = Counter()
        self._lock = threading.Lock()

    def take(self, owner: str, size: int) -> None:
        """Reserve space for bytes about to be written; raise NoSpace if there is not enough."""
        check_free(self._folder)
        with self._lock:
            mine = self._taken[owner] + size
            room = shutil.disk_usage(self._folder).free + self._taken.total()
            if mine > room // SHARE_PART:
                raise NoSpace(
                    "no_space",
                    f"this workspace's incoming bodies would take {mine} bytes, but only "
                    f"{room // SHARE_PART} are available: send fewer at once, or try again later",
                )
            self._taken[owner] = mine

    def release(self, owner: str, size: int) -> None:
        """Release the space of deleted bytes."""
        with self._lock:
            self._taken[owner] -= size
            if not self._taken[owner]:
                del self._taken[owner]


class Spool:
    """Folder for incoming bodies, with the space used by each owner (a workspace)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.arriving = ArrivingBytes(folder)
        self._deleters = ThreadPoolExecutor(DELETERS, thread_name_prefix="spool-delete")

    @contextmanager
    def body(self, owner: str) -> Iterator[SpooledBody]:
        """Provide a temporary file for a body, and delete it at the end."""
        body = SpooledBody(self, owner)
        try:
            yield body
        finally:
            body.close()

    @asynccontextmanager
    async def receive(self, owner: str) -> AsyncIterator[SpooledBody]:
        """Provide a temporary file for a body, and delete it at the end in a thread."""
        body = SpooledBody(self, owner)
        try:
            yield body
        finally:
            loop = asyncio.get_running_loop()
            await asyncio.shield(loop.run_in_executor(self._deleters, body.close))


class SpooledBody:
    """A temporary file that hashes the bytes written to it.

    The file is created by the first call that needs it, never on the event loop.
    """

    def __init__(self, spool: Spool, owner: str) -> None:
        self._spool = spool
        self._owner = owner
        self._file: IO[bytes] | None = None
        self._is_closed = False
        self._lock = threading.Lock()  # an abandoned call may still be writing during close
        self._digest = hashlib.sha256()
        self.bytes = 0

    def write(self, piece: bytes) -> None:
        """Append bytes."""
        with self._lock:
            file = self._opened()
            self._spool.arriving.take(self._owner, len(piece))
            self.bytes += len(piece)
            with _room():
                file.write(piece)
        self._digest.update(piece)

    def close(self) -> None:
        """Delete the file."""
        with self._lock:
            self._is_closed = True
            if self._file is not None:
                Path(self._file.name).unlink(missing_ok=True)
                with suppress(OSError):  # unwritten bytes did not fit and are not needed
                    self._file.close()
            self._spool.arriving.release(self._owner, self.bytes)

    def _opened(self) -> IO[bytes]:
        if self._is_closed:
            raise ValueError("the body is closed")
        if self._file is None:
            self._file = new_file(self._spool.folder)
        return self._file

    @property
    def path(self) -> Path:
        """The path of the file."""
        with self._lock:
            return Path(self._opened().name)

    @property
    def sha256(self) -> str:
        """The SHA-256 of the bytes written so far."""
        return self._digest.hexdigest()

    def flush(self) -> None:
        """Write buffered bytes to the disk."""
        with self._lock, _room():
            self._opened().flush()

    def head(self) -> bytes:
        """Return the first bytes."""
        self.flush()
        with self.path.open("rb") as file:
            return file.read(HEAD)


@contextmanager
def _room() -> Iterator[None]:
    """Raise NoSpace if the disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise NoSpace("no_space", "the upload disk is full: try again later") from error


BLOCK = 1 << 18


async def spool(request: Request, body: SpooledBody, run: Runner) -> None:
    """Write a request's body to disk in blocks, off the event loop."""
    pending = bytearray()
    async for piece in request.stream():
        pending += piece
        if len(pending) >= BLOCK:
            await run(body.write, bytes(pending))
            pending.clear()
    if pending:
        await run(body.write, bytes(pending))
