"""Bin statistics of a validation pass: small, exact to merge in any order, enough for AdaFocal."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrators.blocks import Floats, Scratch, map_blocks
from calibrators.data import CalibrationSet
from calibrators.errors import DataError
from calibrators.metrics import BinTable
from calibrators.metrics.bins import bin_index, width_edges

Integers = NDArray[np.int64]

CELLS = 4096
LOWEST, HIGHEST = -12.0, 20.0
WIDTHS = 15
CONFIDENCE_UNIT = 2.0**-30
NLL_UNIT = 2.0**-24
MOST_ROWS = 2**32
MOST_NLL = 2.0**20

MAGIC = b"CBS1"
COUNT, CORRECT, CONFIDENCE = range(3)
NUMBERS = 3 * CELLS + 3 * WIDTHS + 2


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
    """Counts, hits and confidence of rows in 4096 cells of log-odds and 15 bins of confidence.

    A row's confidence is the probability of its predicted class; its cell is found from the
    logarithm of the odds, ``log(c / (1 - c))`` in [-12, 20], because cells of equal width in c fail
    near 1. Beside the cells stand 15 equally wide bins, as the ECE takes them, and the sum of
    -log p of the labels. All numbers are integers (confidence in units of 2^-30, nll of 2^-24), so
    that sums are exact: merged in any order, on any number of machines, they are the same bits.

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
        view = numbers.view()
        view.flags.writeable = False
        object.__setattr__(self, "numbers", view)
        self._check()

    @classmethod
    def empty(cls) -> BinStatistics:
        """Of no rows: what sums begin with."""
        return cls(np.zeros(NUMBERS, dtype=np.int64))

    @classmethod
    def from_confidences(cls, confidence: ArrayLike, correct: ArrayLike) -> BinStatistics:
        """From the probability of the predicted class and whether it was right; no NLL."""
        scores = np.asarray(confidence, dtype=np.float64)
        hits = np.asarray(correct)
        if scores.ndim != 1 or hits.shape != scores.shape:
            raise DataError(
                "bad_shape",
                "confidence and correct must have the same shape (n,), "
                f"got {scores.shape} and {hits.shape}",
            )
        if hits.dtype != np.bool_ and not np.isin(hits, (0, 1)).all():
            raise DataError("bad_correct", "correct must be True or False for each row")
        broken = ~((scores >= 0) & (scores <= 1))
        if broken.any():
            first, count = int(np.argmax(broken)), int(broken.sum())
            raise DataError(
                "not_a_probability", "confidence must lie in [0, 1]", rows=count, first=first
            )
        with np.errstate(divide="ignore"):
            odds = np.log(scores) - np.log1p(-scores)
        return cls._tallied(odds, scores, hits.astype(np.bool_), None)

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
        surprise = None if nll is None else np.asarray(nll, dtype=np.float64)
        if np.isnan(given).any() or (surprise is not None and not (surprise >= 0).all()):
            raise DataError("nan", "log-odds must not be NaN, and -log p must be at least 0")
        scores = np.exp(-np.logaddexp(0.0, -given))
        return cls._tallied(given, scores, np.asarray(correct, dtype=np.bool_), surprise)

    @classmethod
    def _tallied(
        cls, odds: Floats, scores: Floats, correct: NDArray[np.bool_], nll: Floats | None
    ) -> BinStatistics:
        cell = np.clip((odds - LOWEST) * (CELLS / (HIGHEST - LOWEST)), 0, CELLS - 1)
        units = np.rint(scores / CONFIDENCE_UNIT).astype(np.int64)
        made = np.zeros(NUMBERS, dtype=np.int64)
        cells, widths = _split(made)
        for table, place in (
            (cells, cell.astype(np.intp)),
            (widths, bin_index(scores, WIDTHS)),
        ):
            size = table.shape[1]
            table[COUNT] = np.bincount(place, minlength=size)
            table[CORRECT] = np.bincount(place[correct], minlength=size)
            np.add.at(table[CONFIDENCE], place, units)
        if nll is not None:
            made[-2] = scores.size
            made[-1] = np.rint(np.minimum(nll, MOST_NLL) / NLL_UNIT).astype(np.int64).sum()
        return cls(made)

    def __add__(self, other: BinStatistics) -> BinStatistics:
        if not isinstance(other, BinStatistics):
            return NotImplemented
        if self.rows + other.rows > MOST_ROWS:
            raise DataError("too_many_rows", f"statistics hold at most {MOST_ROWS} rows")
        return BinStatistics(self.numbers + other.numbers)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BinStatistics) and np.array_equal(self.numbers, other.numbers)

    __hash__ = None  # type: ignore[assignment]

    @property
    def rows(self) -> int:
        """How many rows were observed."""
        return int(_split(self.numbers)[0][COUNT].sum())

    def equal_mass(self, bins: int = WIDTHS) -> BinTable:
        """Bins of equal mass; a cell on an edge is shared in proportion, as ties are.

        The edges lie where the cumulative count, linear inside each cell, reaches i/M of the rows;
        the outermost are 0 and 1.
        """
        if not self.rows:
            raise DataError("empty", "no row was observed yet")
        cells, _ = _split(self.numbers)
        cumulated = np.concatenate([[0], np.cumsum(cells[COUNT])]).astype(np.float64)
        cuts = np.linspace(0.0, cumulated[-1], bins + 1)
        grid = np.linspace(LOWEST, HIGHEST, CELLS + 1)
        edges = 1 / (1 + np.exp(-np.interp(cuts, cumulated, grid)))
        edges[0], edges[-1] = 0.0, 1.0
        sums = np.stack(
            [
                np.diff(np.interp(cuts, cumulated, np.concatenate([[0], np.cumsum(row)])))
                for row in cells[[CORRECT, CONFIDENCE]].astype(np.float64)
            ]
        )
        count = np.diff(cuts)
        return BinTable(
            count=count,
            confidence_sum=sums[1] * CONFIDENCE_UNIT,
            correct_sum=sums[0],
            lower=edges[:-1],
            upper=edges[1:],
            effective_count=count,
        )

    def equal_width(self) -> BinTable:
        """The 15 equally wide bins of the ECE."""
        if not self.rows:
            raise DataError("empty", "no row was observed yet")
        _, widths = _split(self.numbers)
        edges = width_edges(WIDTHS)
        count = widths[COUNT].astype(np.float64)
        return BinTable(
            count=count,
            confidence_sum=widths[CONFIDENCE] * CONFIDENCE_UNIT,
            correct_sum=widths[CORRECT].astype(np.float64),
            lower=edges[:-1],
            upper=edges[1:],
            effective_count=count,
        )

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
        return MAGIC + zlib.compress(planes.tobytes(), 9)

    @classmethod
    def from_bytes(cls, data: bytes) -> BinStatistics:
        """The statistics that ``to_bytes`` wrote; DataError if they are not whole."""
        size = 8 * NUMBERS
        try:
            if data[: len(MAGIC)] != MAGIC:
                raise ValueError("they do not begin with CBS1")
            inflater = zlib.decompressobj()
            planes = inflater.decompress(data[len(MAGIC) :], size)
            if len(planes) != size or not inflater.eof or inflater.unused_data:
                raise ValueError("they have the wrong length")
        except (ValueError, zlib.error) as error:
            raise DataError("bad_statistics", f"these are no statistics: {error}") from error
        turned = np.frombuffer(planes, dtype=np.uint8).reshape(8, -1).T
        return cls(np.ascontiguousarray(turned).view("<i8")[:, 0].astype(np.int64))

    def _check(self) -> None:
        cells, widths = _split(self.numbers)
        nll_rows, nll = self.numbers[-2:].tolist()
        limit = MOST_ROWS + 1
        sound = (
            (self.numbers >= 0).all()
            and (cells[COUNT] < limit).all()
            and (widths[COUNT] < limit).all()
            and cells[COUNT].sum() < limit
            and all(_is_sound(table) for table in (cells, widths))
            and (cells.sum(axis=1) == widths.sum(axis=1)).all()
            and nll_rows <= cells[COUNT].sum()
            and nll * NLL_UNIT <= nll_rows * MOST_NLL
        )
        if not sound:
            raise DataError("bad_statistics", "these statistics contradict themselves")


def _is_sound(table: Integers) -> bool:
    """Not more hits than rows, and no more confidence than they can have."""
    most = table[COUNT] * int(1 / CONFIDENCE_UNIT)
    return bool((table[CORRECT] <= table[COUNT]).all() and (table[CONFIDENCE] <= most).all())


def _split(numbers: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    cells = numbers[: 3 * CELLS].reshape(3, CELLS)
    return cells, numbers[3 * CELLS : 3 * (CELLS + WIDTHS)].reshape(3, WIDTHS)


def _observed(logits: Floats, labels: NDArray[np.int64]) -> tuple[Floats, Floats, Floats]:
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
