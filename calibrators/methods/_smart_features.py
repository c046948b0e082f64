"""Indicators from which SMART derives each sample's temperature; the default is the margin."""

from __future__ import annotations

from typing import Literal

import numpy as np

from calibrators.export.onnx import DOUBLE, Builder
from calibrators.numerics.parallel import Floats
from calibrators.numerics.softmax import margins, softmax

Indicator = Literal["margin", "entropy", "confidence", "max_logit", "max_minus_mean", "all_logits"]


def indicate(name: Indicator, logits: Floats, temperature: float) -> Floats:
    """Return an indicator of ``logits / temperature`` in float64.

    The result has shape (n, 1), or (n, k) for "all_logits", and is finite for every row that has a
    softmax. A row with a single finite logit has margin 0, as its probability is 1 at any
    temperature. Means are taken over finite logits, and -inf is treated as the row's smallest
    finite logit.

    >>> indicate("margin", np.array([[3.0, 1.0, 0.0]]), 2.0).tolist()
    [[1.0]]
    """
    if name == "all_logits":
        finite = np.isfinite(logits)
        lowest = np.where(finite, logits, np.inf).min(axis=1, keepdims=True)
        return np.where(finite, logits, lowest).astype(np.float64) / temperature
    return _one_number(name, logits, temperature)[:, np.newaxis]


def _one_number(name: Indicator, logits: Floats, temperature: float) -> Floats:
    if name == "margin":
        margin = margins(logits).astype(np.float64)
        margin[np.isinf(margin)] = 0.0
        return np.asarray(margin / temperature)
    largest = logits.max(axis=1).astype(np.float64)
    if name == "max_logit":
        return np.asarray(largest / temperature)
    if name == "max_minus_mean":
        mean = logits.mean(axis=1, dtype=np.float64, where=np.isfinite(logits))
        return np.asarray((largest - mean) / temperature)
    probabilities = softmax(logits.astype(np.float64), lambda _: 1 / temperature)
    if name == "confidence":
        return np.asarray(probabilities.max(axis=1))
    logs = np.log(probabilities, out=np.zeros_like(probabilities), where=probabilities > 0)
    return np.asarray(-(probabilities * logs).sum(axis=1))


def sorted_gaps(logits: Floats, count: int, temperature: float) -> Floats:
    """Return the gaps (n, count) from the largest of ``logits / temperature`` to the next ones.

    They are float64 and never decrease along a row. A gap to -inf is replaced by the row's largest
    finite gap, or by 0 if there is none.

    >>> sorted_gaps(np.array([[3.0, 1.0, 0.0], [0.0, 5.0, -np.inf]]), 2, 1.0).tolist()
    [[2.0, 3.0], [5.0, 5.0]]
    """
    largest = np.sort(np.partition(logits, -count - 1, axis=1)[:, -count - 1 :], axis=1)
    largest = largest[:, ::-1].astype(np.float64)
    gaps = (largest[:, :1] - largest[:, 1:]) / temperature
    finite = np.where(np.isfinite(gaps), gaps, 0.0)
    return np.asarray(np.maximum.accumulate(finite, axis=1))


def onnx_sorted_gaps(graph: Builder, logits: str, count: int, temperature: float) -> str:
    """Add ``sorted_gaps`` to an ONNX graph; return the output's name."""
    wide = graph.add("Cast", logits, to=DOUBLE)
    top = graph.add("TopK", wide, graph.constant([count + 1], np.int64), axis=1)
    axis = graph.constant([1], np.int64)
    largest = graph.add("ReduceMax", top, axis, keepdims=1)
    others = graph.add("Slice", top, axis, graph.constant([count + 1], np.int64), axis)
    gaps = graph.add("Sub", largest, others)
    gaps = graph.add("Div", gaps, graph.constant(temperature, np.float64))
    none = graph.constant(0.0, np.float64)
    finite = graph.add("Where", graph.add("IsInf", gaps), none, gaps)
    widest = graph.add("ReduceMax", finite, axis, keepdims=1)
    return graph.add("Where", graph.add("IsInf", gaps), widest, gaps)


def onnx_indicator(name: Indicator, graph: Builder, logits: str, temperature: float) -> str:
    """Add ``indicate`` to an ONNX graph; return the output's name."""
    wide = graph.add("Cast", logits, to=DOUBLE)
    scaled = graph.add("Div", wide, graph.constant(temperature, np.float64))
    axis = graph.constant([1], np.int64)

    def along(operation: str, tensor: str) -> str:
        return graph.add(operation, tensor, axis, keepdims=1)

    def where_infinite(tensor: str, otherwise: str, value: float | str) -> str:
        chosen = value if isinstance(value, str) else graph.constant(value, np.float64)
        return graph.add("Where", graph.add("IsInf", tensor), chosen, otherwise)

    if name == "all_logits":
        lowest = along("ReduceMin", where_infinite(scaled, scaled, np.inf))
        return where_infinite(scaled, scaled, lowest)
    if name == "margin":
        two = graph.add("TopK", scaled, graph.constant([2], np.int64), axis=1)
        margin = along("ReduceSum", graph.add("Mul", two, graph.constant([[1, -1]], np.float64)))
        return where_infinite(margin, margin, 0.0)
    if name == "max_logit":
        return along("ReduceMax", scaled)
    if name == "max_minus_mean":
        total = along("ReduceSum", where_infinite(scaled, scaled, 0.0))
        finite = graph.add("Not", graph.add("IsInf", scaled))
        count = along("ReduceSum", graph.add("Cast", finite, to=DOUBLE))
        return graph.add("Sub", along("ReduceMax", scaled), graph.add("Div", total, count))
    probabilities = graph.add("Softmax", scaled, axis=1)
    if name == "confidence":
        return along("ReduceMax", probabilities)
    logs = graph.add("Log", graph.add("Max", probabilities, graph.constant(1e-300, np.float64)))
    return graph.add("Neg", along("ReduceSum", graph.add("Mul", probabilities, logs)))
