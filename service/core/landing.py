"""Bytes that arrive: on disk, hashed, and gone at the end."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from service.errors import NoSpace

HEAD = 512


class Landing:
    """A file that takes bytes as they arrive, and hashes them."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = tempfile.NamedTemporaryFile(dir=folder, prefix="upload-")  # noqa: SIM115
        self._digest = hashlib.sha256()
        self.path = Path(self._file.name)
        self.bytes = 0

    def write(self, piece: bytes) -> None:
        """Take some more bytes."""
        with _room():
            self._file.write(piece)
        self._digest.update(piece)
        self.bytes += len(piece)

    def close(self) -> None:
        """Remove the file."""
        self._file.close()

    @property
    def sha256(self) -> str:
        """The hash of what has arrived."""
        return self._digest.hexdigest()

    def flush(self) -> None:
        """See that all bytes are on disk."""
        with _room():
            self._file.flush()

    def head(self) -> bytes:
        """The first bytes."""
        self.flush()
        with self.path.open("rb") as file:
            return file.read(HEAD)


@contextmanager
def _room() -> Iterator[None]:
    """Say it if the disk is full."""
    try:
        yield
    except OSError as error:
        raise NoSpace("no_space", "the service has no room for uploads: try later") from error


@contextmanager
def landing(folder: Path) -> Iterator[Landing]:
    """A landing that is removed at the end."""
    made = Landing(folder)
    try:
        yield made
    finally:
        made.close()
