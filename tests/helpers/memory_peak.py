"""The peak memory of a call."""

from __future__ import annotations

import tracemalloc
import warnings
from typing import Any

from calibrators.errors import CalibrationWarning


def peak_of(work: Any) -> int:
    """Return the peak number of bytes that numpy and Python allocate during a call."""
    tracemalloc.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CalibrationWarning)
            work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
