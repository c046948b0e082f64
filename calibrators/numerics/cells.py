"""Merge rows into cells, so that the cost of a step does not depend on the number of rows.

If the temperature is a function of one number per row, s, its effect on a row is determined by s,
the row's confidence curve and its correctness. Rows that agree in all three are equivalent to a
single weighted row. A cell holds rows with similar s and similar confidence at T = 1 that are all
correct or all wrong. It is represented by the means of s, the margin and the curve.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

from calibrators.data import CalibrationSet
from calibrators.numerics.confidence_curves import Samples, TabulatedCurve, to_device
from calibrators.numerics.curve_tables import CurveTable, Nodes
from calibrators.numerics.parallel import Floats
from calibrators.numerics.softmax import mean_gaps

MAX_CELLS = 2048
FINEST = 0.02
NODES = Nodes(per_octave=2, up=3)
CELL_NUMBERS = 30  # array elements in memory per row while rows are merged
COARSER = 1.1
COARSEST = 100  # a cell of 1.1^100 * 0.02 holds all rows
ODDS_FOR_SIGNAL = 3.0  # aspect ratio of a cell: log odds per unit of asinh(s)
LARGEST_LOG_ODDS = 20.0


def observe_cells(
    data: CalibrationSet,
    scale: float,
    table: CurveTable,
    signal: Floats,
    device: str | None = None,
    *,
    with_mean_gaps: bool = False,
) -> tuple[Samples, Floats]:
    """Merge the rows into at most ``MAX_CELLS`` cells; return the cells and their mean signals.

    ``signal`` (n,) is standardised. Logits are multiplied by ``scale``, as in ``table``.
    """
    cell = cells(signal, table.log_odds, table.correct)
    count = np.bincount(cell)

    def mean(values: Floats) -> Floats:
        return np.bincount(cell, values) / count

    merged = CurveTable(
        np.stack([mean(values) for values in table.values]),
        mean(table.margin),
        mean(table.correct),
        table.nodes,
    )
    gaps = mean(mean_gaps(data) * scale) if with_mean_gaps else None
    samples = Samples(
        curve=TabulatedCurve.of(merged, device),
        label_gap=to_device(mean(data.label_gaps * scale), device),
        correct=to_device(merged.correct, device),
        weight=to_device(count.astype(np.float64), device),
        n=data.n,
        mean_gap=None if gaps is None else to_device(gaps, device),
    )
    return samples, mean(signal)


def cells(signal: Floats, log_odds: Floats, correct: Floats) -> NDArray[np.intp]:
    """Return the cell of every row; cells are numbered from 0 without gaps.

    Cells are equal rectangles in asinh(s), which compresses the tails, and in the log odds of the
    prediction at T = 1. They are as small as ``MAX_CELLS`` allows. Log odds are used instead of the
    confidence because a temperature far from 1 separates rows that are all confident at T = 1.
    """
    along = np.arcsinh(signal)
    along -= along.min()
    limited = np.clip(log_odds, -LARGEST_LOG_ODDS, LARGEST_LOG_ODDS)
    across = (limited + LARGEST_LOG_ODDS) / ODDS_FOR_SIGNAL

    def keys(power: int) -> NDArray[np.intp]:
        width = FINEST * COARSER**power
        rows, columns = ((one / width).astype(np.intp) for one in (along, across))
        return np.asarray(2 * (rows * (columns.max() + 1) + columns) + (correct > 0))

    def fits(power: int) -> bool:
        return int(np.count_nonzero(np.bincount(keys(power)))) <= MAX_CELLS

    key = keys(bisect_left(range(COARSEST), True, key=fits))
    return np.asarray((np.cumsum(np.bincount(key) > 0) - 1)[key])
