"""Blobs by key: a local folder or an S3 bucket, chosen by URL."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path, PurePosixPath
from typing import IO
from urllib.parse import unquote, urlsplit

import obstore
import structlog
from obstore.exceptions import BaseError
from obstore.store import LocalStore, S3Store

from service.errors import BlobCorrupt, BlobMissing, Damaged, NoSpace, ServiceError, Unavailable
from service.settings import HOUR
from service.storage.blob_keys import kind_of
from service.storage.database import check_free

# S3 refuses parts under 5 MiB; up to four are held while one blob is written
CHUNK = 5 << 20
LEAST_FREE = 16 << 20
# how long a call to S3 may take: to ask whether it answers, for a map or a list, for a dataset;
# by default one that is away is tried for three minutes, and who waits has gone
PING_SECONDS, SHORT_SECONDS, LONG_SECONDS = 2, 10, 600

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Blob:
    """What the store says of a blob, without its bytes."""

    key: str
    bytes: int
    modified_at: float


class Blobs:
    """Bytes under keys such as ``ws_1/maps/<sha256>``; a key is written whole or not at all.

    ``on_damage`` is told the key of every blob that turns out to be gone or to hold other bytes
    than those that were written. ``sign_endpoint`` is where clients reach the S3 server, if not
    where we do.
    """

    def __init__(
        self,
        url: str,
        *,
        on_damage: Callable[[str, Damaged], None] | None = None,
        sign_endpoint: str = "",
    ) -> None:
        parts = urlsplit(url)
        self._on_damage = on_damage
        self._folder: Path | None = None
        self._signer: S3Store | None = None
        if parts.scheme == "file":
            self._folder = Path(unquote(parts.path))
            self._folder.mkdir(parents=True, exist_ok=True)
            self._store: LocalStore | S3Store = LocalStore(self._folder)
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
        """The folder that they lie in; None for a bucket."""
        return self._folder

    @property
    def can_sign(self) -> bool:
        """Whether clients can be given URLs to write to."""
        return self._signer is not None

    def put(self, key: str, content: bytes | Path | IO[bytes]) -> None:
        """Write a blob."""
        if self._folder is not None:
            check_free(self._folder)
        with _told():
            obstore.put(self._bulk, key, content, chunk_size=CHUNK, max_concurrency=2)
            if self._folder is not None:
                # a row that names these bytes must not outlive them
                parents = (self._folder / one for one in PurePosixPath(key).parents)
                see_to_disk(self._folder / key, *parents)

    def get(self, key: str, sha256: str) -> bytes:
        """The bytes of a blob, which must have this SHA-256."""
        with self._noting_damage(key):
            with _told():
                content = bytes(obstore.get(self._store, key).bytes())
            if hashlib.sha256(content).hexdigest() != sha256:
                raise _corrupt()
        return content

    def chunks(self, key: str, sha256: str, *, by_client: bool = False) -> Iterator[bytes]:
        """The bytes of a blob, piece by piece.

        That they do not have this SHA-256 is known, and raised, only after the last piece. It is
        no damage of ours if a client may have written them.
        """
        digest = hashlib.sha256()
        with nullcontext() if by_client else self._noting_damage(key):
            with _told():
                for piece in obstore.get(self._bulk, key).stream(min_chunk_size=CHUNK):
                    digest.update(piece)
                    yield bytes(piece)
            if digest.hexdigest() != sha256:
                raise _corrupt()

    @contextmanager
    def file(self, key: str, sha256: str) -> Iterator[Path]:
        """A blob as a file to read, which must have this SHA-256."""
        if self._folder is not None:
            path = self._folder / key
            with self._noting_damage(key):
                if not path.exists():
                    raise BlobMissing("blob_missing", "the stored bytes are gone")
                with path.open("rb") as file:
                    if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                        raise _corrupt()
            yield path
            return
        with tempfile.TemporaryDirectory(prefix="calibrd-") as folder:
            path = Path(folder) / "blob"
            with _told(), path.open("wb") as target:
                for piece in self.chunks(key, sha256):
                    target.write(piece)
            yield path

    def list(self, prefix: str = "") -> Iterator[Blob]:
        """All blobs whose key begins with the prefix, which ends with a slash or is empty."""
        with _told():
            for page in obstore.list(self._store, prefix or None, chunk_size=1000):
                for found in page:
                    yield Blob(found["path"], found["size"], found["last_modified"].timestamp())

    def peek(self, key: str) -> bytes | None:
        """The bytes of a small blob that has no hash; None if there is none."""
        with suppress(BlobMissing), _told():
            return bytes(obstore.get(self._store, key).bytes())
        return None

    def delete(self, key: str) -> None:
        """Remove a blob; one that is gone already is no error."""
        with suppress(BlobMissing), _told():
            obstore.delete(self._store, key)

    def unfinished(self) -> Iterator[Blob]:
        """Files of a folder that a writer began and, if they are old, died over; not in ``list``.

        S3 keeps parts of unfinished uploads where only a lifecycle rule of the bucket ends them.
        """
        if self._folder is None:
            return
        for path in self._folder.rglob("*#*"):
            with suppress(FileNotFoundError):
                found = path.stat()
                yield Blob(str(path.relative_to(self._folder)), found.st_size, found.st_mtime)

    def delete_unfinished(self, key: str) -> None:
        """Remove what ``unfinished`` has named."""
        assert self._folder is not None  # noqa: S101
        (self._folder / key).unlink(missing_ok=True)

    def sign_put(self, key: str, seconds: float) -> str:
        """A URL that takes a blob by PUT, without any other key, for so long."""
        assert self._signer is not None  # noqa: S101 - ask can_sign first
        with _told():
            return obstore.sign(self._signer, "PUT", key, timedelta(seconds=seconds))

    def ping(self) -> None:
        """Raise if the store does not answer or has no room."""
        with _told():
            if self._folder is not None and shutil.disk_usage(self._folder).free < LEAST_FREE:
                raise NoSpace("no_space", "the disk of the blob store is full")
            obstore.list(self._pinged, "none/").collect()

    @contextmanager
    def _noting_damage(self, key: str) -> Iterator[None]:
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
            "allow_http": True,  # whoever names an endpoint without TLS means it
        },
        **config,  # type: ignore[arg-type]
    )


def _corrupt() -> BlobCorrupt:
    return BlobCorrupt("blob_corrupt", "the stored bytes are not those that were written")


@contextmanager
def _told() -> Iterator[None]:
    """Turn what the store raises into our own errors, without its paths and URLs."""
    try:
        yield
    except FileNotFoundError as error:
        if "NoSuchBucket" in str(error):
            logger.warning("the blob store has no such bucket")
            raise Unavailable("blobs_unavailable", "the blob store has no such bucket") from error
        raise BlobMissing("blob_missing", "the stored bytes are gone") from error
    except (BaseError, OSError) as error:
        told = str(error)
        is_full = any(f"(os error {number})" in told for number in FULL)
        if is_full or getattr(error, "errno", None) in FULL:
            raise NoSpace("no_space", "the blob store has no room: try later") from error
        logger.warning("the blob store does not serve: %s", told.partition("\n")[0])
        raise Unavailable("blobs_unavailable", "the blob store does not answer") from error


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def see_to_disk(*paths: Path) -> None:
    """Return when files, or the names in folders, outlast a power failure."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


_log = structlog.get_logger("calibrd.blobs")


def log_damage(key: str, error: Damaged) -> None:
    """Name a damaged blob."""
    _log.error("blob_damaged", code=error.code, blob=kind_of(key), key=key)


NAMED_WITHIN = HOUR

# unlike the monotonic one it goes on while the machine sleeps
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Unnamed:
    """Blobs that no row names yet; made before they are written.

    A blob that stays so for long is an orphan and is swept away. A writer that was paused in
    between must not name it any more, so it asks ``check`` in the transaction that writes the row.
    """

    def __init__(self, blobs: Blobs, within: float = NAMED_WITHIN) -> None:
        self._blobs = blobs
        self._keys: list[str] = []
        self._deadline = time.clock_gettime(_CLOCK) + within

    def put(self, key: str, content: bytes | Path | IO[bytes]) -> None:
        """Write a blob."""
        self._keys.append(key)
        self._blobs.put(key, content)

    def delete(self) -> None:
        """Remove them: no row will name them. Those that cannot be removed now are swept later."""
        for key in self._keys:
            try:
                self._blobs.delete(key)
            except ServiceError as error:
                logger.warning("blob %s is left to the sweep: %s", key, error.code)

    def check(self) -> None:
        """Raise if it is too late to name them."""
        if time.clock_gettime(_CLOCK) > self._deadline:
            raise Unavailable(
                "paused_too_long",
                "the service was paused after it had stored the bytes, and they may be gone: "
                "try again",
            )
