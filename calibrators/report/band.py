"""The credible band of a map on its judged rows, for reports and charts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from calibrators.base import CalibrationMap
from calibrators.data import CalibrationSet
from calibrators.numerics.parallel import Floats
from calibrators.report.json_form import rounded
from calibrators.report.measurement import thirds

ALL = "all"
CELLS = 20
LEVEL = 0.9
MIN_ROWS = 5


@dataclass(frozen=True)
class BandCell:
    """Rows of similar confidence: their mean confidence and the mean bounds of the 90 % band.

    ``margin`` is "all", or the name of the margin third that the rows belong to.
    """

    margin: str
    rows: int
    confidence: float
    low: float
    high: float


def band_of(fitted: CalibrationMap, data: CalibrationSet, margin: Floats) -> tuple[BandCell, ...]:
    """Return the band of a map on a set with logit margins (n,); empty if the map has no band.

    There are 20 equal-width bins of confidence; bins with fewer than 5 rows are left out.
    """
    if not fitted.has_interval:
        return ()
    low, high = fitted.interval_of_set(data, LEVEL)
    confidence = fitted.apply_set(data).max(axis=1).astype(np.float64)
    parts = [(ALL, np.ones(data.n, dtype=bool)), *thirds(margin)]
    return tuple(
        cell
        for name, rows in parts
        for cell in _cells(name, confidence[rows], low[rows], high[rows])
    )


def _cells(name: str, confidence: Floats, low: Floats, high: Floats) -> list[BandCell]:
    place = np.minimum((confidence * CELLS).astype(np.intp), CELLS - 1)
    rows = np.bincount(place, minlength=CELLS)
    sums = [np.bincount(place, values, CELLS) for values in (confidence, low, high)]
    return [
        BandCell(name, int(rows[at]), *(rounded(float(one[at] / rows[at])) for one in sums))
        for at in np.flatnonzero(rows >= MIN_ROWS)
    ]
