"""How the rows of a validation pass spread over confidence: one by one, or counted in cells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators.errors import DataError
from calibrators.metrics import BinTable

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Keys = NDArray[np.uint32]

CELLS = 32768
# 2304 cells a unit between confidences of 0.018 and 0.9997, 128 outside. What cells lose is which
# of the rows in one on the edge of two bins were right, and that matters little where nearly all
# are. Below -12 a confidence needs 160,000 classes, from 37 on it is 1 in float64.
ODDS = (-12.0, -4.0, 8.0, 40.0)
AT_CELL = (0, 1024, 28672, CELLS)
# log-odds in steps of 2^-20 from -12 to 40; rows that are nearer to each other are tied
STEP = 2.0**-20
PLACES = int((ODDS[-1] - ODDS[0]) / STEP)
COUNT, CORRECT = range(2)


@dataclass(frozen=True, eq=False)
class TiedRows:
    """Rows that are not told apart, in rising order: where they lie, how many, how many right."""

    lower: Floats
    upper: Floats
    confidence: Floats
    count: Floats
    correct: Floats

    def equal_mass(self, bins: int) -> BinTable:
        """Return bins that end after floor(i n / M) rows; a tie on an edge is shared in proportion.

        The outermost edges are 0 and 1; an edge inside a tie lies as far in it as its share.
        """
        rows = int(self.count.sum())
        cuts = np.arange(bins + 1) * rows // bins
        below = _sums_below(self.count)
        tie = np.minimum(np.searchsorted(below, cuts, side="right"), len(self.count)) - 1
        share = (cuts - below[tie]) / self.count[tie]

        def inside(amounts: Floats) -> Floats:
            return np.diff(_sums_below(amounts)[tie] + share * amounts[tie])

        odds = self.lower[tie] + share * (self.upper - self.lower)[tie]
        edges = np.concatenate([[0.0], _confidence(odds[1:-1]), [1.0]])
        count = np.diff(cuts).astype(np.float64)
        sure, right = inside(self.count * self.confidence), inside(self.correct)
        return BinTable(count, sure, right, edges[:-1], edges[1:], count)


@dataclass(frozen=True, eq=False)
class ExactRows:
    """Every row by itself: a key of its log-odds, twice the place on the scale, plus 1 if right."""

    keys: Keys

    def __post_init__(self) -> None:
        keys = self.keys
        if keys.ndim != 1 or keys.dtype != np.uint32 or (keys[1:] < keys[:-1]).any():
            raise DataError("bad_statistics", "rows are rising keys of uint32")
        if keys.size and keys[-1] >= 2 * PLACES:
            raise DataError("bad_statistics", "a row of these statistics lies outside the scale")
        keys.flags.writeable = False

    @classmethod
    def of(cls, odds: Floats, correct: NDArray[np.bool_]) -> ExactRows:
        """Take log-odds, infinite ones too, and whether the rows were right."""
        place = np.clip((odds - ODDS[0]) / STEP, 0, PLACES - 1).astype(np.uint32)
        return cls(np.sort(2 * place + correct))

    @property
    def count(self) -> int:
        """Return how many rows there are."""
        return int(self.keys.size)

    @property
    def hits(self) -> int:
        """Return how many of them were right."""
        return int(np.count_nonzero(self.keys & 1))

    def raw(self) -> NDArray[Any]:
        """Return what is written: the steps from key to key."""
        return np.diff(self.keys, prepend=np.uint32(0))

    def tied_rows(self) -> TiedRows:
        """Return rows with the same place on the scale."""
        place, first, count = np.unique(self.keys >> 1, return_index=True, return_counts=True)
        right = np.add.reduceat((self.keys & 1).astype(np.float64), first)
        lower = ODDS[0] + place * STEP
        confidence = _confidence(lower + STEP / 2)
        return TiedRows(lower, lower + STEP, confidence, count.astype(np.float64), right)

    def counted(self) -> CountedRows:
        """Return the same, counted in cells."""
        cell = cell_of(ODDS[0] + ((self.keys >> 1) + 0.5) * STEP)
        table = [np.bincount(part, minlength=CELLS) for part in (cell, cell[(self.keys & 1) == 1])]
        return CountedRows(np.array(table, dtype=np.int64))


@dataclass(frozen=True, eq=False)
class CountedRows:
    """Rows and hits (2, 32768) in cells of log-odds."""

    table: Integers

    def __post_init__(self) -> None:
        table = self.table
        if table.shape != (2, CELLS) or table.dtype != np.int64:
            raise DataError("bad_statistics", f"cells are (2, {CELLS}) numbers of int64")
        if (table < 0).any() or (table[CORRECT] > table[COUNT]).any():
            raise DataError("bad_statistics", "these statistics contradict themselves")
        table.flags.writeable = False

    @property
    def count(self) -> int:
        """Return how many rows there are."""
        return sum(self.table[COUNT].tolist())

    @property
    def hits(self) -> int:
        """Return how many of them were right."""
        return sum(self.table[CORRECT].tolist())

    def raw(self) -> NDArray[Any]:
        """Return what is written: the numbers themselves."""
        return self.table.ravel()

    def tied_rows(self) -> TiedRows:
        """Return the cells that hold rows."""
        used = np.flatnonzero(self.table[COUNT])
        lower, upper = odds_at(used), odds_at(used + 1)
        count, right = self.table[:, used].astype(np.float64)
        return TiedRows(lower, upper, _confidence(odds_at(used + 0.5)), count, right)

    def counted(self) -> CountedRows:
        """Return itself."""
        return self


def cell_of(odds: NDArray[Any]) -> NDArray[np.intp]:
    """Return the cell of each log-odds; the outermost cells take what lies outside.

    >>> cell_of(np.array([-np.inf, -4.0, 0.0, 39.999, np.inf])).tolist()
    [0, 1024, 10240, 32767, 32767]
    """
    place: Floats = np.interp(odds, ODDS, AT_CELL)
    return np.minimum(place, CELLS - 1).astype(np.intp)


def odds_at(place: NDArray[Any]) -> Floats:
    """Return the log-odds at a place on the scale of cells, 0 to 32768.

    >>> odds_at(np.array([0, 10240.0, 32768])).tolist()
    [-12.0, 0.0, 40.0]
    """
    odds: Floats = np.interp(place, AT_CELL, ODDS)
    return odds


def _confidence(odds: Floats) -> Floats:
    sure: Floats = 1 / (1 + np.exp(-odds))
    return sure


def _sums_below(amounts: Floats) -> Floats:
    """Return the sum of all amounts before each place: one more than there are amounts."""
    return np.concatenate([[0.0], np.cumsum(amounts)])
