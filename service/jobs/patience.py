"""Trying again while the database is away, slow or full."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from service.errors import Unavailable
from service.storage.database import AWAY

Result = TypeVar("Result")

LONGEST_PAUSE = 2.0
PASSING = (*AWAY, Unavailable)  # troubles of a database that are none of the one who meets them

logger = logging.getLogger(__name__)


def patiently(action: Callable[[], Result], seconds: float) -> Result:
    """The result of ``action``, which is tried again while the database has troubles."""
    deadline = time.monotonic() + seconds
    pause = 0.1
    while True:
        try:
            return action()
        except PASSING as error:
            if time.monotonic() + pause > deadline:
                raise
            logger.warning("the database does not serve (%s): trying again", type(error).__name__)
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
