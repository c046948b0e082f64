"""Bin statistics of a validation pass: small, exact to merge in any order, enough for AdaFocal."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrators.adafocal.cells import CELLS, cell_confidences, cell_of, confidence_at
from calibrators.blocks import Floats, Scratch, map_blocks
from calibrators.data import CalibrationSet
from calibrators.errors import DataError
from calibrators.metrics import BinTable
from calibrators.metrics.bins import bin_index, width_edges

Integers = NDArray[np.int64]
Bools = NDArray[np.bool_]

WIDTHS = 15
CONFIDENCE_UNIT = 2.0**-30
NLL_UNIT = 2.0**-24
MOST_ROWS = 2**32
MOST_NLL = 2.0**14
MOST_NUMBER = 2**63 - 1

MAGIC = b"CBS1"
COUNT, CORRECT, CONFIDENCE = range(3)
NUMBERS = 2 * CELLS + 3 * WIDTHS + 2


@dataclass(frozen=True)
class Summary:
    """What a validation pass says of a model; ``nll`` is None where it was not observed."""

    rows: int
    accuracy: float
    confidence: float
    ece: float
    ada_ece: float
    nll: float | None


@dataclass(frozen=True, eq=False)
class BinStatistics:
    """Rows and hits in 32,768 cells of log-odds, and their confidence in 15 equally wide bins.

    A row's confidence is the probability of its predicted class; its cell is found from the
    logarithm of the odds, ``log(c / (1 - c))``, because cells of equal width in c fail near 1. From
    the cells come bins of equal mass of any number, in which the mean confidence is right to 3e-5.
    The 15 bins are those of the ECE; beside them stands the sum of -log p of the labels, each
    at most 2^14. All numbers are integers (confidence in units of 2^-30, nll of 2^-24), so that
    sums are exact: merged in any order, on any number of machines, they are the same bits.

    >>> first = BinStatistics.from_confidences([0.9, 0.6], [True, False])
    >>> second = BinStatistics.from_logits([[2.0, 0.0, -1.0]], [0])
    >>> merged = first + second
    >>> merged.rows, merged == second + first
    (3, True)
    >>> BinStatistics.from_bytes(merged.to_bytes()) == merged
    True
    """

    numbers: Integers

    def __post_init__(self) -> None:
        numbers = np.asarray(self.numbers)
        if numbers.shape != (NUMBERS,) or numbers.dtype != np.int64:
            raise DataError("bad_statistics", f"statistics are {NUMBERS} numbers of int64")
        kept = numbers.copy()
        kept.flags.writeable = False
        object.__setattr__(self, "numbers", kept)
        self._check()

    @classmethod
    def empty(cls) -> BinStatistics:
        """Of no rows: what sums begin with."""
        return cls(np.zeros(NUMBERS, dtype=np.int64))

    @classmethod
    def from_confidences(cls, confidence: ArrayLike, correct: ArrayLike) -> BinStatistics:
        """From the probability of the predicted class and whether it was right; no NLL."""
        scores = np.asarray(confidence, dtype=np.float64)
        hits = _hits(correct, "confidence", scores)
        outside = ~((scores >= 0) & (scores <= 1))
        _refuse(outside, "not_a_probability", "confidence must lie in [0, 1]")
        with np.errstate(divide="ignore"):
            odds = np.log(scores) - np.log1p(-scores)
        return cls._tallied(odds, scores, hits, None)

    @classmethod
    def from_logits(cls, logits: ArrayLike, labels: ArrayLike) -> BinStatistics:
        """From logits (n, k), or (n,) of class 1, and labels (n,)."""
        data = CalibrationSet(logits, labels)
        odds, surprise = np.empty(data.n), np.empty(data.n)
        correct = np.empty(data.n, dtype=np.bool_)

        def work(start: int, stop: int, scratch: Scratch) -> None:
            part = slice(start, stop)
            block = data.logits[part].astype(np.float64)
            odds[part], surprise[part], correct[part] = _observed(block, data.labels[part])

        map_blocks(work, *data.logits.shape)
        return cls.from_log_odds(odds, correct, surprise)

    @classmethod
    def from_log_odds(
        cls, odds: ArrayLike, correct: ArrayLike, nll: ArrayLike | None = None
    ) -> BinStatistics:
        """From the predicted class's log-odds, whether it was right, and -log p of the label.

        This is what is left to do once a device has reduced its logits to three numbers a row.
        """
        given = np.asarray(odds, dtype=np.float64)
        hits = _hits(correct, "odds", given)
        surprise = None if nll is None else np.asarray(nll, dtype=np.float64)
        if surprise is not None and surprise.shape != given.shape:
            raise DataError(
                "bad_shape", f"nll must have the shape of odds {given.shape}, got {surprise.shape}"
            )
        _refuse(np.isnan(given), "nan", "odds must not be NaN")
        if surprise is not None:
            _refuse(~(surprise >= 0), "bad_nll", "nll must be at least 0")
        return cls._tallied(given, np.exp(-np.logaddexp(0.0, -given)), hits, surprise)

    @classmethod
    def _tallied(
        cls, odds: Floats, scores: Floats, correct: Bools, nll: Floats | None
    ) -> BinStatistics:
        units = np.rint(scores / CONFIDENCE_UNIT).astype(np.int64)
        made = np.zeros(NUMBERS, dtype=np.int64)
        cells, widths = _split(made)
        width = bin_index(scores, WIDTHS)
        for table, place in ((cells, cell_of(odds)), (widths, width)):
            table[COUNT] = np.bincount(place, minlength=table.shape[1])
            table[CORRECT] = np.bincount(place[correct], minlength=table.shape[1])
        np.add.at(widths[CONFIDENCE], width, units)
        if nll is not None:
            made[-2] = scores.size
            made[-1] = np.rint(np.minimum(nll, MOST_NLL) / NLL_UNIT).astype(np.int64).sum()
        return cls(made)

    def __add__(self, other: BinStatistics) -> BinStatistics:
        if not isinstance(other, BinStatistics):
            return NotImplemented
        if self.rows + other.rows > MOST_ROWS:
            raise DataError("too_many_rows", f"statistics hold at most {MOST_ROWS} rows")
        if int(self.numbers[-1]) + int(other.numbers[-1]) > MOST_NUMBER:
            raise DataError("too_many_rows", f"the sum of nll is at most {MOST_NUMBER} * 2^-24")
        return BinStatistics(self.numbers + other.numbers)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BinStatistics) and np.array_equal(self.numbers, other.numbers)

    __hash__ = None  # type: ignore[assignment]

    @property
    def rows(self) -> int:
        """How many rows were observed."""
        return int(_split(self.numbers)[0][COUNT].sum())

    def equal_mass(self, bins: int = WIDTHS) -> BinTable:
        """Bins of equal mass, as ``calibrators.metrics.equal_mass`` takes them.

        Bin i ends after floor(i n / M) rows, so that with fewer rows than bins some are empty. A
        cell on an edge is shared in proportion, as ties are, and the edge lies in it where the
        count, linear inside each cell, is reached; the outermost edges are 0 and 1.
        """
        rows = self._some_rows()
        cells, _ = _split(self.numbers)
        cuts = np.arange(bins + 1) * rows // bins
        count = _sums_below(cells[COUNT])

        def inside(amounts: NDArray[Any]) -> Floats:
            return np.diff(np.interp(cuts, count, _sums_below(amounts)))

        return _table(
            np.diff(cuts).astype(np.float64),
            inside(cells[COUNT] * cell_confidences()),
            inside(cells[CORRECT]),
            np.array(
                [0.0, *confidence_at(np.interp(cuts[1:-1], count, np.arange(CELLS + 1))), 1.0]
            ),
        )

    def equal_width(self) -> BinTable:
        """The 15 equally wide bins of the ECE."""
        self._some_rows()
        _, widths = _split(self.numbers)
        count, correct, confidence = widths.astype(np.float64)
        return _table(count, confidence * CONFIDENCE_UNIT, correct, width_edges(WIDTHS))

    def summary(self) -> Summary:
        """ECE, AdaECE, NLL, accuracy and mean confidence."""
        table = self.equal_width()
        rows = self.rows
        return Summary(
            rows=rows,
            accuracy=float(table.correct_sum.sum() / rows),
            confidence=float(table.confidence_sum.sum() / rows),
            ece=table.ece(),
            ada_ece=self.equal_mass().ece(),
            nll=float(self.numbers[-1] * NLL_UNIT / rows) if self.numbers[-2] == rows else None,
        )

    def to_bytes(self) -> bytes:
        """Compact bytes: the numbers' bytes sorted by their place, then deflated."""
        planes = self.numbers.astype("<i8").view(np.uint8).reshape(-1, 8).T
        return MAGIC + zlib.compress(planes.tobytes(), 6)

    @classmethod
    def from_bytes(cls, data: bytes) -> BinStatistics:
        """The statistics that ``to_bytes`` wrote; DataError if they are not whole."""
        size = 8 * NUMBERS
        try:
            if data[: len(MAGIC)] != MAGIC:
                raise ValueError("they do not begin with CBS1")
            inflater = zlib.decompressobj()
            planes = inflater.decompress(data[len(MAGIC) :], size + 1)
            if len(planes) != size or not inflater.eof or inflater.unused_data:
                raise ValueError("they have the wrong length")
        except (ValueError, zlib.error) as error:
            raise DataError("bad_statistics", f"these are no statistics: {error}") from error
        turned = np.frombuffer(planes, dtype=np.uint8).reshape(8, -1).T
        return cls(np.ascontiguousarray(turned).view("<i8")[:, 0].astype(np.int64))

    def _some_rows(self) -> int:
        rows = self.rows
        if not rows:
            raise DataError("empty", "no row was observed yet")
        return rows

    def _check(self) -> None:
        cells, widths = _split(self.numbers)
        nll_rows, nll = self.numbers[-2:].tolist()
        rows = cells[COUNT].sum()
        sound = (
            (self.numbers >= 0).all()
            and self.numbers[: 2 * CELLS].max() <= MOST_ROWS
            and widths[:CONFIDENCE].max() <= rows <= MOST_ROWS
            and (cells.sum(axis=1) == widths[:CONFIDENCE].sum(axis=1)).all()
            and (cells[CORRECT] <= cells[COUNT]).all()
            and (widths[CORRECT] <= widths[COUNT]).all()
            and _is_inside(widths[CONFIDENCE], widths[COUNT])
            and nll_rows <= rows
            and nll * NLL_UNIT <= nll_rows * MOST_NLL
        )
        if not sound:
            raise DataError("bad_statistics", "these statistics contradict themselves")


def _is_inside(confidence: Integers, count: Integers) -> bool:
    """Whether the confidence of each of the 15 bins lies inside the bin, but for rounding."""
    edges = width_edges(WIDTHS) / CONFIDENCE_UNIT
    above = confidence >= count * (edges[:-1] - 1)
    return bool((above & (confidence <= count * (edges[1:] + 1))).all())


def _sums_below(amounts: NDArray[Any]) -> Floats:
    """The sum of all amounts before each place: one more than there are amounts."""
    return np.concatenate([[0.0], np.cumsum(amounts, dtype=np.float64)])


def _table(count: Floats, confidence: Floats, correct: Floats, edges: Floats) -> BinTable:
    return BinTable(
        count=count,
        confidence_sum=confidence,
        correct_sum=correct,
        lower=edges[:-1],
        upper=edges[1:],
        effective_count=count,
    )


def _hits(correct: ArrayLike, name: str, beside: Floats) -> Bools:
    """Whether each row was right, checked against the array that stands beside it."""
    hits = np.asarray(correct)
    if beside.ndim != 1 or hits.shape != beside.shape:
        raise DataError(
            "bad_shape",
            f"{name} and correct must have the same shape (n,), "
            f"got {beside.shape} and {hits.shape}",
        )
    if hits.dtype != np.bool_:
        _refuse(~np.isin(hits, (0, 1)), "bad_correct", "correct must be True or False")
    return hits.astype(np.bool_)


def _refuse(broken: Bools, code: str, rule: str) -> None:
    if broken.any():
        raise DataError(code, rule, rows=int(broken.sum()), first=int(np.argmax(broken)))


def _split(numbers: Integers) -> tuple[Integers, Integers]:
    """The cells (2, 32768) and the bins (3, 15)."""
    cells, rest = numbers[: 2 * CELLS], numbers[2 * CELLS : -2]
    return cells.reshape(2, CELLS), rest.reshape(3, WIDTHS)


def _observed(logits: Floats, labels: Integers) -> tuple[Floats, Floats, Bools]:
    """Log-odds of the predicted class, -log p of the label, and whether they are the same class."""
    row = np.arange(len(logits))
    top = logits.argmax(axis=1)
    largest = logits[row, top]
    behind = largest - logits[row, labels]
    logits[row, top] = -np.inf
    second = logits.max(axis=1)
    with np.errstate(invalid="ignore"):
        rest = np.exp(logits - second[:, np.newaxis])
    rest[np.isneginf(second)] = 0.0
    with np.errstate(divide="ignore"):
        odds = largest - second - np.log(rest.sum(axis=1))
    odds[np.isneginf(second)] = np.inf
    return odds, behind + np.logaddexp(0.0, -odds), top == labels
