"""Marks of a chart as SVG: bars, rules, points, lines, areas and text."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from html import escape
from typing import Any, NamedTuple

from calibrators.charts.scales import Scale, number, text_width
from calibrators.charts.theme import INK, Spec

Datum = Mapping[str, Any]
# characters that XML 1.0 does not allow
NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
LARGEST = 1e100
MARK_NAMES = {"point": "symbol", "bar": "rect", "tick": "rule"}


class MarkPosition(NamedTuple):
    """A layer in its panel: its mark, encoding, rows and scales."""

    mark: Spec
    encoding: Spec
    rows: list[Datum]
    x: Scale
    y: Scale

    def at(self, channel: str, row: Datum) -> float | None:
        """Return the pixel position of a row in a channel; None if the row has no value in it."""
        value = value_in(self.encoding.get(channel), row)
        return None if value is None else (self.x if channel[0] == "x" else self.y)(value)

    def points(self, *channels: str) -> Iterable[tuple[Datum, list[float]]]:
        """Yield the rows that have a value in every channel, with their pixel positions."""
        for row in self.rows:
            found = [self.at(channel, row) for channel in channels]
            if all(one is not None for one in found):
                yield row, [one for one in found if one is not None]

    def colour(self, row: Datum) -> str:
        """Return the colour of a row's mark."""
        by = self.encoding.get("color")
        if by is None:
            return str(self.mark.get("color", INK))
        names, colours = by["scale"]["domain"], by["scale"]["range"]
        return str(colours[names.index(row[by["field"]])])


def value_in(channel: Spec | None, row: Datum) -> Any:
    """Return the value of a row in a channel; None if it cannot be drawn."""
    if channel is None:
        return None
    value = channel["datum"] if "datum" in channel else row.get(channel.get("field", ""))
    return value if value is None or isinstance(value, str) or _is_drawable(value) else None


def _is_drawable(value: float) -> bool:
    """Return whether a number can be converted to pixels without overflow."""
    return abs(value) < LARGEST  # False for NaN


def drawn(place: MarkPosition) -> str:
    """Return the marks of a layer as a group of SVG elements."""
    kind = place.mark["type"]
    shapes = "".join(SHAPES[kind](place))
    opacity = place.mark.get("opacity", 1)
    faded = "" if opacity == 1 else f' opacity="{opacity:g}"'
    name = MARK_NAMES.get(kind, kind)
    return f'<g class="mark-{name} role-mark" fill="none"{faded}>{shapes}</g>'


def right_end(place: MarkPosition) -> float:
    """Return the right end of a layer's text in pixels; 0 for other layers."""
    if place.mark["type"] != "text":
        return 0.0
    size, field = place.mark["fontSize"], place.encoding["text"]["field"]
    ends = (x + text_width(row[field], size) for row, (x,) in place.points("x"))
    return float(max(ends, default=0.0) + place.mark["dx"])


def _rects(place: MarkPosition) -> Iterable[str]:
    offsets = place.mark.get("xOffset", 0), place.mark.get("x2Offset", 0)
    for row, (x, x2, y, y2) in place.points("x", "x2", "y", "y2"):
        left, right = x + offsets[0], x2 + offsets[1]
        yield _rect(place, row, left, min(y, y2), right - left, abs(y2 - y))


def _bars(place: MarkPosition) -> Iterable[str]:
    height, zero = place.mark["height"], place.x(0.0)
    for row, (x, y) in place.points("x", "y"):
        yield _rect(place, row, min(zero, x), y - height / 2, abs(x - zero), height)


def _rect(place: MarkPosition, row: Datum, x: float, y: float, width: float, height: float) -> str:
    size = f'width="{pixels(max(width, 0.0))}" height="{pixels(height)}"'
    shape = f'rect x="{pixels(x)}" y="{pixels(y)}" {size} fill="{place.colour(row)}"'
    return _element(shape, place, row)


def _ticks(place: MarkPosition) -> Iterable[str]:
    half = place.mark["height"] / 2
    for row, (x, y) in place.points("x", "y"):
        yield _line(place, row, (x, y - half, x, y + half), place.mark["thickness"])


def _rules(place: MarkPosition) -> Iterable[str]:
    across = "x2" in place.encoding
    for row, (x, y, end) in place.points("x", "y", "x2" if across else "y2"):
        ends = (x, y, end, y) if across else (x, y, x, end)
        yield _line(place, row, ends, place.mark["strokeWidth"])


def _line(place: MarkPosition, row: Datum, ends: tuple[float, ...], width: float) -> str:
    names = zip(("x1", "y1", "x2", "y2"), ends, strict=True)
    where = " ".join(f'{name}="{pixels(one)}"' for name, one in names)
    return _element(f'line {where} stroke="{place.colour(row)}" stroke-width="{width}"', place, row)


def _circles(place: MarkPosition) -> Iterable[str]:
    radius = math.sqrt(place.mark["size"] / math.pi)
    for row, (x, y) in place.points("x", "y"):
        where = f'cx="{pixels(x)}" cy="{pixels(y)}" r="{pixels(radius)}"'
        yield _element(f'circle {where} fill="{place.colour(row)}"', place, row)


def _curve(place: MarkPosition) -> Iterable[str]:
    corners = [f"{pixels(x)},{pixels(y)}" for _, (x, y) in place.points("x", "y")]
    dash = " ".join(map(str, place.mark.get("strokeDash", [])))
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    stroke = f'stroke="{place.mark["color"]}" stroke-width="{place.mark["strokeWidth"]}"{dashes}'
    if corners:
        yield f'<path d="M{"L".join(corners)}" {stroke}/>'


def _area(place: MarkPosition) -> Iterable[str]:
    ends = [one for _, one in place.points("x", "y", "y2")]
    above = [f"{pixels(x)},{pixels(y)}" for x, y, _ in ends]
    below = [f"{pixels(x)},{pixels(y)}" for x, _, y in reversed(ends)]
    if ends:
        yield f'<path d="M{"L".join([*above, *below])}Z" fill="{place.mark["color"]}"/>'


def _texts(place: MarkPosition) -> Iterable[str]:
    mark, field = place.mark, place.encoding["text"]["field"]
    for row, (x, y) in place.points("x", "y"):
        middle = y + mark["fontSize"] * 0.3
        where = f'x="{pixels(x + mark["dx"])}" y="{pixels(middle)}"'
        look = f'font-size="{mark["fontSize"]}" fill="{place.colour(row)}"'
        yield f"<text {where} {look}>{xml(row[field])}</text>"


SHAPES: dict[str, Callable[[MarkPosition], Iterable[str]]] = {
    "area": _area,
    "bar": _bars,
    "line": _curve,
    "point": _circles,
    "rect": _rects,
    "rule": _rules,
    "text": _texts,
    "tick": _ticks,
}


def _element(shape: str, place: MarkPosition, row: Datum) -> str:
    """Return a shape as an SVG element, with a tooltip if the layer has one."""
    tooltip = place.encoding.get("tooltip")
    if not tooltip:
        return f"<{shape}/>"
    lines = (f"{one['title']}: {_tooltip_value(one, row)}" for one in tooltip)
    name = shape.partition(" ")[0]
    return f"<{shape}><title>{xml(chr(10).join(lines))}</title></{name}>"


def _tooltip_value(field: Spec, row: Datum) -> str:
    value = row[field["field"]]
    if value is None or isinstance(value, str):
        return value or ""
    if not _is_drawable(value):
        return "out of range"
    return number(float(value), field.get("format"))


def pixels(value: float) -> str:
    """Return a coordinate with at most two decimals.

    >>> pixels(12.0), pixels(0.3333), pixels(-0.001)
    ('12', '0.33', '0')
    """
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def xml(text: object) -> str:
    """Return a string escaped for XML; characters that XML does not allow are replaced."""
    return escape(NOT_XML.sub("\N{REPLACEMENT CHARACTER}", str(text)))
