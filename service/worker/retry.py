"""Trying again while the database or the blob store is away, slow or full."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TypeVar

from service.errors import Damaged, Unavailable
from service.storage.blobs import Blobs
from service.storage.database import AWAY

Result = TypeVar("Result")

LONGEST_PAUSE = 2.0
PASSING = (*AWAY, Unavailable)  # troubles of the stores, not of the one who meets them

logger = logging.getLogger(__name__)


def patiently(action: Callable[[], Result], seconds: float) -> Result:
    """The result of ``action``, which is tried again while it meets passing troubles."""
    deadline = time.monotonic() + seconds
    pause = 0.1
    while True:
        try:
            return action()
        except PASSING as error:
            if time.monotonic() + pause > deadline:
                raise
            logger.warning("a store does not serve (%s): trying again", _name(error))
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)


def _name(error: Exception) -> str:
    return error.code if isinstance(error, Unavailable) else type(error).__name__


class PatientBlobs(Blobs):
    """For fits: an hour of work is not thrown away for a minute's outage of the store."""

    def __init__(
        self, url: str, *, seconds: float, on_damage: Callable[[str, Damaged], None] | None = None
    ) -> None:
        super().__init__(url, on_damage=on_damage)
        self._seconds = seconds

    def put(self, key: str, content: bytes | Path | IO[bytes]) -> None:
        """Write a blob; a stream, which cannot be read twice, is tried once."""
        put = super().put
        again = self._seconds if isinstance(content, bytes | Path) else 0.0
        patiently(lambda: put(key, content), again)

    @contextmanager
    def file(self, key: str, sha256: str) -> Iterator[Path]:
        """A blob as a file to read, which must have this SHA-256."""
        file = super().file
        with ExitStack() as opened:
            yield patiently(lambda: opened.enter_context(file(key, sha256)), self._seconds)
