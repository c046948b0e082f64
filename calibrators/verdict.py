"""What the figures of a report amount to: pure decisions on intervals, nothing else."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Self

from calibrators.errors import ParameterError
from calibrators.metrics import Interval

LEAST_ROWS = 100


class _Meant(StrEnum):
    """A string enum whose members carry the sentence that explains them."""

    meaning: str

    def __new__(cls, value: str, meaning: str) -> Self:
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member


class Verdict(_Meant):
    """Whether a calibration map did good on the judged rows.

    "Better" and "worse" mean that the whole interval of the change lies on that side of 0.

    >>> Verdict("trade_off").meaning
    'calibration is better, but the NLL is worse: choose by what the probabilities are for'
    """

    IMPROVED = "improved", "calibration is better and the NLL is not worse"
    TRADE_OFF = (
        "trade_off",
        "calibration is better, but the NLL is worse: choose by what the probabilities are for",
    )
    NO_MEASURABLE_CHANGE = (
        "no_measurable_change",
        "these rows cannot tell the two apart: neither is measurably better",
    )
    WORSE = "worse", "calibration is worse, or the NLL is worse and nothing is gained for it"
    INSUFFICIENT_DATA = (
        "insufficient_data",
        f"fewer than {LEAST_ROWS} rows were judged: too few to say anything",
    )


class Gate(_Meant):
    """Whether a calibration error is known to keep a limit.

    >>> str(Gate.PASS)
    'pass'
    """

    PASS = "pass", "the whole interval of the calibration error is within the limit"
    FAIL = "fail", "the whole interval of the calibration error is beyond the limit"
    INSUFFICIENT_DATA = (
        "insufficient_data",
        "the interval of the calibration error holds the limit: more rows are needed to decide",
    )


def decide(n: int, calibration_change: Interval, nll_change: Interval) -> Verdict:
    """The verdict on ``n`` judged rows from the paired changes (after minus before).

    ``calibration_change`` is that of the debiased squared calibration error, not of the ECE, whose
    own noise is much of what it measures. Bounds that touch 0, or are NaN, are on neither side.

    >>> better, same = Interval(-0.2, -0.3, -0.1, 0.95), Interval(0.0, -0.1, 0.1, 0.95)
    >>> [str(decide(n, change, same)) for n, change in ((1000, better), (1000, same), (99, better))]
    ['improved', 'no_measurable_change', 'insufficient_data']
    """
    if n < LEAST_ROWS:
        return Verdict.INSUFFICIENT_DATA
    better, worse = calibration_change.high < 0, calibration_change.low > 0
    nll_worse = nll_change.low > 0
    if worse or (nll_worse and not better):
        return Verdict.WORSE
    if better:
        return Verdict.TRADE_OFF if nll_worse else Verdict.IMPROVED
    return Verdict.NO_MEASURABLE_CHANGE


def gate(squared_error: Interval, limit: float) -> Gate:
    """Whether the root-mean-square calibration error is known to be at most ``limit``.

    ``squared_error`` is the interval of the debiased squared calibration error; ``limit`` is on the
    scale of the ECE (0.02 is two percentage points). Convention: the bounds are compared after
    ``sqrt(max(0, bound))``, because the debiased square may be negative.

    >>> str(gate(Interval(0.0001, -0.0001, 0.0003, 0.95), limit=0.02))    # sqrt(0.0003) = 0.017
    'pass'
    >>> str(gate(Interval(0.0001, -0.0001, 0.0003, 0.95), limit=0.01))
    'insufficient_data'
    """
    if not 0 <= limit < math.inf:
        raise ParameterError("bad_limit", f"limit must be a finite number >= 0, got {limit!r}")
    low, high = (_root(bound) for bound in (squared_error.low, squared_error.high))
    if high <= limit:
        return Gate.PASS
    return Gate.FAIL if low > limit else Gate.INSUFFICIENT_DATA


def _root(square: float) -> float:
    return math.sqrt(square) if square > 0 else (0.0 if square <= 0 else math.nan)
