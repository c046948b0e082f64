"""Check that a map yields valid probabilities on many kinds of rows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np
from numpy.typing import DTypeLike

from calibrators.base import CalibrationMap
from calibrators.errors import MapError
from calibrators.numerics.parallel import Floats

ROWS_AT_ONCE = 1 << 20
MAX_NUMBERS = 1 << 27  # a few seconds
MIN_ROWS = 4
SUM_TOLERANCE = 1e-3
FEATURE_SCALES = (0.0, 1e-3, 1.0, 1e3)
MARGINS = (1e-30, 1e-6, 1.0, 30.0, 1e4, 1e15)


def prove(fitted: CalibrationMap) -> None:
    """Raise a MapError unless all probabilities are finite and non-negative, and rows sum to 1.

    The map is applied to equal, random, nearly tied and extreme rows, in float32 and float64. If it
    has segments, it is also applied in the segments with the smallest and the largest scale. If it
    needs features, zeros and random numbers on several scales are used. A map that is slow to apply
    is applied to fewer rows.
    """
    names = [None, *_extreme_segments(fitted)]
    repeats = 2 * len(names) * (len(FEATURE_SCALES) if fitted.has_features else 1)
    most_rows = max(MIN_ROWS, MAX_NUMBERS // (repeats * (fitted.k + fitted.row_cost)))
    for dtype in (np.float32, np.float64):
        done = 0
        for rows in _blocks(fitted, dtype, most_rows):
            logits, _ = fitted.read(rows)
            for name in names:
                segments = None if name is None else np.full(len(rows), name)
                for features in _features(fitted, len(rows)):
                    _check(fitted.apply_logits(logits, segments, features), done)
            done += len(rows)


def _extreme_segments(fitted: CalibrationMap) -> list[str]:
    """Return the segments with the smallest and the largest scale."""
    names = list(getattr(fitted, "segments", ()))
    if not names:
        return []
    scales = fitted.segment_scales(np.array(names))
    return [names[int(scales.argmin())], names[int(scales.argmax())]]


def _features(fitted: CalibrationMap, rows: int) -> Iterator[Floats | None]:
    """Yield features for ``rows`` rows on several scales, or None for a map without features."""
    if not fitted.has_features:
        yield None
        return
    drawn = np.random.default_rng(0).normal(size=(rows, fitted.feature_count)).astype(np.float32)
    for scale in FEATURE_SCALES:
        yield drawn * np.float32(scale)


def _check(probabilities: Floats, first: int) -> None:
    sums = probabilities.sum(axis=1, dtype=np.float64)
    good = (np.abs(sums - 1) <= SUM_TOLERANCE) & (probabilities >= 0).all(axis=1)
    broken = np.flatnonzero(~good)
    if broken.size:
        raise MapError(len(broken), first + int(broken[0]))


def _blocks(fitted: CalibrationMap, dtype: DTypeLike, most_rows: int) -> Iterator[Floats]:
    """Yield at most ``most_rows`` of the rows, evenly chosen, in blocks of limited size."""
    step = max(1, ROWS_AT_ONCE // fitted.k)
    block: list[Floats] = []
    count = sum(1 for _ in _rows(2))
    for row in islice(_rows(fitted.k), 0, None, -(-count // most_rows)):
        block.append(row if fitted.kind == "logits" else _probabilities(row))
        if len(block) == step:
            yield np.array(block, dtype=dtype)
            block = []
    if block:
        yield np.array(block, dtype=dtype)


def _rows(k: int) -> Iterator[Floats]:
    """Yield rows of logits: all equal, one class ahead or behind, tied, random, and masked."""
    rng = np.random.default_rng(0)
    yield np.zeros(k)
    yield np.ones(k)
    for margin in MARGINS:
        for place in {0, k - 1}:
            ahead = np.zeros(k)
            ahead[place] = margin
            yield ahead
            yield -ahead
        yield rng.normal(size=k) * margin
        tied = rng.normal(size=k) * margin
        tied[:2] = tied.max()
        yield tied
    for _ in range(8):
        yield rng.normal(size=k) * 3
    masked = np.full(k, -np.inf)
    masked[0] = 0
    yield masked


def _probabilities(logits: Floats) -> Floats:
    with np.errstate(under="ignore"):
        weights = np.exp(logits - logits.max())
    return np.asarray(weights / weights.sum())
