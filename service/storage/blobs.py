"""Blob store in a local folder or an S3 bucket, chosen by URL."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

import obstore
import structlog
from obstore.exceptions import BaseError
from obstore.store import LocalStore, S3Store

from service.concurrency.temporary_files import downloads, new_file
from service.errors import BlobCorrupt, BlobMissing, Damaged, NoSpace, ServiceError, Unavailable
from service.settings import HOUR
from service.storage.blob_keys import kind_of
from service.storage.database import check_free

# S3 rejects parts under 5 MiB; up to four are in memory while a blob is written
CHUNK = 5 << 20
MIN_FREE = 16 << 20
# timeouts of S3 calls for a ping, for a map or list, and for a dataset; the default retries calls
# to an unreachable server for three minutes, which is longer than callers wait
PING_SECONDS, SHORT_SECONDS, LONG_SECONDS = 2, 10, 600

T = TypeVar("T")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Blob:
    """Metadata of a blob in the store."""

    key: str
    bytes: int
    modified_at: float


class BlobReader(NamedTuple):
    """A blob with a verified hash: its size, and a function that reads a range of bytes."""

    size: int
    read: Callable[[int, int], bytes]


class Blobs:
    """Store of blobs under keys such as ``ws_1/maps/<sha256>``; writes are atomic.

    ``on_damage`` is called with the key of every blob that turns out to be missing or to differ
    from what was written. ``sign_endpoint`` is the address at which clients reach the S3 server,
    if it differs from the one that the service uses.
    """

    def __init__(
        self,
        url: str,
        *,
        on_damage: Callable[[str, Damaged], None] | None = None,
        sign_endpoint: str = "",
    ) -> None:
        parts = urlsplit(url)
        self.url = url
        self._on_damage = on_damage
        self._folder: Path | None = None
        self._signer: S3Store | None = None
        if parts.scheme == "file":
            self._folder = Path(unquote(parts.path))
            self._folder.mkdir(parents=True, exist_ok=True)
            self._store: LocalStore | S3Store = LocalStore(self._folder, automatic_cleanup=True)
            self._bulk: LocalStore | S3Store = self._store
            self._pinged: LocalStore | S3Store = self._store
        else:
            self._store = self._signer = _s3(url, SHORT_SECONDS)
            self._bulk = _s3(url, LONG_SECONDS)
            self._pinged = _s3(url, PING_SECONDS, retries=0)
            if sign_endpoint:
                self._signer = _s3(url, SHORT_SECONDS, endpoint=sign_endpoint)

    @property
    def folder(self) -> Path | None:
        """The folder that contains the blobs; None for a bucket."""
        return self._folder

    @property
    def can_sign(self) -> bool:
        """True if the store can sign URLs for uploads by clients."""
        return self._signer is not None

    def put(self, key: str, content: bytes | Path | IO[bytes]) -> None:
        """Write a blob."""
        if self._folder is not None:
            check_free(self._folder)
        with _translated_errors():
            obstore.put(self._bulk, key, content, chunk_size=CHUNK, max_concurrency=2)
            if self._folder is not None:
                # the bytes must be durable before a row refers to them
                parents = (self._folder / one for one in PurePosixPath(key).parents)
                fsync_paths(self._folder / key, *parents)

    def get(self, key: str, sha256: str) -> bytes:
        """Return the bytes of a blob, which must have this SHA-256."""
        with self._reporting_damage(key):
            with _translated_errors():
                content = bytes(obstore.get(self._store, key).bytes())
            if hashlib.sha256(content).hexdigest() != sha256:
                raise _corrupt()
        return content

    def chunks(self, key: str, sha256: str, *, by_client: bool = False) -> Iterator[bytes]:
        """Yield the bytes of a blob in chunks.

        A wrong SHA-256 raises BlobCorrupt, but only after the last chunk. It is not reported as
        damage if a client may have written the bytes (``by_client``).
        """
        digest = hashlib.sha256()
        with nullcontext() if by_client else self._reporting_damage(key):
            with _translated_errors():
                for piece in obstore.get(self._bulk, key).stream(min_chunk_size=CHUNK):
                    digest.update(piece)
                    yield bytes(piece)
            if digest.hexdigest() != sha256:
                raise _corrupt()

    @contextmanager
    def file(self, key: str, sha256: str) -> Iterator[Path]:
        """Provide a blob, which must have this SHA-256, as a file."""
        if self._folder is not None:
            path = self._folder / key
            with self._reporting_damage(key):
                if not path.exists():
                    raise BlobMissing("blob_missing", "the stored bytes are missing")
                with path.open("rb") as file:
                    if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                        raise _corrupt()
            yield path
            return
        with new_file(downloads()) as target:
            path = Path(target.name)
            try:
                with _translated_errors():
                    for piece in self.chunks(key, sha256):
                        target.write(piece)
                    target.flush()
                yield path
            finally:
                path.unlink(missing_ok=True)

    @contextmanager
    def reader(self, key: str, sha256: str) -> Iterator[BlobReader]:
        """Provide a blob, which must have this SHA-256, without copying it to disk or memory."""
        if self._folder is None:
            size = sum(map(len, self.chunks(key, sha256)))
            yield BlobReader(size, partial(self._range, key))
            return
        with self.file(key, sha256) as path, path.open("rb") as file:

            def read(start: int, end: int) -> bytes:
                file.seek(start)
                return file.read(end - start)

            yield BlobReader(path.stat().st_size, read)

    def _range(self, key: str, start: int, end: int) -> bytes:
        with _translated_errors():
            return bytes(obstore.get_range(self._store, key, start=start, end=end))

    def list(self, prefix: str = "") -> Iterator[Blob]:
        """List the blobs whose keys begin with ``prefix``, which is empty or ends with a slash."""
        with _translated_errors():
            for page in obstore.list(self._store, prefix or None, chunk_size=1000):
                for found in page:
                    yield Blob(found["path"], found["size"], found["last_modified"].timestamp())

    def peek(self, key: str) -> bytes | None:
        """Return the bytes of a small blob without checking a hash; None if it does not exist."""
        with suppress(BlobMissing), _translated_errors():
            return bytes(obstore.get(self._store, key).bytes())
        return None

    def has(self, key: str) -> bool:
        """Return whether a blob exists."""
        with suppress(BlobMissing), _translated_errors():
            obstore.head(self._store, key)
            return True
        return False

    def delete(self, key: str) -> None:
        """Delete a blob; a missing blob is not an error."""
        with suppress(BlobMissing), _translated_errors():
            obstore.delete(self._store, key)

    def unfinished(self) -> Iterator[Blob]:
        """List the partially written files of a folder, which ``list`` omits.

        Old ones were left behind by writers that died. On S3 this lists nothing: only a lifecycle
        rule of the bucket removes the parts of unfinished uploads.
        """
        if self._folder is None:
            return
        for path in self._folder.rglob("*#*"):
            with suppress(FileNotFoundError):
                found = path.stat()
                yield Blob(str(path.relative_to(self._folder)), found.st_size, found.st_mtime)

    def delete_unfinished(self, key: str) -> None:
        """Delete a file that ``unfinished`` listed."""
        assert self._folder is not None  # noqa: S101
        (self._folder / key).unlink(missing_ok=True)

    def sign_put(self, key: str, seconds: float) -> str:
        """Return a presigned URL that allows a PUT of this blob for ``seconds``."""
        assert self._signer is not None  # noqa: S101 - check can_sign first
        with _translated_errors():
            return obstore.sign(self._signer, "PUT", key, timedelta(seconds=seconds))

    def ping(self) -> None:
        """Raise an error if the store does not respond or is full."""
        with _translated_errors():
            if self._folder is not None and shutil.disk_usage(self._folder).free < MIN_FREE:
                raise NoSpace("no_space", "the disk of the blob store is full")
            obstore.list(self._pinged, "none/").collect()

    @contextmanager
    def _reporting_damage(self, key: str) -> Iterator[None]:
        try:
            yield
        except Damaged as error:
            if self._on_damage is not None:
                self._on_damage(key, error)
            raise


def _s3(url: str, seconds: float, *, retries: int = 3, **config: str) -> S3Store:
    return S3Store.from_url(
        url,
        retry_config={"max_retries": retries, "retry_timeout": timedelta(seconds=SHORT_SECONDS)},
        client_options={
            "connect_timeout": timedelta(seconds=min(seconds, 5)),
            "read_timeout": timedelta(seconds=min(seconds, 20)),
            "timeout": timedelta(seconds=seconds),
            "allow_http": True,  # an endpoint without TLS is a deliberate choice
        },
        **config,  # type: ignore[arg-type]
    )


def _corrupt() -> BlobCorrupt:
    return BlobCorrupt("blob_corrupt", "the stored bytes differ from the bytes written")


@contextmanager
def _translated_errors() -> Iterator[None]:
    """Translate the store's exceptions into service errors, without paths and URLs."""
    try:
        yield
    except FileNotFoundError as error:
        if _reason(str(error)) == NO_BUCKET:
            raise _unavailable(str(error)) from error
        raise BlobMissing("blob_missing", "the stored bytes are missing") from error
    except (BaseError, OSError) as error:
        message = str(error)
        is_full = any(f"(os error {number})" in message for number in FULL)
        if is_full or getattr(error, "errno", None) in FULL:
            raise NoSpace("no_space", "the blob store is full: try again later") from error
        raise _unavailable(message) from error


NO_BUCKET = "NoSuchBucket"
_CODE = re.compile(r"<Code>(\w{1,60})</Code>")
# the metadata service that AWS machines ask for credentials if none are configured
ASKED_FOR_CREDENTIALS = "169.254.169.254"


def _reason(message: str) -> str:
    """Return the error code in a message from S3, such as AccessDenied; empty if there is none."""
    found = _CODE.search(message)
    return found[1] if found else ""


def _unavailable(message: str) -> Unavailable:
    """Log a failure of the store; return an error that includes S3's error code, if any."""
    reason = _reason(message)
    logger.warning(
        "blob_store_unavailable", extra={"error": message.partition("\n")[0], "reason": reason}
    )
    if reason == NO_BUCKET:
        sentence = f"the bucket of the blob store does not exist ({NO_BUCKET})"
    elif reason:
        sentence = f"the blob store reports {reason}"
    elif ASKED_FOR_CREDENTIALS in message:
        sentence = (
            "the blob store has no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    else:
        sentence = "the blob store is not responding"
    return Unavailable("blobs_unavailable", sentence)


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def fsync_paths(*paths: Path) -> None:
    """Flush files and folders to disk, so that they survive a power failure."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


_log = structlog.get_logger("calibrd.blobs")


def log_damage(key: str, error: Damaged) -> None:
    """Log a damaged blob."""
    _log.error("blob_damaged", code=error.code, blob=kind_of(key), key=key)


# deadline for committing the row of a written blob
COMMIT_SECONDS = HOUR

# unlike the monotonic clock, it does not stop while the machine sleeps
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class PendingBlobs:
    """Blobs that no row refers to yet; create this object before writing them.

    A blob that no row refers to for a long time is deleted as an orphan. A writer that was paused
    must not refer to it any more, so every writer calls ``check`` in the transaction that writes
    the row.
    """

    def __init__(self, blobs: Blobs, within: float = COMMIT_SECONDS) -> None:
        self._blobs = blobs
        self._keys: list[str] = []
        self._deadline = time.clock_gettime(_CLOCK) + within

    def put(self, key: str, content: bytes | Path | IO[bytes]) -> None:
        """Write a blob."""
        self._keys.append(key)
        self._blobs.put(key, content)

    def delete(self) -> None:
        """Delete the blobs, because no row will refer to them; the sweep retries failures."""
        for key in self._keys:
            try:
                self._blobs.delete(key)
            except ServiceError as error:
                logger.warning("blob_left_to_sweep", extra={"key": key, "code": error.code})

    @contextmanager
    def named_in(self, transaction: AbstractContextManager[T]) -> Iterator[T]:
        """Run the transaction that writes the row; if it fails before the commit, delete the blobs.

        If the commit itself fails, the row may exist, so the blobs stay.
        """
        may_be_committed = False
        try:
            with transaction as store:
                yield store
                may_be_committed = True
        except BaseException:
            if not may_be_committed:
                self.delete()
            raise

    def check(self) -> None:
        """Raise Unavailable if it is too late for a row to refer to the blobs."""
        if time.clock_gettime(_CLOCK) > self._deadline:
            raise Unavailable(
                "paused_too_long",
                "the service was paused after storing the bytes, which may have been deleted "
                "since: try again",
            )
