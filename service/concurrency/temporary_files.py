"""Temporary files with a lock, so that those of killed processes can be deleted."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path
from typing import IO

PREFIX = "calibrd-"


def downloads() -> Path:
    """Return this user's folder for blobs that a process has copied from a bucket."""
    folder = Path(tempfile.gettempdir()) / f"calibrd-downloads-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user: delete it, or set TMPDIR")
    return folder


def new_file(folder: Path) -> IO[bytes]:
    """Create a file in a folder and lock it until it is closed or the process ends."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    while True:
        file = tempfile.NamedTemporaryFile(dir=folder, prefix=PREFIX, delete=False)  # noqa: SIM115
        fcntl.flock(file, fcntl.LOCK_EX)
        if Path(file.name).exists():
            return file
        file.close()  # another process considered it abandoned, and deleted it before the lock


def remove_left_behind(folder: Path) -> int:
    """Delete the files left behind by processes that have ended; return their number.

    A live process holds a lock on each of its files, so these are kept.
    """
    removed = 0
    for path in folder.glob(f"{PREFIX}*"):
        try:
            with path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
        except (BlockingIOError, FileNotFoundError):
            continue
        removed += 1
    return removed
