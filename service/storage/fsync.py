"""Disks: when they are full, and when what was written is on them for good."""

from __future__ import annotations

import errno
import os
from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def see_to_disk(*paths: Path) -> None:
    """Return when files, or the names in folders, outlast a power failure."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
