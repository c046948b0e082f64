"""Verdicts and gates: pure decisions on the intervals of a report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Self

from calibrators.errors import ParameterError
from calibrators.metrics import ChanceTest, Interval, deviations

MIN_ROWS = 100
CALIBRATION = "debiased_squared_error"
RANKING = "refinement_auroc"
MIN_RANKING_LOSS = 0.001
WIDEST_RANKING = 0.04
# metrics of a verdict: whether higher (1) or lower (-1) is better, and the loss that is tolerated
JUDGED: dict[str, tuple[int, float]] = {
    CALIBRATION: (-1, 0.0),
    "nll": (-1, 0.0),
    "brier": (-1, 0.0),
    "accuracy": (1, 0.0),
    RANKING: (1, MIN_RANKING_LOSS),
}


class _Explained(StrEnum):
    """A string enum whose members have an explanation, ``meaning``."""

    meaning: str

    def __new__(cls, value: str, meaning: str) -> Self:
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member


class Verdict(_Explained):
    """The verdict on whether a calibration map improved the judged rows.

    "Better" means that the whole interval of the change lies on the better side of 0, and "worse"
    that it lies on the worse side.

    >>> Verdict("improved").meaning
    'calibration is better, and NLL, Brier score, accuracy and ranking are not worse'
    """

    IMPROVED = (
        "improved",
        "calibration is better, and NLL, Brier score, accuracy and ranking are not worse",
    )
    TRADE_OFF = (
        "trade_off",
        "calibration is better, but NLL, Brier score, accuracy or ranking is worse, or ranking is "
        "in doubt: the choice depends on what the probabilities are used for",
    )
    NO_MEASURABLE_CHANGE = (
        "no_measurable_change",
        "calibration is neither measurably better nor worse, and nothing else is worse",
    )
    WORSE = (
        "worse",
        "calibration is worse, or NLL, Brier score, accuracy or ranking is worse and nothing is "
        "gained in return",
    )
    INSUFFICIENT_DATA = (
        "insufficient_data",
        f"fewer than {MIN_ROWS} rows were judged: too few for a verdict",
    )
    AT_CHANCE = (
        "at_chance",
        "the labels are not predicted measurably better than by chance, so they may belong to "
        "other rows, or use a different class order",
    )


NEEDS_FORCE = (Verdict.WORSE, Verdict.INSUFFICIENT_DATA, Verdict.AT_CHANCE)


class Gate(_Explained):
    """The outcome of comparing a calibration error, or an ECE, with a limit.

    >>> str(Gate.PASS)
    'pass'
    """

    PASS = "pass", "the whole interval of the calibration error is within the limit"
    FAIL = "fail", "the whole interval of the calibration error is beyond the limit"
    INSUFFICIENT_DATA = (
        "insufficient_data",
        "the interval of the calibration error contains the limit: more rows are needed to decide",
    )


def decide(n: int, change: Mapping[str, Interval], chance: ChanceTest | None = None) -> Verdict:
    """Return the verdict on ``n`` judged rows from the paired changes (after minus before).

    Calibration is judged by the debiased squared calibration error, not by the ECE, which is
    largely noise. If calibration is better, any loss (see ``lost``) makes the verdict a trade-off,
    and so does a ranking in doubt (see ``in_doubt``). If calibration is not better, the verdict is
    worse only if there is a loss with the five intervals taken together (Bonferroni: 99 % each for
    95 % together), because five intervals mislead far more often than one. Bounds that touch 0, or
    are NaN, are on neither side; missing changes are ignored. If ``chance`` found nothing above
    chance, the changes mean nothing, because a map can always be calibrated to labels that belong
    to other rows.

    >>> fell, same = Interval(-0.2, -0.3, -0.1, 0.95), Interval(0.0, -0.01, 0.01, 0.95)
    >>> good = {"debiased_squared_error": fell, "nll": same, "accuracy": same}
    >>> str(decide(1000, good)), str(decide(99, good)), str(decide(1000, good | {"accuracy": fell}))
    ('improved', 'insufficient_data', 'trade_off')
    """
    if n < MIN_ROWS:
        return Verdict.INSUFFICIENT_DATA
    if chance is not None and not chance.is_above_chance:
        return Verdict.AT_CHANCE
    if change[CALIBRATION].high < 0:
        doubtful = lost(change) or in_doubt(change)
        return Verdict.TRADE_OFF if doubtful else Verdict.IMPROVED
    if lost({name: together(one) for name, one in change.items()}):
        return Verdict.WORSE
    return Verdict.NO_MEASURABLE_CHANGE


def lost(change: Mapping[str, Interval]) -> tuple[str, ...]:
    """Return the names of the judged metrics that are measurably worse.

    The whole interval must lie on the worse side of 0. For the AUROC, it must lie beyond 0.1
    points, because temperature scaling of more than two classes reorders the rows slightly, which
    would be measurable on a million rows.

    >>> lost({"brier": Interval(0.004, 0.0006, 0.0074, 0.95)})
    ('brier',)
    >>> lost({"refinement_auroc": Interval(-0.0008, -0.0011, -0.0005, 0.95)})
    ()
    """
    return tuple(
        name
        for name, (better, least) in JUDGED.items()
        if name in change and _loss(change[name], better) > least
    )


def in_doubt(change: Mapping[str, Interval]) -> bool:
    """Return whether there are too few rows to rule out that the ranking is worse.

    This is the case if the interval of the AUROC change reaches below 0 and more than 4 points
    below the estimate. Two hundred rows are too few to detect a fall of 5 points, but the interval
    is still narrow if a map hardly reorders the rows.

    >>> in_doubt({"refinement_auroc": Interval(0.0, -0.05, 0.05, 0.95)})
    True
    """
    interval = change.get(RANKING)
    return (
        interval is not None and interval.low < 0 and interval.value - interval.low > WIDEST_RANKING
    )


def together(interval: Interval) -> Interval:
    """Return an interval, widened so that all judged intervals hold jointly (Bonferroni).

    >>> round(together(Interval(0.0, -1.96, 1.96, 0.95)).high, 2)
    2.58
    """
    each = 1 - (1 - interval.level) / len(JUDGED)
    return interval.widened(deviations(each) / deviations(interval.level))


def _loss(interval: Interval, better: int) -> float:
    """Return the certain part of a loss: the interval's bound on the better side.

    ``better`` is 1 if higher is better, and -1 if lower is better.
    """
    return -interval.high if better > 0 else interval.low


def gate(interval: Interval, limit: float) -> Gate:
    """Return whether an error is known to be at most ``limit``, from its interval.

    Interval and limit are on the scale of the ECE: 0.02 is two percentage points. ``rooted``
    converts the debiased squared error to that scale.

    >>> squared = Interval(0.0001, -0.0001, 0.0003, 0.95)
    >>> str(gate(rooted(squared), limit=0.02)), str(gate(rooted(squared), limit=0.01))
    ('pass', 'insufficient_data')
    """
    if not 0 <= limit < math.inf:
        raise ParameterError("bad_limit", f"limit must be a finite number >= 0, got {limit!r}")
    if interval.high <= limit:
        return Gate.PASS
    return Gate.FAIL if interval.low > limit else Gate.INSUFFICIENT_DATA


def rooted(squared: Interval) -> Interval:
    """Convert the interval of the debiased squared error to the root-mean-square error.

    Convention: ``sqrt(max(0, bound))``, because the debiased square may be negative.

    >>> rooted(Interval(0.0004, -0.0001, 0.0009, 0.95))
    Interval(value=0.02, low=0.0, high=0.03, level=0.95)
    """
    value, low, high = (_root(one) for one in (squared.value, squared.low, squared.high))
    return Interval(value, low, high, squared.level)


def _root(square: float) -> float:
    return math.sqrt(square) if square > 0 else (0.0 if square <= 0 else math.nan)
