"""Scales of a chart: positions of values, ticks, and formats of numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from calibrators.charts.theme import Spec

PIXELS_PER_TICK = 40
DEFAULT_NICE = 10
LARGEST_PLAIN = 1e7
MAX_DIGITS = 6
# character widths of Arial in thousandths of the font size; others count as MEAN_WIDTH
MEAN_WIDTH = 556
ROOM = 1.12  # on systems without Arial, fonts may be wider
WIDTHS = {
    **dict.fromkeys("ijl", 222),
    **dict.fromkeys(" ft.,:;/|!'", 278),
    **dict.fromkeys("r()[]-", 333),
    **dict.fromkeys("ckvxyzsJ", 500),
    **dict.fromkeys("ABEKPSVXY&", 667),
    **dict.fromkeys("CDHNRUw", 722),
    **dict.fromkeys("GOQ", 778),
    **dict.fromkeys("mM", 833),
    **dict.fromkeys("%W", 944),
    "→": 1000,
}


@dataclass(frozen=True)
class Linear:
    """A linear scale from the values ``low`` to ``high`` to the pixels ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: Any) -> float:
        """Return the pixel position of a value, clipped to one axis length beyond either end."""
        share = (float(value) - self.low) / (self.high - self.low)
        return self.start + min(max(share, -1.0), 2.0) * (self.end - self.start)

    def ticks(self, axis: Spec) -> list[float]:
        """Return the tick values of an axis."""
        count = axis.get("tickCount") or math.ceil(abs(self.end - self.start) / PIXELS_PER_TICK)
        return ticks(self.low, self.high, count)


@dataclass(frozen=True)
class Bands:
    """A categorical scale with a band of ``step`` pixels per name."""

    names: tuple[str, ...]
    step: float

    def __call__(self, value: Any) -> float:
        """Return the middle of a name's band."""
        return (self.names.index(value) + 0.5) * self.step


Scale = Linear | Bands


def linear_scale(spec: Spec, axis: Spec, values: Sequence[float], pixels: float) -> Linear:
    """Return a scale according to Vega-Lite's rules for domain, zero, padding and nice."""
    if "domain" in spec:
        low, high = (float(one) for one in spec["domain"])
    else:
        found = [*values, 0.0] if spec.get("zero", True) or not values else values
        low, high = float(min(found)), float(max(found))
        if "padding" in spec:
            extra = (high - low) * spec["padding"] / max(1.0, pixels - 2 * spec["padding"])
            low, high = low - extra, high + extra
    if (
        not high - low > abs(high) * 1e-12
    ):  # a single value, or values that are equal up to rounding
        low, high = low - 0.5 - abs(low) / 2, high + 0.5 + abs(high) / 2
        low = max(low, 0.0) if values and min(values) >= 0 else low
    if "domain" not in spec and spec.get("nice", True):
        low, high = nice(low, high, axis.get("tickCount", DEFAULT_NICE))
    return Linear(low, high, 0.0, pixels)


def nice(low: float, high: float, count: int) -> tuple[float, float]:
    """Extend an interval to round numbers.

    >>> nice(0.0, 0.0617, 6)
    (0.0, 0.07)
    """
    step = tick_step(low, high, count)
    first, last = math.floor(low / step * (1 + 1e-12)), math.ceil(high / step * (1 - 1e-12))
    return _multiple(first, step), _multiple(last, step)


def ticks(low: float, high: float, count: int) -> list[float]:
    """Return about ``count`` round numbers in an interval.

    >>> ticks(0.0, 1.0, 5)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    step = tick_step(low, high, count)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [_multiple(one, step) for one in range(first, last + 1)]


def tick_step(low: float, high: float, count: int) -> float:
    """Return the step, 1, 2 or 5 times a power of ten, that gives about ``count`` ticks."""
    raw = max((high - low) / max(1, count), 1e-300)
    power = 10.0 ** math.floor(math.log10(raw))
    error = raw / power
    factor = 10 if error >= 50**0.5 else 5 if error >= 10**0.5 else 2 if error >= 2**0.5 else 1
    return factor * power


def _multiple(times: int, step: float) -> float:
    """Return a multiple of a step without floating-point noise."""
    return float(f"{times * step:.12g}")


def number(value: float, form: str | None = None) -> str:
    """Format a number for charts, as briefly as possible if ``form`` is None.

    >>> number(1234.0, ",d"), number(0.015, ".1%"), number(2.50)
    ('1,234', '1.5%', '2.5')
    """
    if abs(value) >= LARGEST_PLAIN or form is None:
        return f"{value:.6g}"
    return format(round(value) if form.endswith("d") else value, form)


def tick_labels(values: Sequence[float], form: str | None) -> list[str]:
    """Return the labels of ticks; without a format, all show the digits that the step needs."""
    step = values[1] - values[0] if len(values) > 1 else 0.0
    if form is None and step > 0 and max(map(abs, values)) < LARGEST_PLAIN:
        digits = max(0, -math.floor(math.log10(step) + 1e-9))
        form = f".{digits}f" if digits <= MAX_DIGITS else None
    return [number(one, form) for one in values]


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Return the approximate width of a string in pixels."""
    widths = sum(WIDTHS.get(one, MEAN_WIDTH) for one in text)
    return widths / 1000 * size * (1.08 if bold else 1.0) * ROOM
