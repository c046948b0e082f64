"""The cells of log-odds into which many rows are counted: narrow where much is undecided."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

CELLS = 32768

# 2304 cells a unit between confidences of 0.018 and 0.9997, 128 outside. What cells lose is which
# of the rows in one on the edge of two bins were right, and that matters little where nearly all
# are. Below -12 a confidence needs 160,000 classes, from 37 on it is 1 in float64.
ODDS = (-12.0, -4.0, 8.0, 40.0)
AT_CELL = (0, 1024, 28672, CELLS)


def cell_of(odds: NDArray[Any]) -> NDArray[np.intp]:
    """The cell of each log-odds; the outermost cells take what lies outside.

    >>> cell_of(np.array([-np.inf, -4.0, 0.0, 39.999, np.inf])).tolist()
    [0, 1024, 10240, 32767, 32767]
    """
    place: Floats = np.interp(odds, ODDS, AT_CELL)
    return np.minimum(place, CELLS - 1).astype(np.intp)


def odds_at(place: NDArray[Any]) -> Floats:
    """The log-odds at a place on the scale of cells, 0 to 32768.

    >>> odds_at(np.array([0, 10240.0, 32768])).tolist()
    [-12.0, 0.0, 40.0]
    """
    odds: Floats = np.interp(place, AT_CELL, ODDS)
    return odds
