"""Tabulated functions of one variable, one function per class, in numpy and ONNX."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from calibrators.errors import ParameterError
from calibrators.export.onnx import Builder
from calibrators.numerics.parallel import Floats

FEWER = 16


def check_rising(name: str, table: Floats, least: int = 1) -> None:
    """Raise unless a table, or each row of a 2-D one, is finite, non-decreasing and long enough."""
    if table.shape[-1] < least:
        raise ParameterError(
            "bad_parameter", f"{name} must contain at least {least} number, got shape {table.shape}"
        )
    broken = ~np.isfinite(table)
    broken[..., 1:] |= table[..., 1:] < table[..., :-1]
    refuse(name, "be finite and non-decreasing", table, broken)


def check_shares(name: str, table: Floats) -> None:
    """Raise unless all values lie in [0, 1]."""
    refuse(name, "lie in [0, 1]", table, ~((table >= 0) & (table <= 1)))


def refuse(name: str, rule: str, table: Floats, broken: NDArray[np.bool_]) -> None:
    """Raise a ParameterError that names the first invalid value of a map's array, if any."""
    if broken.any():
        place = np.argwhere(broken)[0].tolist()
        value = table[tuple(place)]
        raise ParameterError("bad_parameter", f"{name} must {rule}, got {value:g} at {place}")


def stacked(tables: list[Floats]) -> Floats:
    """Return tables of different lengths as rows (c, t), padded by repeating their last values.

    >>> stacked([np.array([0.1]), np.array([0.2, 0.5])]).tolist()
    [[0.1, 0.1], [0.2, 0.5]]
    """
    longest = max(table.size for table in tables)
    return np.stack([np.pad(table, (0, longest - table.size), mode="edge") for table in tables])


def count_below(values: Floats, edges: Floats, *, or_equal: bool = False) -> NDArray[np.intp]:
    """Return the number of ``edges`` (c, t) of the same column below each of ``values`` (n, c).

    >>> count_below(np.array([[0.5, 0.5]]), np.array([[0.1, 0.5], [0.1, 0.4]])).tolist()
    [[1, 2]]
    """
    count = np.zeros(values.shape, dtype=np.intp)
    if not _is_low(values):
        side: Literal["left", "right"] = "right" if or_equal else "left"
        for k, own in enumerate(edges):
            count[:, k] = np.searchsorted(own, values[:, k], side)
        return count
    length, flat = edges.shape[1], edges.ravel()
    begin = np.arange(len(edges)) * length - 1
    for step in reversed(range(length.bit_length())):
        further = count + 2**step
        edge = flat.take(np.minimum(further, length) + begin)
        passed = (edge <= values if or_equal else edge < values) & (further <= length)
        count += passed.astype(np.intp) << step
    return count


def interpolated(values: Floats, nodes: Floats, heights: Floats) -> Floats:
    """Return an array (n, c) with the columns ``np.interp(values[:, c], nodes[c], heights[c])``."""
    if not _is_low(values):
        new = np.empty_like(values)
        for k, (own, high) in enumerate(zip(nodes, heights, strict=True)):
            new[:, k] = np.interp(values[:, k], own, high)
        return new
    last = nodes.shape[1] - 1
    begin = np.arange(len(nodes)) * (last + 1)
    inside = np.maximum(values, nodes[:, 0])
    left = np.maximum(count_below(values, nodes, or_equal=True) - 1, 0)
    right = np.minimum(left + 1, last)
    x, x_right = (nodes.ravel().take(one + begin) for one in (left, right))
    y, y_right = (heights.ravel().take(one + begin) for one in (left, right))
    slope = np.zeros_like(y)
    np.divide(y_right - y, x_right - x, out=slope, where=x_right > x)
    return np.asarray(slope * (inside - x) + y)


def _is_low(values: Floats) -> bool:
    """Return True if processing all classes at once is faster, because there are few rows."""
    return bool(FEWER * len(values) < values.shape[1])


def onnx_count_below(graph: Builder, values: str, edges: Floats, *, or_equal: bool = False) -> str:
    """Add ``count_below`` to an ONNX graph; return the name of the counts, int64 (n, c).

    The graph is an unrolled binary search with log2(t) comparisons and no array larger than the
    input.
    """
    classes, length = edges.shape
    steps = length.bit_length()
    padded = np.full((classes, 2**steps - 1), np.inf)
    padded[:, :length] = edges
    table = graph.constant(padded.ravel(), np.float64)
    begin = graph.constant(np.arange(classes)[np.newaxis] * padded.shape[1] - 1, np.int64)
    count = graph.constant(np.zeros((1, classes)), np.int64)
    for step in reversed(range(steps)):
        further = graph.add("Add", count, graph.constant(2**step, np.int64))
        edge = graph.add("Gather", table, graph.add("Add", further, begin))
        # "edge <= value" is written as "not value < edge", as calibrd.torch has no "LessOrEqual"
        passed = (
            graph.add("Not", graph.add("Less", values, edge))
            if or_equal
            else graph.add("Less", edge, values)
        )
        count = graph.add("Where", passed, further, count)
    return count


def onnx_interpolated(graph: Builder, values: str, nodes: Floats, heights: Floats) -> str:
    """Add ``np.interp(values[:, c], nodes[c], heights[c])`` in doubles (n, c) to an ONNX graph."""
    widths, rises = np.diff(nodes), np.diff(heights)
    slopes = np.zeros_like(nodes)
    np.divide(rises, widths, out=slopes[:, :-1], where=widths > 0)
    inside = graph.add("Max", values, graph.constant(nodes[:, 0], np.float64))
    inside = graph.add("Min", inside, graph.constant(nodes[:, -1], np.float64))
    count = onnx_count_below(graph, inside, nodes, or_equal=True)
    begin = np.arange(len(nodes))[np.newaxis] * nodes.shape[1] - 1
    place = graph.add("Add", count, graph.constant(begin, np.int64))
    left, height, slope = (
        graph.add("Gather", graph.constant(table.ravel(), np.float64), place)
        for table in (nodes, heights, slopes)
    )
    return graph.add("Add", height, graph.add("Mul", graph.add("Sub", inside, left), slope))


def onnx_confidence(graph: Builder, log_odds: str) -> str:
    """Add ``1 / (1 + exp(-log_odds))`` in doubles to an ONNX graph."""
    one = graph.constant(1.0, np.float64)
    odds_against = graph.add("Exp", graph.add("Neg", log_odds))
    return graph.add("Reciprocal", graph.add("Add", one, odds_against))


def onnx_log_odds(graph: Builder, confidence: str) -> str:
    """Add ``log(c / (1 - c))`` in doubles, infinite at 0 and 1, to an ONNX graph."""
    rest = graph.add("Sub", graph.constant(1.0, np.float64), confidence)
    return graph.add("Sub", graph.add("Log", confidence), graph.add("Log", rest))
