"""Blob first, row last: how long a blob may wait for the row that names it."""

from __future__ import annotations

import time

from service.errors import Unavailable
from service.settings import HOUR

NAMED_WITHIN = HOUR

# unlike the monotonic one it goes on while the machine sleeps
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Unnamed:
    """Blobs that no row names yet; made before they are written.

    A blob that stays so for long is an orphan and is swept away. A writer that was paused in
    between must not name it any more, so it asks ``check`` in the transaction that writes the row.
    """

    def __init__(self, within: float = NAMED_WITHIN) -> None:
        self._deadline = time.clock_gettime(_CLOCK) + within

    def check(self) -> None:
        """Raise if it is too late to name them."""
        if time.clock_gettime(_CLOCK) > self._deadline:
            raise Unavailable(
                "paused_too_long",
                "the service was paused after it had stored the bytes, and they may be gone: "
                "try again",
            )
