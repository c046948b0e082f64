"""Measurements of a report: metrics with intervals, and reliability tables, overall and by margin.

Values are never NaN or infinite: undefined values are None, so that a report is plain JSON.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators.errors import DataError
from calibrators.metrics import (
    BinTable,
    Interval,
    NoiseFloor,
    ScoredRows,
    TopLabel,
    noise_floor,
    wilson,
)
from calibrators.metrics.catalogue import all_metrics
from calibrators.numerics.parallel import Scratch, map_blocks, oriented
from calibrators.numerics.softmax import two_largest

Floats = NDArray[Any]
THIRDS = ("low", "middle", "high")
ROWS_IN_A_BIN = 20
FLOOR_DRAWS = 200


@dataclass(frozen=True)
class Bin:
    """One row of a reliability table; ``gap`` is the accuracy minus the confidence.

    ``accuracy_low`` and ``accuracy_high`` are the bounds of Wilson's interval for the accuracy. In
    an empty bin, all fields except the edges and the count are None.
    """

    lower: float
    upper: float
    count: float
    confidence: float | None
    accuracy: float | None
    gap: float | None
    accuracy_low: float | None
    accuracy_high: float | None


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Measurements of one set of probabilities against the labels.

    The keys of ``metrics`` and ``intervals`` are names in the catalogue of metrics; some metrics
    have no interval. ``noise_floor`` is the ECE that a perfectly calibrated model with these
    confidences would have on the same number of rows.
    """

    metrics: dict[str, float | None]
    intervals: dict[str, Interval]
    noise_floor: NoiseFloor
    equal_width: tuple[Bin, ...]
    equal_mass: tuple[Bin, ...]


@dataclass(frozen=True)
class MarginSide:
    """One side of a margin third: equal-width ECE, noise floor and both reliability tables."""

    ece: float
    noise_floor: NoiseFloor
    equal_width: tuple[Bin, ...]
    equal_mass: tuple[Bin, ...]


@dataclass(frozen=True)
class MarginThird:
    """The rows of the low, middle or high third of the margins, from ``lower`` to ``upper``.

    A bound is None if it is infinite because the second largest probability is 0.
    """

    name: str
    lower: float | None
    upper: float | None
    count: int
    after: MarginSide
    before: MarginSide | None


def measure(
    scored: ScoredRows, intervals: dict[str, Interval], options: dict[str, Any]
) -> Measurement:
    """Return all metrics of one set of probabilities.

    ``options`` holds draws, level and seed, and the same bins as ``scored``.
    """
    values = {name: metric.measure(scored) for name, metric in all_metrics().items()}
    return Measurement(
        metrics={name: finite(value) for name, value in values.items() if value is not None},
        intervals=intervals,
        noise_floor=_floor(scored.rows.top, options),
        equal_width=reliability_bins(scored.equal_width, options["level"]),
        equal_mass=reliability_bins(scored.equal_mass, options["level"]),
    )


def reliability_bins(table: BinTable, level: float = 0.95) -> tuple[Bin, ...]:
    """Return the rows of a reliability table, with Wilson's interval for each accuracy.

    >>> from calibrators.metrics import equal_width
    >>> first, second = reliability_bins(equal_width([0.9, 0.8], [True, False], bins=2))
    >>> first.count, first.accuracy, second.accuracy, round(second.gap, 2)
    (0.0, None, 0.5, -0.35)
    """
    low, high = wilson(table.accuracy, table.effective_count, level)
    columns = (table.mean_confidence, table.accuracy, table.gap, low, high)
    return tuple(
        Bin(float(lower), float(upper), float(count), *(finite(float(one)) for one in rest))
        for lower, upper, count, *rest in zip(
            table.lower, table.upper, table.count, *columns, strict=True
        )
    )


def margins_of(probabilities: Floats) -> Floats:
    """Return the logit margins (n,): log of the largest over the second largest probability.

    >>> margins_of(np.array([[0.5, 0.5], [1.0, 0.0]])).tolist()
    [0.0, inf]
    """

    def work(start: int, stop: int, scratch: Scratch) -> Floats:
        largest, second = two_largest(*oriented(probabilities[start:stop], scratch))
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(largest) - np.log(second), dtype=np.float64)

    return np.concatenate(map_blocks(work, *probabilities.shape))


def thirds(margin: Floats) -> list[tuple[str, NDArray[np.bool_]]]:
    """Return masks of the rows with low, middle and high margins; equal margins stay together.

    >>> [(name, rows.tolist()) for name, rows in thirds(np.array([3.0, 1.0, 2.0]))][0]
    ('low', [False, True, False])
    """
    n = margin.size
    places = [-(-n // 3) - 1, -(-2 * n // 3) - 1]
    cuts = np.partition(margin, places)[places]
    third = np.searchsorted(cuts, margin, side="left")
    parts = [(name, third == number) for number, name in enumerate(THIRDS)]
    return [(name, rows) for name, rows in parts if rows.any()]


def by_margin(
    margin: Floats, after: TopLabel, before: TopLabel | None, options: dict[str, Any]
) -> tuple[MarginThird, ...]:
    """Return the reliability in each third of the margins; empty thirds are left out."""
    if margin.shape != after.confidence.shape or np.isnan(margin).any():
        raise DataError(
            "bad_margin",
            f"margin must have shape {after.confidence.shape} and no NaN, got {margin.shape} "
            f"with {np.count_nonzero(np.isnan(margin))} NaN",
        )

    def side(top: TopLabel, rows: NDArray[np.bool_]) -> MarginSide:
        part = top.part(rows)
        width = part.equal_width(options["bins"])
        mass = part.equal_mass(max(1, min(options["bins"], part.correct.size // ROWS_IN_A_BIN)))
        tables = (reliability_bins(table, options["level"]) for table in (width, mass))
        return MarginSide(width.ece(), _floor(part, options), *tables)

    return tuple(
        MarginThird(
            name,
            finite(float(margin[rows].min())),
            finite(float(margin[rows].max())),
            int(np.count_nonzero(rows)),
            side(after, rows),
            None if before is None else side(before, rows),
        )
        for name, rows in thirds(margin)
    )


def finite(value: float) -> float | None:
    """Return the value, or None if it is NaN or infinite."""
    return value if math.isfinite(value) else None


def _floor(top: TopLabel, options: dict[str, Any]) -> NoiseFloor:
    return noise_floor(
        top.confidence, bins=options["bins"], draws=FLOOR_DRAWS, seed=options["seed"]
    )
