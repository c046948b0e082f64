"""Trying again while the database is away."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from service.storage.database import AWAY

Result = TypeVar("Result")

LONGEST_PAUSE = 2.0

logger = logging.getLogger(__name__)


def patiently(action: Callable[[], Result], seconds: float) -> Result:
    """The result of ``action``, which is tried again while the database is away."""
    deadline = time.monotonic() + seconds
    pause = 0.1
    while True:
        try:
            return action()
        except AWAY as error:
            if time.monotonic() + pause > deadline:
                raise
            logger.warning("the database does not answer (%s): trying again", type(error).__name__)
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
