"""The cells of log-odds into which bin statistics count rows: narrow where much is undecided."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

CELLS = 32768

# 2304 cells a unit between confidences of 0.018 and 0.9997, 128 outside. What the statistics lose
# is which of the rows in a cell on the edge of two bins were right, and that matters little where
# nearly all are. Below -12 a confidence needs 160,000 classes, from 37 on it is 1 in float64.
ODDS = (-12.0, -4.0, 8.0, 40.0)
AT_CELL = (0, 1024, 28672, CELLS)


def cell_of(odds: Floats) -> NDArray[np.intp]:
    """The cell of each log-odds; the outermost cells take what lies outside.

    >>> cell_of(np.array([-np.inf, -4.0, 0.0, 39.999, np.inf])).tolist()
    [0, 1024, 10240, 32767, 32767]
    """
    return np.minimum(np.interp(odds, ODDS, AT_CELL), CELLS - 1).astype(np.intp)


def confidence_at(place: NDArray[np.floating[Any]]) -> Floats:
    """The confidence at a place on the scale of cells, 0 to 32768."""
    sure: Floats = 1 / (1 + np.exp(-np.interp(place, AT_CELL, ODDS)))
    return sure


@cache
def cell_confidences() -> Floats:
    """The confidence in the middle of each cell."""
    middle = confidence_at(np.arange(CELLS) + 0.5)
    middle.flags.writeable = False
    return middle
