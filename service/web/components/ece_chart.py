"""The small chart of a calibrator: its ECE before and after, with intervals and noise floor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from service.web.components.templating import percent
from service.web.queries import HasVerdict

WIDTH, HEIGHT = 168, 26
LEFT, RIGHT = 4, 164
MIN_SCALE = 0.02


@dataclass(frozen=True)
class Mark:
    """A point with its interval, in chart units; ``y`` is its vertical position."""

    kind: str
    x: float
    low: float
    high: float
    y: int


@dataclass(frozen=True)
class EceChart:
    """The template's data for a chart; ``words`` is the text alternative."""

    marks: tuple[Mark, ...]
    floor: float | None
    words: str


def chart_scale(listed: Iterable[HasVerdict]) -> float:
    """Return the common scale of the charts on a page: the largest upper bound of an interval."""
    sides = (side for one in listed for side in (one.before, one.after))
    return max([MIN_SCALE, *(float(side["high"]) for side in sides if side)])


def ece_chart(one: HasVerdict, scale: float) -> EceChart | None:
    """Return the chart of a version; None if it has no report."""
    if one.after is None:
        return None
    marks = [_mark("after", one.after, scale, 19)]
    words = f"ECE {_interval(one.after)}"
    if one.before is not None:
        marks.insert(0, _mark("before", one.before, scale, 7))
        words = f"ECE before {_interval(one.before)}, after {_interval(one.after)}"
    if one.floor is None:
        return EceChart(tuple(marks), None, words)
    limit = float(one.floor["quantile95"])
    words += f"; noise floor {percent(limit)}"
    return EceChart(tuple(marks), _x(limit, scale) - LEFT, words)


def _mark(kind: str, side: Mapping[str, Any], scale: float, y: int) -> Mark:
    value, low, high = (_x(float(side[name]), scale) for name in ("value", "low", "high"))
    return Mark(kind, value, low, high, y)


def _interval(side: Mapping[str, Any]) -> str:
    return f"{percent(side['value'])} ({percent(side['low'])} to {percent(side['high'])})"


def _x(value: float, scale: float) -> float:
    return round(LEFT + (RIGHT - LEFT) * min(1.0, max(0.0, value / scale)), 1)
