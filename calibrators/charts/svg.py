"""Draw a subset of Vega-Lite as SVG in plain Python.

The subset contains what the charts of reports use: concatenated panels of layers, with linear and
nominal positions, nominal colours, titles and a legend. ``render.can_draw`` checks whether a chart
is within the subset.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from calibrators.charts.marks import Datum, MarkPosition, drawn, pixels, right_end, value_in, xml
from calibrators.charts.scales import (
    Bands,
    Linear,
    Scale,
    linear_scale,
    text_width,
    tick_labels,
)
from calibrators.charts.theme import CONFIG, FONT, Spec

AXIS, TITLE, LEGEND = CONFIG["axis"], CONFIG["title"], CONFIG["legend"]
LABEL, HEADING = AXIS["labelFontSize"], AXIS["titleFontSize"]
TICK = 5
GAP = 2  # between a tick and its label
LINE = 1.18  # height of a line of text, in font sizes
SWATCH = 10
LEGEND_GAP = 18


@dataclass
class SvgBlock:
    """A part of a chart, drawn around its origin, with its extent in each direction."""

    left: float = 0.0
    top: float = 0.0
    right: float = 0.0
    bottom: float = 0.0
    parts: list[str] = field(default_factory=list)

    def place(self, other: SvgBlock, x: float, y: float) -> None:
        """Add another block with its origin at (x, y)."""
        moved = f'<g transform="translate({pixels(x)},{pixels(y)})">'
        self.parts.append(f"{moved}{''.join(other.parts)}</g>" if x or y else "".join(other.parts))
        self.left, self.right = max(self.left, other.left - x), max(self.right, other.right + x)
        self.top, self.bottom = max(self.top, other.top - y), max(self.bottom, other.bottom + y)


def draw(spec: Spec) -> str:
    """Return a chart as SVG text."""
    block = _block(spec, [])
    _add_legend(block, spec)
    pad = spec.get("padding", 0)
    width, height = block.left + block.right + 2 * pad, block.top + block.bottom + 2 * pad
    size = f'width="{pixels(width)}" height="{pixels(height)}"'
    ground = str(spec.get("background", "white"))
    paper = "" if ground == "transparent" else f'<rect {size} fill="{xml(ground)}"/>'
    origin = f"translate({pixels(block.left + pad)},{pixels(block.top + pad)})"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="{FONT}" '
        f'viewBox="0 0 {pixels(width)} {pixels(height)}">'
        f"<title>{xml(spec.get('description', ''))}</title>{paper}"
        f'<g transform="{origin}">{"".join(block.parts)}</g></svg>'
    )


def _block(spec: Spec, rows: list[Datum]) -> SvgBlock:
    """Return a panel, or several panels in a row or column, with the title above."""
    rows = spec["data"]["values"] if "data" in spec else rows
    if "hconcat" in spec or "vconcat" in spec:
        across = "hconcat" in spec
        children = [_block(one, rows) for one in spec["hconcat" if across else "vconcat"]]
        block = _joined(children, spec.get("spacing", 20), across=across)
    else:
        block = _panel(spec, rows)
    _add_title(block, spec.get("title"))
    return block


def _joined(children: list[SvgBlock], spacing: float, *, across: bool) -> SvgBlock:
    block, x, y = SvgBlock(), 0.0, 0.0
    for place, child in enumerate(children):
        if place and across:
            x = block.right + spacing + child.left
        elif place:
            y = block.bottom + spacing + child.top
        block.place(child, x, y)
    return block


def _panel(spec: Spec, rows: list[Datum]) -> SvgBlock:
    layers = [_Layer.of(one, rows) for one in spec.get("layer", [spec])]
    x, y = (_scale(layers, channel, spec) for channel in ("x", "y"))
    width = float(spec["width"])
    height = y.step * len(y.names) if isinstance(y, Bands) else float(spec["height"])
    block = SvgBlock(right=width, bottom=height)
    _add_x_axis(block, x, _axis(layers, "x"), width, height)
    _add_y_axis(block, y, _axis(layers, "y"), width, height)
    places = [MarkPosition(one.mark, one.encoding, one.rows, x, y) for one in layers]
    block.parts += [drawn(place) for place in places]
    block.right = max(block.right, *(right_end(place) for place in places))
    return block


@dataclass(frozen=True)
class _Layer:
    mark: Spec
    encoding: Spec
    rows: list[Datum]

    @classmethod
    def of(cls, spec: Spec, rows: list[Datum]) -> _Layer:
        own = spec["data"]["values"] if "data" in spec else rows
        return cls(spec["mark"], spec["encoding"], own)


def _scale(layers: list[_Layer], channel: str, panel: Spec) -> Scale:
    """Return the scale that the layers of a panel share."""
    first = layers[0].encoding[channel]
    if first["type"] == "nominal":
        names = dict.fromkeys(row[first["field"]] for row in layers[0].rows)
        return Bands(tuple(names), panel["height"]["step"])
    values = list(_values(layers, channel))
    axis = first.get("axis") or {}
    size = float(panel["width" if channel == "x" else "height"])
    made = linear_scale(first.get("scale", {}), axis, values, size)
    return made if channel == "x" else Linear(made.low, made.high, size, 0.0)


def _values(layers: list[_Layer], channel: str) -> Iterator[float]:
    for layer in layers:
        for name in (channel, f"{channel}2"):
            found = (value_in(layer.encoding.get(name), row) for row in layer.rows)
            yield from (float(one) for one in found if one is not None)


def _axis(layers: list[_Layer], channel: str) -> Spec | None:
    axis: Spec | None = layers[0].encoding[channel].get("axis", {})
    return axis


def _add_x_axis(block: SvgBlock, x: Scale, axis: Spec | None, width: float, height: float) -> None:
    if axis is None or not isinstance(x, Linear):
        return
    at = x.ticks(axis)
    stems = TICK if axis.get("ticks", True) else 0
    rules = [f"M{pixels(x(one) + 0.5)},0.5V{pixels(height + 0.5 + stems)}" for one in at]
    rules.append(f"M0.5,{pixels(height + 0.5)}H{pixels(width + 0.5)}")
    block.parts.append(_rules(rules))
    below = height + stems
    if axis.get("labels", True):
        below += GAP + LABEL
        labels = tick_labels(at, axis.get("format"))
        labelled = list(zip(at, labels, strict=True))[:: _every(labels, at, x)]
        shown = [(x(one), below, label) for one, label in labelled]
        block.parts.append(_texts("axis-label", shown, LABEL, AXIS["labelColor"], "middle"))
        ends = [where + text_width(label, LABEL) / 2 for where, _, label in shown]
        block.right = max([block.right, *ends])
    for place, line in enumerate(_lines(axis.get("title"))):
        below += HEADING * LINE + (0 if place else GAP)
        where = [(width / 2, below, line)]
        block.parts.append(_texts("axis-title", where, HEADING, AXIS["titleColor"], "middle"))
    block.bottom = max(block.bottom, below + GAP)


def _every(labels: list[str], at: list[float], x: Linear) -> int:
    """Return 1 if all labels fit, 2 if only every second label fits, and so on."""
    if len(at) < 2:
        return 1
    room = abs(x(at[1]) - x(at[0]))
    widest = max(text_width(one, LABEL) for one in labels) + 2 * GAP
    return max(1, -int(-widest // room))


def _add_y_axis(block: SvgBlock, y: Scale, axis: Spec | None, width: float, height: float) -> None:
    if axis is None:
        return
    size = axis.get("labelFontSize", LABEL)
    if isinstance(y, Bands):
        at, labels, stems = [*map(y, y.names)], [*y.names], 0
    else:
        values = y.ticks(axis)
        at, labels, stems = [*map(y, values)], tick_labels(values, axis.get("format")), TICK
        rules = [f"M{-stems + 0.5},{pixels(one + 0.5)}H{pixels(width + 0.5)}" for one in at]
        block.parts.append(_rules([*rules, f"M0.5,0.5V{pixels(height + 0.5)}"]))
    shown = [
        (-stems - GAP, one + size * 0.35, label) for one, label in zip(at, labels, strict=True)
    ]
    block.parts.append(_texts("axis-label", shown, size, AXIS["labelColor"], "end"))
    left = stems + GAP + max((text_width(one, size) for one in labels), default=0.0)
    for line in _lines(axis.get("title")):
        left += HEADING * LINE + 2 * GAP
        turned = (
            f'transform="translate({pixels(HEADING - 1 - left)},{pixels(height / 2)}) rotate(-90)"'
        )
        look = f'font-size="{HEADING}" fill="{AXIS["titleColor"]}" text-anchor="middle"'
        block.parts.append(f"<text {turned} {look}>{xml(line)}</text>")
    block.left, block.top = max(block.left, left), max(block.top, size / 2)


def _rules(paths: Iterable[str]) -> str:
    return f'<path class="role-axis-grid" d="{"".join(paths)}" stroke="{AXIS["gridColor"]}"/>'


def _texts(
    role: str, shown: Iterable[tuple[float, float, str]], size: float, fill: str, anchor: str
) -> str:
    texts = (
        f'<text x="{pixels(x)}" y="{pixels(y)}">{xml(text)}</text>' for x, y, text in shown if text
    )
    look = f'font-size="{size:g}" fill="{fill}" text-anchor="{anchor}"'
    return f'<g class="role-{role}" {look}>{"".join(texts)}</g>'


def _lines(text: Any) -> list[str]:
    return [] if text is None else text if isinstance(text, list) else [text]


def _add_title(block: SvgBlock, title: Spec | None) -> None:
    """Add a title and its subtitles above a block, at its left edge."""
    if title is None:
        return
    large, small = title.get("fontSize", TITLE["fontSize"]), TITLE["subtitleFontSize"]
    lines, x = _lines(title.get("subtitle")), -block.left
    below = -block.top - TITLE["offset"]
    first = below - len(lines) * small * LINE - (TITLE["subtitlePadding"] - 1 if lines else 0)
    heading = f'font-size="{large}" font-weight="bold" fill="{TITLE["color"]}"'
    text = xml(title["text"])
    block.parts.append(f'<text x="{pixels(x)}" y="{pixels(first)}" {heading}>{text}</text>')
    shown = [(x, below - (len(lines) - 1 - n) * small * LINE, line) for n, line in enumerate(lines)]
    block.parts.append(_texts("title-subtitle", shown, small, TITLE["subtitleColor"], "start"))
    widths = [text_width(title["text"], large, bold=True), *(text_width(s, small) for s in lines)]
    block.right = max(block.right, x + max(widths))
    block.top = -first + large


def _add_legend(block: SvgBlock, spec: Spec) -> None:
    """Add a legend below a block: a row of colours with their names."""
    found = dict(_colours(spec))
    if not found:
        return
    size, x, y = LEGEND["labelFontSize"], 0.0, block.bottom + LEGEND_GAP + SWATCH
    for name, (colour, is_round, opacity) in found.items():
        look = f'fill="{colour}" opacity="{opacity:g}"'
        middle = SWATCH / 2
        block.parts.append(
            f'<circle cx="{pixels(x + middle)}" cy="{pixels(y - middle)}" r="{middle:g}" {look}/>'
            if is_round
            else f'<rect x="{pixels(x)}" y="{pixels(y - SWATCH)}" width="{SWATCH}" '
            f'height="{SWATCH}" {look}/>'
        )
        start = x + SWATCH + 5
        shown = [(start, y - 1, name)]
        block.parts.append(_texts("legend-label", shown, size, LEGEND["labelColor"], "start"))
        x = start + text_width(name, size) + SWATCH
        block.right = max(block.right, x - SWATCH)
    block.bottom = y + 4


def _colours(spec: Spec) -> Iterator[tuple[str, tuple[str, bool, float]]]:
    """Yield the legend entries of a chart: each name with its colour, shape and opacity."""
    by = spec.get("encoding", {}).get("color")
    if by is not None and by.get("legend", True) is not None:
        look = spec["mark"]["type"] == "point", spec["mark"].get("opacity", 1)
        for name, colour in zip(by["scale"]["domain"], by["scale"]["range"], strict=True):
            yield name, (colour, *look)
    for name in ("layer", "hconcat", "vconcat"):
        for one in spec.get(name, []):
            yield from _colours(one)
