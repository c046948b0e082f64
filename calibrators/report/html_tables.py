"""A report's content as HTML tables and lists; all strings are escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calibrators.metrics import Interval, NoiseFloor
    from calibrators.metrics.catalogue import Metric
    from calibrators.report.by_class import ClassRow
    from calibrators.report.by_segment import SegmentRow, SegmentSide
    from calibrators.report.by_temperature import TemperatureCell
    from calibrators.report.measurement import Bin
    from calibrators.report.report import Report

WORST = 10
NOISE_FLOOR = (
    "The ECE that a perfectly calibrated model with these confidences would have on the same "
    "number of rows. An ECE below its 95 % quantile is no evidence of miscalibration."
)


def metrics(report: Report) -> str:
    """Return the table of metrics, with intervals, noise floor, and definitions as tooltips."""
    level = f"with a {100 * report.level:g} % interval below each value"
    names = [*report.sides, *(["change"] if report.before else [])]
    rows = []
    for row in report.rows():
        metric = row.metric
        shown = {"before": row.before, "after": row.after, "change": row.change}
        intervals = {name: side.intervals for name, side in report.sides.items()}
        intervals["change"] = report.change
        cells = [
            _figure(shown[name], intervals[name], metric, signed=name == "change") for name in names
        ]
        rows.append((_defined(metric.title, metric.meaning), *cells))
        if metric.name == "ece":
            floors = [_floor(metric, side.noise_floor) for side in report.sides.values()]
            rows.append(
                (
                    _defined("noise floor of the ECE", NOISE_FLOOR),
                    *floors,
                    *([""] if report.before else []),
                )
            )
    head = names if report.before else ["value"]
    return _table(("metric", *head), rows, caption=level)


def definitions(report: Report) -> str:
    """Return the definitions of the metrics, for devices without tooltips."""
    meanings = {row.metric.title: row.metric.meaning for row in report.rows()}
    return _folded("Definitions of the metrics", facts({**meanings, "noise floor": NOISE_FLOOR}))


def _defined(title: str, meaning: str) -> str:
    return f'<abbr title="{escape(meaning)}">{escape(title)}</abbr>'


def _figure(text: str, intervals: Mapping[str, Interval], metric: Metric, *, signed: bool) -> str:
    interval = intervals.get(metric.name)
    bounds = "" if interval is None else f"<small>{metric.bounds(interval, signed=signed)}</small>"
    return _minus(escape(text) + bounds)


def _floor(metric: Metric, floor: NoiseFloor) -> str:
    return f"{metric.text(floor.mean)}<small>up to {metric.text(floor.quantile95)}</small>"


def classes(report: Report) -> str:
    """Return the table of the worst classes; all but the first few are collapsed."""
    if not report.by_class:
        return "<p>This report predates the table of classes.</p>"
    shown, more = report.by_class[:WORST], report.by_class[WORST:]
    words = (
        f"all {report.k:,} classes"
        if len(shown) == report.k
        else (f"{len(shown)} of {report.k:,} classes")
    )
    table = _class_table(shown, f"{words}, largest class-wise ECE first")
    return table + (_folded(f"the next {len(more)}", _class_table(more)) if more else "")


def _class_table(rows: Sequence[ClassRow], caption: str = "") -> str:
    sides = ("before", "after") if rows[0].before else ("after",)
    suffixes = [f", {side}" if len(sides) == 2 else "" for side in sides]
    head = ["class", "rows", "predicted", "frequency"]
    head += [f"mean probability{side}" for side in suffixes] + [
        f"class-wise ECE{side}" for side in suffixes
    ]
    return _table(head, (_class_cells(row) for row in rows), caption)


def _class_cells(row: ClassRow) -> list[str]:
    sides = [side for side in (row.before, row.after) if side is not None]
    predicted = dict.fromkeys(f"{side.predicted:,}" for side in sides)
    shares = (row.frequency, *(side.probability for side in sides), *(side.ece for side in sides))
    figures = [f"{100 * share:.3f} %" for share in shares]
    return [str(row.label), f"{row.rows:,}", " \N{RIGHTWARDS ARROW} ".join(predicted), *figures]


def segments(report: Report) -> str:
    """Return the table of the largest segments, worst first; empty if there are no segments."""
    if not report.by_segment:
        return ""
    shown, more = report.by_segment[:WORST], report.by_segment[WORST:]
    words = (
        f"all {report.segments:,} segments"
        if len(shown) == report.segments
        else f"{len(shown)} of {report.segments:,} segments"
    )
    table = _segment_table(
        shown, f"{words}, sorted by the ECE minus the 95 % quantile of its noise floor"
    )
    table += _folded(f"the next {len(more)}", _segment_table(more)) if more else ""
    left_out = report.segments - len(report.by_segment)
    return table + (f"<p>{left_out:,} smaller segments are not shown.</p>" if left_out else "")


def _segment_table(rows: Sequence[SegmentRow], caption: str = "") -> str:
    sides = [", before", ", after"] if rows[0].before else [""]
    figures = [f"{one}{side}" for one in ("accuracy", "mean confidence", "ECE") for side in sides]
    return _table(["segment", "rows", *figures], (_segment_cells(row) for row in rows), caption)


def _segment_cells(row: SegmentRow) -> list[str]:
    sides = [side for side in (row.before, row.after) if side is not None]
    shares = [side.accuracy for side in sides] + [side.confidence for side in sides]
    errors = [_error_and_floor(side) for side in sides]
    return [escape(row.name), f"{row.rows:,}", *(f"{100 * one:.2f} %" for one in shares), *errors]


def _error_and_floor(side: SegmentSide) -> str:
    floor = side.noise_floor
    bounds = f"{100 * floor.mean:.2f} %, up to {100 * floor.quantile95:.2f} %"
    return f"{100 * side.ece:.2f} %<small>floor {bounds}</small>"


def temperatures(report: Report) -> str:
    """Return the table of temperatures by margin, collapsed."""
    return _folded("temperatures", _cells(report.temperatures)) if report.temperatures else ""


def _cells(cells: Sequence[TemperatureCell]) -> str:
    rows = [
        (
            f"{cell.lower:.2f} to {cell.upper:.2f}",
            f"{cell.rows:,}",
            f"{cell.temperature:.3f}",
            f"{cell.low:.3f} to {cell.high:.3f}",
        )
        for cell in cells
    ]
    return _table(("margin", "rows", "mean temperature", "middle 80 %"), rows)


def reliability(report: Report) -> str:
    """Return the reliability tables, collapsed."""
    tables = []
    for binning in ("equal_width", "equal_mass"):
        for name, side in report.sides.items():
            words = binning.replace("_", " ") + (f", {name}" if report.before else "")
            tables.append(_folded(words, _bins(getattr(side, binning))))
    return "".join(tables)


def _folded(words: str, content: str) -> str:
    return f"<details><summary>{escape(words)}</summary>{content}</details>"


def _bins(bins: tuple[Bin, ...]) -> str:
    rows = []
    for one in bins:
        figures: Iterable[str] = ("", "", "", "")
        if one.gap is not None and one.accuracy_low is not None:
            figures = (
                f"{one.confidence:.4f}",
                f"{one.accuracy:.4f}",
                f"{one.gap:+.4f}",
                f"[{one.accuracy_low:.4f}, {one.accuracy_high:.4f}]",
            )
        edges = f"{one.lower:.4f} to {one.upper:.4f}"
        count = f"{one.count:,.1f}".removesuffix(".0")
        rows.append((edges, count, *(_minus(figure) for figure in figures)))
    head = ("bin", "rows", "mean confidence", "accuracy", "gap", "accuracy interval")
    return _table(head, rows)


def _table(head: Iterable[str], rows: Iterable[Iterable[str]], caption: str = "") -> str:
    """Return a table, given cells that are already HTML."""
    top = "".join(f'<th scope="col">{escape(one)}</th>' for one in head)
    lines = []
    for first, *rest in rows:
        cells = "".join(f"<td>{one}</td>" for one in rest)
        lines.append(f'<tr><th scope="row">{first}</th>{cells}</tr>')
    label = f"<caption>{escape(caption)}</caption>" if caption else ""
    body = f"<thead><tr>{top}</tr></thead><tbody>{''.join(lines)}</tbody>"
    return f'<div class="scroll" tabindex="0"><table>{label}{body}</table></div>'


def facts(entries: Mapping[str, Any]) -> str:
    """Return a mapping from names to plain JSON values as a definition list."""
    lines = (f"<dt>{_words(name)}</dt><dd>{plain(one)}</dd>" for name, one in entries.items())
    return f"<dl>{''.join(lines)}</dl>"


def plain(value: Any) -> str:
    """Return a plain JSON value as HTML: intervals with bounds, lists of objects as tables.

    >>> plain({"folds": 4, "ece": {"value": 0.5, "low": 0.25, "high": 0.75}})
    'folds 4, ece 0.5 <small>[0.25, 0.75]</small>'
    """
    if value is None or value == [] or value == {}:
        return "none"
    match value:
        case bool():
            return "yes" if value else "no"
        case int():
            return _minus(f"{value:,}")
        case float():
            return _minus(f"{value:.4g}")
        case {"value": float(), "low": float(), "high": float()}:
            bounds = f"[{plain(value['low'])}, {plain(value['high'])}]"
            return f"{plain(value['value'])} <small>{bounds}</small>"
        case [{}, *_] if all(isinstance(one, dict) and one for one in value):
            names = list(dict.fromkeys(name for one in value for name in one))
            names.sort(key=lambda name: not isinstance(value[0].get(name), str))  # words first
            rows = [[plain(one.get(name)) for name in names] for one in value]
            return _table([str(name).replace("_", " ") for name in names], rows)
        case dict():
            return ", ".join(f"{_words(name)} {plain(one)}" for name, one in value.items())
        case list():
            return ", ".join(map(plain, value))
    return escape(str(value))


def _words(name: object) -> str:
    return escape(str(name).replace("_", " "))


def _minus(text: str) -> str:
    return re.sub(r"(?<![\w.])-(?=\d)", "\N{MINUS SIGN}", text)
