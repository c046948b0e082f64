"""What the figures of a report amount to: pure decisions on intervals, nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping
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

    >>> Verdict("improved").meaning
    'calibration is better, and neither the NLL nor the accuracy is worse'
    """

    IMPROVED = "improved", "calibration is better, and neither the NLL nor the accuracy is worse"
    TRADE_OFF = (
        "trade_off",
        "calibration is better, but the NLL or the accuracy is worse: choose by what the "
        "probabilities are for",
    )
    NO_MEASURABLE_CHANGE = (
        "no_measurable_change",
        "calibration is neither measurably better nor worse, and nothing else is worse",
    )
    WORSE = (
        "worse",
        "calibration is worse, or the NLL or the accuracy is worse and nothing is gained for it",
    )
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


def decide(n: int, change: Mapping[str, Interval]) -> Verdict:
    """The verdict on ``n`` judged rows from the paired changes (after minus before).

    Calibration is judged by the debiased squared calibration error, not by the ECE, whose own noise
    is much of what it measures; beside it the NLL and the accuracy count, which a method that may
    change the predicted class can lose. Bounds that touch 0, or are NaN, are on neither side.

    >>> fell, same = Interval(-0.2, -0.3, -0.1, 0.95), Interval(0.0, -0.1, 0.1, 0.95)
    >>> good = {"debiased_squared_error": fell, "nll": same, "accuracy": same}
    >>> str(decide(1000, good)), str(decide(99, good)), str(decide(1000, good | {"accuracy": fell}))
    ('improved', 'insufficient_data', 'trade_off')
    """
    if n < LEAST_ROWS:
        return Verdict.INSUFFICIENT_DATA
    error = change["debiased_squared_error"]
    better, worse = error.high < 0, error.low > 0
    something_lost = change["nll"].low > 0 or change["accuracy"].high < 0
    if worse or (something_lost and not better):
        return Verdict.WORSE
    if better:
        return Verdict.TRADE_OFF if something_lost else Verdict.IMPROVED
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
