"""The memory that work takes."""

from __future__ import annotations

import tracemalloc
import warnings
from typing import Any

from calibrators.errors import CalibrationWarning


def peak_of(work: Any) -> int:
    """Bytes that numpy and Python hold at the most while it works, beside those before."""
    tracemalloc.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CalibrationWarning)
            work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
