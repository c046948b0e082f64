"""The SDK's disk cache of loaded maps and interrupted uploads, one per service and key."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import platformdirs

from calibrd.transport.connection import Connection

_log = logging.getLogger("calibrd")


@dataclass(frozen=True)
class CacheEntry:
    """A small file that is written atomically."""

    path: Path

    def read(self) -> str | None:
        """Return the text of the file, or None if it cannot be read."""
        try:
            return self.path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return None

    def write(self, text: str) -> None:
        """Replace the file; failures are only logged, because the cache is optional."""
        try:
            write_atomically(self.path, text.encode())
        except OSError as error:
            _log.info("cannot cache %s: %s", self.path, error)

    def forget(self) -> None:
        """Remove the file."""
        with contextlib.suppress(OSError):
            self.path.unlink()


class Cache:
    """The cache folder of one service and one key; keys do not share cached data."""

    def __init__(self, connection: Connection) -> None:
        identity = f"{connection.url}\n{connection.api_key or ''}"
        name = hashlib.sha256(identity.encode()).hexdigest()[:32]
        self.folder = cache_folder() / name

    def upload(self, name: str) -> CacheEntry:
        """Return the entry that stores the id of an uncommitted upload."""
        return CacheEntry(self.folder / "uploads" / name)


def cache_folder() -> Path:
    """Return the folder CALIBRD_CACHE_DIR, by default the system's cache folder."""
    path = os.environ.get("CALIBRD_CACHE_DIR")
    return Path(path) if path else platformdirs.user_cache_path("calibrd", ensure_exists=False)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a private file atomically: readers never see it incomplete."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def locked(path: Path) -> IO[bytes] | None:
    """Lock a file and return the open file; return None if a live process holds the lock.

    Closing the file releases the lock. Raise FileNotFoundError if the file does not exist.
    """
    file = path.open("rb+")
    try:
        _lock(file)
    except OSError:
        file.close()
        return None
    try:
        is_there = os.path.samestat(os.fstat(file.fileno()), path.stat())
    except OSError:
        file.close()
        raise
    if is_there:
        return file
    file.close()
    return None


if sys.platform == "win32":
    import msvcrt

    def _lock(file: IO[bytes]) -> None:
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _lock(file: IO[bytes]) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
