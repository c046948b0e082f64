"""Bin statistics of a validation pass: small, and mergeable exactly in any order."""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrators.adafocal.reduce import Bools, Floats, row_terms
from calibrators.arrays import as_hits, reject_rows
from calibrators.errors import DataError
from calibrators.metrics import BinTable
from calibrators.metrics.bins import (
    CELLS,
    ODDS,
    TiedRows,
    bin_index,
    cell_of,
    odds_at,
    sigmoid,
    width_edges,
)

Integers = NDArray[np.int64]
Keys = NDArray[np.uint32]

# log odds in steps of 2^-20 from -12 to 40; rows within the same step are tied
STEP = 2.0**-20
PLACES = int((ODDS[-1] - ODDS[0]) / STEP)
EXACT_ROWS = 1 << 17
WIDTHS = 15
SUMS = 3 * WIDTHS + 2
CONFIDENCE_UNIT = 2.0**-30
NLL_UNIT = 2.0**-24
MAX_ROWS = 2**32
MAX_NLL = 2.0**14
MAX_NUMBER = 2**63 - 1

COUNT, CORRECT, CONFIDENCE = range(3)

# format: the bytes of the numbers, transposed into planes and then deflated
MAGIC = b"CBS1"
ROWS, CELLED = b"R", b"C"
HEAD = len(ROWS) + 8 * SUMS
LONGEST = HEAD + max(4 * EXACT_ROWS, 16 * CELLS)


@dataclass(frozen=True, eq=False)
class ExactRows:
    """Individual rows as keys: twice the position on the scale of log odds, plus 1 for a hit."""

    keys: Keys

    def __post_init__(self) -> None:
        keys = self.keys
        if keys.ndim != 1 or keys.dtype != np.uint32 or (keys[1:] < keys[:-1]).any():
            raise DataError("bad_statistics", "rows must be ascending uint32 keys")
        if keys.size and keys[-1] >= 2 * PLACES:
            raise DataError("bad_statistics", "rows lie outside the scale of log odds")
        keys.flags.writeable = False

    @classmethod
    def of(cls, odds: Floats, correct: NDArray[np.bool_]) -> ExactRows:
        """Build rows from log odds, which may be infinite, and the correctness of each row."""
        place = np.clip((odds - ODDS[0]) / STEP, 0, PLACES - 1).astype(np.uint32)
        return cls(np.sort(2 * place + correct))

    @property
    def count(self) -> int:
        """Number of rows."""
        return int(self.keys.size)

    @property
    def hits(self) -> int:
        """Number of correct rows."""
        return int(np.count_nonzero(self.keys & 1))

    def raw(self) -> NDArray[Any]:
        """Return the numbers to write: the differences between successive keys."""
        return np.diff(self.keys, prepend=np.uint32(0))

    def tied_rows(self) -> TiedRows:
        """Return the rows grouped by position on the scale."""
        place, first, count = np.unique(self.keys >> 1, return_index=True, return_counts=True)
        right = np.add.reduceat((self.keys & 1).astype(np.float64), first)
        lower = ODDS[0] + place * STEP
        confidence = sigmoid(lower + STEP / 2)
        return TiedRows(lower, lower + STEP, confidence, count.astype(np.float64), right)

    def counted(self) -> CountedRows:
        """Return the counts of these rows in cells."""
        cell = cell_of(ODDS[0] + ((self.keys >> 1) + 0.5) * STEP)
        table = [np.bincount(part, minlength=CELLS) for part in (cell, cell[(self.keys & 1) == 1])]
        return CountedRows(np.array(table, dtype=np.int64))


@dataclass(frozen=True, eq=False)
class CountedRows:
    """Counts of rows and hits (2, 32768) per cell of log odds."""

    table: Integers

    def __post_init__(self) -> None:
        table = self.table
        if table.shape != (2, CELLS) or table.dtype != np.int64:
            raise DataError("bad_statistics", f"cells must be int64 numbers of shape (2, {CELLS})")
        if (table < 0).any() or (table[CORRECT] > table[COUNT]).any():
            raise DataError(
                "bad_statistics", "cells are inconsistent: negative counts, or more hits than rows"
            )
        table.flags.writeable = False

    @property
    def count(self) -> int:
        """Number of rows."""
        return sum(self.table[COUNT].tolist())

    @property
    def hits(self) -> int:
        """Number of correct rows."""
        return sum(self.table[CORRECT].tolist())

    def raw(self) -> NDArray[Any]:
        """Return the numbers to write: the counts themselves."""
        return self.table.ravel()

    def tied_rows(self) -> TiedRows:
        """Return the cells that contain rows, each as a group of tied rows."""
        used = np.flatnonzero(self.table[COUNT])
        lower, upper = odds_at(used), odds_at(used + 1)
        count, right = self.table[:, used].astype(np.float64)
        return TiedRows(lower, upper, sigmoid(odds_at(used + 0.5)), count, right)

    def counted(self) -> CountedRows:
        """Return this object, whose rows are already counted."""
        return self


Spread = ExactRows | CountedRows


@dataclass(frozen=True)
class Summary:
    """Metrics of a validation pass; ``nll`` is None if the NLL of some rows is unknown."""

    rows: int
    accuracy: float
    confidence: float
    ece: float
    ada_ece: float
    nll: float | None


@dataclass(frozen=True, eq=False)
class BinStatistics:
    """Confidence and accuracy of a validation pass in equal-mass and equal-width bins, and NLL.

    ``spread`` is the distribution of the rows over the log odds ``log(c / (1 - c))``, where c is
    the confidence, the probability of the predicted class; c itself lacks resolution near 1. Up to
    131,072 rows are stored individually, to a precision of 2^-20, so that equal-mass bins are
    exact. Beyond that, rows are counted in 32,768 cells, whose mean confidences are accurate to
    7e-5. ``sums`` holds the sums of the 15 equal-width bins of the ECE (rows, hits, and confidence
    in units of 2^-30), the number of rows whose NLL is known, and the sum of their NLLs (each at
    most 2^14) in units of 2^-24. All numbers are integers, so statistics can be merged in any
    order, on any number of machines, and the result is the same to the last bit.

    >>> first = BinStatistics.from_confidences([0.9, 0.6], [True, False])
    >>> second = BinStatistics.from_logits([[2.0, 0.0, -1.0]], [0])
    >>> merged = first + second
    >>> merged.rows, merged == second + first
    (3, True)
    >>> BinStatistics.from_bytes(merged.to_bytes()) == merged
    True
    """

    spread: Spread
    sums: Integers

    def __post_init__(self) -> None:
        if self.sums.shape != (SUMS,) or self.sums.dtype != np.int64:
            raise DataError("bad_statistics", f"sums must be {SUMS} int64 numbers")
        self.sums.flags.writeable = False
        rows = self.rows
        sound = (
            (self.sums >= 0).all()
            and isinstance(self.spread, ExactRows) == (rows <= EXACT_ROWS)
            and rows <= MAX_ROWS
            and _is_sound(self._widths(), rows, self.spread.hits)
            and self.sums[-2] <= rows
            and self.nll_sum * NLL_UNIT <= self.sums[-2] * MAX_NLL
        )
        if not sound:
            raise DataError(
                "bad_statistics", "the sums and rows of the statistics are inconsistent"
            )

    @classmethod
    def empty(cls) -> BinStatistics:
        """Return the statistics of no rows, the neutral element of addition."""
        return cls(ExactRows(np.zeros(0, dtype=np.uint32)), np.zeros(SUMS, dtype=np.int64))

    @classmethod
    def from_confidences(cls, confidence: ArrayLike, correct: ArrayLike) -> BinStatistics:
        """Build statistics from confidences and correctness flags, without NLL."""
        scores = np.asarray(confidence, dtype=np.float64)
        hits = as_hits(correct, "confidence", scores)
        outside = ~((scores >= 0) & (scores <= 1))
        reject_rows(outside, "not_a_probability", "confidence must lie in [0, 1]")
        with np.errstate(divide="ignore"):
            odds = np.log(scores) - np.log1p(-scores)
        return cls._count(odds, scores, hits, None)

    @classmethod
    def from_logits(cls, logits: ArrayLike, labels: ArrayLike) -> BinStatistics:
        """Build statistics from logits (n, k), or (n,) of class 1, and labels (n,)."""
        return cls.from_log_odds(*row_terms(logits, labels))

    @classmethod
    def from_log_odds(
        cls, odds: ArrayLike, correct: ArrayLike, nll: ArrayLike | None = None
    ) -> BinStatistics:
        """Build statistics from the fields of ``RowTerms``, which may come from a GPU."""
        log_odds = np.asarray(odds, dtype=np.float64)
        hits = as_hits(correct, "odds", log_odds)
        losses = None if nll is None else np.asarray(nll, dtype=np.float64)
        if losses is not None and losses.shape != log_odds.shape:
            raise DataError(
                "bad_shape", f"nll must have the shape of odds {log_odds.shape}, got {losses.shape}"
            )
        reject_rows(np.isnan(log_odds), "nan", "odds must not be NaN")
        if losses is not None:
            reject_rows(~(losses >= 0), "bad_nll", "nll must be at least 0")
        return cls._count(log_odds, np.exp(-np.logaddexp(0.0, -log_odds)), hits, losses)

    @classmethod
    def _count(
        cls, odds: Floats, scores: Floats, correct: Bools, nll: Floats | None
    ) -> BinStatistics:
        sums = np.zeros(SUMS, dtype=np.int64)
        widths = sums[:-2].reshape(3, WIDTHS)
        place = bin_index(scores, WIDTHS)
        widths[COUNT] = np.bincount(place, minlength=WIDTHS)
        widths[CORRECT] = np.bincount(place[correct], minlength=WIDTHS)
        np.add.at(widths[CONFIDENCE], place, np.rint(scores / CONFIDENCE_UNIT).astype(np.int64))
        if nll is not None:
            sums[-2] = scores.size
            sums[-1] = np.rint(np.minimum(nll, MAX_NLL) / NLL_UNIT).astype(np.int64).sum()
        return cls(_limit_rows(ExactRows.of(odds, correct)), sums)

    def __add__(self, other: BinStatistics) -> BinStatistics:
        if not isinstance(other, BinStatistics):
            return NotImplemented
        if self.rows + other.rows > MAX_ROWS:
            raise DataError("too_many_rows", f"statistics must contain at most {MAX_ROWS} rows")
        if self.nll_sum + other.nll_sum > MAX_NUMBER:
            raise DataError("too_many_rows", f"the sum of nll must be at most {MAX_NUMBER} * 2^-24")
        return BinStatistics(_merge(self.spread, other.spread), self.sums + other.sums)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BinStatistics) and self.fingerprint() == other.fingerprint()

    __hash__ = None  # type: ignore[assignment]

    @property
    def rows(self) -> int:
        """Number of rows observed."""
        return self.spread.count

    @property
    def nll_sum(self) -> int:
        """Sum of -log p of the labels, in units of 2^-24."""
        return int(self.sums[-1])

    def equal_mass(self, bins: int = WIDTHS) -> BinTable:
        """Return equal-mass bins with the convention of ``calibrators.metrics.equal_mass``.

        Bin i ends after floor(i n / M) rows, so some bins are empty if there are fewer rows than
        bins. Rows that are tied or in the same cell at an edge are split in proportion. The first
        edge is 0 and the last is 1.
        """
        self._check_not_empty()
        return self.spread.tied_rows().equal_mass(bins)

    def equal_width(self) -> BinTable:
        """Return the 15 equal-width bins of the ECE."""
        self._check_not_empty()
        count, correct, confidence = self._widths().astype(np.float64)
        edges = width_edges(WIDTHS)
        return BinTable(count, confidence * CONFIDENCE_UNIT, correct, edges[:-1], edges[1:], count)

    def summary(self) -> Summary:
        """Return ECE, AdaECE, NLL, accuracy and mean confidence."""
        table = self.equal_width()
        rows = self.rows
        return Summary(
            rows=rows,
            accuracy=float(table.correct_sum.sum() / rows),
            confidence=float(table.confidence_sum.sum() / rows),
            ece=table.ece(),
            ada_ece=self.equal_mass().ece(),
            nll=self.nll_sum * NLL_UNIT / rows if self.sums[-2] == rows else None,
        )

    def to_bytes(self) -> bytes:
        """Return compact bytes: one or two per row, or tens of thousands in total for cells."""
        return MAGIC + zlib.compress(plain_bytes(self.spread, self.sums), 6)

    @classmethod
    def from_bytes(cls, data: bytes) -> BinStatistics:
        """Build statistics from the bytes of ``to_bytes``; raise DataError if they are damaged."""
        plain = _inflate(data)
        sums = _numbers(plain[1:HEAD], "<i8").astype(np.int64)
        if plain[:1] == CELLED:
            table = _numbers(plain[HEAD:], "<i8").astype(np.int64).reshape(2, CELLS)
            return cls(CountedRows(table), sums)
        keys = np.cumsum(_numbers(plain[HEAD:], "<u4"), dtype=np.uint64)
        if keys.size and keys[-1] >= 2 * PLACES:
            raise DataError("bad_statistics", "rows lie outside the scale of log odds")
        return cls(ExactRows(keys.astype(np.uint32)), sums)

    def fingerprint(self) -> str:
        """Return the SHA-256 of the uncompressed content."""
        return hashlib.sha256(plain_bytes(self.spread, self.sums)).hexdigest()

    def _widths(self) -> Integers:
        return self.sums[:-2].reshape(3, WIDTHS)

    def _check_not_empty(self) -> None:
        if not self.rows:
            raise DataError("empty", "no rows have been observed yet")


def _limit_rows(rows: ExactRows) -> Spread:
    """Return rows unchanged if there are at most EXACT_ROWS, otherwise their counts in cells."""
    return rows if rows.count <= EXACT_ROWS else rows.counted()


def _merge(one: Spread, other: Spread) -> Spread:
    if isinstance(one, ExactRows) and isinstance(other, ExactRows):
        return _limit_rows(ExactRows(np.sort(np.concatenate([one.keys, other.keys]))))
    return CountedRows(one.counted().table + other.counted().table)


def _is_sound(widths: Integers, rows: int, hits: int) -> bool:
    """Return True if the bins add up to the totals and each mean confidence lies in its bin."""
    count, correct, confidence = widths
    edges = width_edges(WIDTHS) / CONFIDENCE_UNIT
    return bool(
        count.max() <= rows
        and (count.sum(), correct.sum()) == (rows, hits)
        and (correct <= count).all()
        and (confidence >= count * (edges[:-1] - 1)).all()
        and (confidence <= count * (edges[1:] + 1)).all()
    )


def plain_bytes(spread: Spread, sums: Integers) -> bytes:
    """Return the bytes before compression: a letter for the kind of ``spread``, then the data."""
    kind = ROWS if isinstance(spread, ExactRows) else CELLED
    return kind + planes(sums) + planes(spread.raw())


def planes(numbers: NDArray[Any]) -> bytes:
    """Return the lowest byte of every number, then the next, so that similar bytes are adjacent."""
    size = numbers.dtype.itemsize
    little = numbers.astype(numbers.dtype.newbyteorder("<"))
    return little.view(np.uint8).reshape(-1, size).T.tobytes()


def _numbers(planes: bytes, kind: str) -> NDArray[Any]:
    size = np.dtype(kind).itemsize
    transposed = np.frombuffer(planes, dtype=np.uint8).reshape(size, -1).T
    return np.ascontiguousarray(transposed).view(kind)[:, 0]


def _inflate(data: bytes) -> bytes:
    """Return the uncompressed bytes of statistics; raise DataError if their length is wrong."""
    try:
        if data[: len(MAGIC)] != MAGIC:
            raise ValueError("bad magic bytes")
        inflater = zlib.decompressobj()
        plain = inflater.decompress(data[len(MAGIC) :], LONGEST + 1)
        kind, rest = plain[:1], len(plain) - HEAD
        fits = rest == 16 * CELLS if kind == CELLED else rest % 4 == 0 and rest <= 4 * EXACT_ROWS
        if rest < 0 or not fits or not inflater.eof or inflater.unused_data:
            raise ValueError("wrong length")
        if kind not in (ROWS, CELLED):
            raise ValueError("unknown kind, neither rows nor cells")
    except (ValueError, zlib.error) as error:
        raise DataError("bad_statistics", f"not bin statistics: {error}") from error
    return plain
