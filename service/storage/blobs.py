"""Blobs by key: a local folder or an S3 bucket, chosen by URL."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore, ObjectStore, from_url

from service.errors import BlobCorrupt, BlobMissing, Unavailable

CHUNK = 4 << 20
LEAST_FREE = 16 << 20


class Blobs:
    """Bytes under keys such as ``ws_1/maps/<sha256>``; a key is written whole or not at all."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._folder: Path | None = None
        if parts.scheme == "file":
            self._folder = Path(unquote(parts.path))
            self._folder.mkdir(parents=True, exist_ok=True)
            self._store: ObjectStore = LocalStore(self._folder)
        else:
            self._store = from_url(url)

    def put(self, key: str, content: bytes | Path) -> None:
        """Write a blob."""
        with _told():
            obstore.put(self._store, key, content, chunk_size=CHUNK, max_concurrency=2)

    def get(self, key: str, sha256: str) -> bytes:
        """The bytes of a blob, which must have this SHA-256."""
        with _told():
            content = bytes(obstore.get(self._store, key).bytes())
        if hashlib.sha256(content).hexdigest() != sha256:
            raise BlobCorrupt("blob_corrupt", "the stored bytes are not those that were written")
        return content

    def chunks(self, key: str) -> Iterator[bytes]:
        """The bytes of a blob, piece by piece, unchecked."""
        with _told():
            for piece in obstore.get(self._store, key).stream(min_chunk_size=CHUNK):
                yield bytes(piece)

    @contextmanager
    def file(self, key: str, sha256: str) -> Iterator[Path]:
        """A blob as a file to read, which must have this SHA-256."""
        if self._folder is not None:
            path = self._folder / key
            if not path.exists():
                raise BlobMissing("blob_missing", "the stored bytes are gone")
            _check(path, sha256)
            yield path
            return
        with tempfile.NamedTemporaryFile(prefix="calibrd-") as target:
            for piece in self.chunks(key):
                target.write(piece)
            target.flush()
            _check(Path(target.name), sha256)
            yield Path(target.name)

    def delete(self, key: str) -> None:
        """Remove a blob; one that is gone already is no error."""
        with suppress(BlobMissing), _told():
            obstore.delete(self._store, key)

    def ping(self) -> None:
        """Raise if the store does not answer or has no room."""
        with _told():
            if self._folder is not None and shutil.disk_usage(self._folder).free < LEAST_FREE:
                raise Unavailable("no_space", "the disk of the blob store is full")
            obstore.list(self._store, "none/").collect()


def _check(path: Path, sha256: str) -> None:
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
            raise BlobCorrupt("blob_corrupt", "the stored bytes are not those that were written")


@contextmanager
def _told() -> Iterator[None]:
    """Turn what the store raises into our own errors, without its paths and URLs."""
    try:
        yield
    except FileNotFoundError as error:
        raise BlobMissing("blob_missing", "the stored bytes are gone") from error
    except (BaseError, OSError) as error:
        raise Unavailable("blobs_unavailable", "the blob store does not answer") from error
