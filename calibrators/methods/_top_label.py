"""Base classes for methods that recalibrate the confidence of the top label.

Logits are first divided by the exact temperature of temperature scaling. A method then gives the
predicted class a new confidence, which is a function of its old one. The other classes share the
rest in their old proportions, so the same number is added to all of their logits. The predicted
class is kept: if its new confidence would fall to the probability of the second class, it stays one
part in ten thousand above that probability, so that the largest entry of a row is unique.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from calibrators.base import CalibrationMap, TemperatureTypeMap
from calibrators.data import CalibrationSet
from calibrators.export.onnx import DOUBLE, FLOAT, Builder
from calibrators.fitting.context import FitContext
from calibrators.methods._after_temperature import AfterTemperature
from calibrators.methods.temperature import TemperatureMap, check_temperature
from calibrators.numerics.parallel import Floats, Scratch, map_blocks
from calibrators.numerics.softmax import rewritten

AHEAD = 1e-4


@dataclass(frozen=True, eq=False, kw_only=True)
class TopLabelMap(CalibrationMap):
    """A new confidence for the predicted class of ``softmax(logits / base_temperature)``.

    Confidences are represented by log odds, ``log(c / (1 - c))``, which never saturate.
    """

    keeps_class = True

    base_temperature: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_temperature(self.base_temperature)

    @abstractmethod
    def _recalibrated(self, log_odds: Floats) -> Floats:
        """Return the new log odds (n,) of the top label in float64; they may be infinite."""

    @abstractmethod
    def _onnx_recalibrated(self, graph: Builder, log_odds: str) -> str:
        """Add ``_recalibrated`` of a column of doubles to a graph; return the output's name."""

    def _transform(self, logits: Floats) -> Floats:
        def write(block: Floats, largest: Floats, target: Floats) -> None:
            np.subtract(block, largest, out=target)
            target *= logits.dtype.type(1 / self.base_temperature)
            top = block.argmax(axis=1)[:, np.newaxis]
            np.put_along_axis(target, top, -np.inf, axis=1)
            second = target.max(axis=1)
            target += self._shift(target, second)[:, np.newaxis]
            np.put_along_axis(target, top, 0, axis=1)

        return rewritten(logits, write)

    def _shift(self, others: Floats, second: Floats) -> Floats:
        """Return the shift (n,) of the other classes' logits, relative to a top logit of 0."""
        log_odds = -log_sum(others, second)
        alone = np.isinf(log_odds)
        log_odds[alone] = 0
        shift = log_odds - self._recalibrated(log_odds)
        shift[alone] = 0
        limit = np.maximum(-np.where(alone, 0, second) - AHEAD, 0)
        return np.asarray(np.minimum(shift, limit).astype(second.dtype))

    def onnx_logits(self, graph: Builder, logits: str) -> str:
        """Add to an ONNX graph the logits with the top one at 0 and the others shifted."""
        others = onnx_others(graph, logits, self.k, self.base_temperature)
        shift = graph.add("Sub", others.log_odds, self._onnx_recalibrated(graph, others.log_odds))
        return others.shifted(graph, shift)


class OnnxOthers(NamedTuple):
    """Names of tensors in an ONNX graph, for all classes but the predicted one.

    ``logits`` (n, k) are relative to the top logit, and -inf for the predicted class itself.
    ``alone`` (n, 1) marks rows in which no other logit is finite. ``reach`` (n, 1) is the largest
    of the logits, or 0 in such rows. ``log_odds`` (n, 1) are the log odds of the predicted class,
    in doubles.
    """

    logits: str
    is_top: str
    alone: str
    reach: str
    log_odds: str

    def shifted(self, graph: Builder, shift: str) -> str:
        """Add ``shift``, doubles (n, 1), to the other logits; return the name of the result."""
        limit = graph.add("Sub", graph.add("Neg", self.reach), graph.constant(AHEAD))
        limit = graph.add("Relu", limit)
        shift = graph.add("Min", graph.add("Cast", shift, to=FLOAT), limit)
        shift = graph.add("Where", self.alone, graph.constant(0.0), shift)
        moved = graph.add("Add", self.logits, shift)
        return graph.add("Where", self.is_top, graph.constant(0.0), moved)


def onnx_others(graph: Builder, logits: str, k: int, temperature: float) -> OnnxOthers:
    """Add the tensors of ``OnnxOthers`` for ``logits / temperature`` to an ONNX graph."""
    axis = graph.constant([1], np.int64)
    largest = graph.add("ReduceMax", logits, axis, keepdims=1)
    inverse = graph.constant(1 / temperature)
    scaled = graph.add("Mul", graph.add("Sub", logits, largest), inverse)
    place = graph.add("ArgMax", logits, axis=1, keepdims=1)
    is_top = graph.add("Equal", place, graph.constant(np.arange(k), np.int64))
    others = graph.add("Where", is_top, graph.constant(-np.inf), scaled)
    second = graph.add("ReduceMax", others, axis, keepdims=1)
    alone = graph.add("IsInf", second)
    # in a row with a single finite logit, the others stay at -inf
    reach = graph.add("Where", alone, graph.constant(0.0), second)
    wide = graph.add("Cast", graph.add("Sub", others, reach), to=DOUBLE)
    total = graph.add("ReduceSum", graph.add("Exp", wide), axis, keepdims=1)
    total = graph.add("Where", alone, graph.constant(1.0, np.float64), total)
    rest = graph.add("Add", graph.add("Log", total), graph.add("Cast", reach, to=DOUBLE))
    return OnnxOthers(others, is_top, alone, reach, graph.add("Neg", rest))


def log_sum(others: Floats, second: Floats, precision: DTypeLike = np.float64) -> Floats:
    """Return ``log sum exp`` of each row (n,) in float64, given the row maxima ``second``.

    The result is -inf if the maximum is -inf. ``precision`` is the dtype of the exponentials;
    float32 is three times as fast, but maps need float64. Otherwise, where a map's function is
    steep, the map would differ from its ONNX form, which sums in float64.
    """
    reach = np.where(np.isinf(second), 0, second)
    terms = np.exp(others - reach[:, np.newaxis], dtype=precision)
    total = terms.sum(axis=1, dtype=np.float64)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(total) + reach)


def confidence_of(log_odds: Floats) -> Floats:
    """Return ``1 / (1 + exp(-log_odds))`` without overflow."""
    with np.errstate(under="ignore"):
        return np.asarray(np.exp(-np.logaddexp(0, -log_odds)))


def log_odds_of(confidence: Floats) -> Floats:
    """Return ``log(c / (1 - c))``; infinite at 0 and 1."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(confidence) - np.log1p(-confidence))


@dataclass(frozen=True)
class TopLabelCalibrator(AfterTemperature):
    """Temperature scaling, then a function of the top label's confidence."""

    def _fit_scaled(
        self, data: CalibrationSet, base: TemperatureMap, context: FitContext
    ) -> CalibrationMap:
        log_odds, correct = top_label(data, base)
        finite = np.isfinite(log_odds)
        return self._fit_confidence(log_odds[finite], correct[finite], base, context)

    @abstractmethod
    def _fit_confidence(
        self, log_odds: Floats, correct: Floats, base: TemperatureMap, context: FitContext
    ) -> TopLabelMap:
        """Fit on each row's log odds (float64) and the correctness (0.0 or 1.0) of its prediction.

        The map takes ``k``, ``kind`` and the temperature from ``base``. Rows with a single finite
        logit have infinite log odds and are left out, as they are certain under any map.
        """


def top_label(data: CalibrationSet, base: TemperatureTypeMap) -> tuple[Floats, Floats]:
    """Return the predicted class's log odds (n,) after ``base``, and 1.0 where it is correct."""

    def work(start: int, stop: int, scratch: Scratch) -> tuple[Floats, Floats]:
        block = data.logits[start:stop]
        scaled, top = base._transform(block), block.argmax(axis=1)
        np.put_along_axis(scaled, top[:, np.newaxis], -np.inf, axis=1)
        return -log_sum(scaled, scaled.max(axis=1), scaled.dtype), top == data.labels[start:stop]

    log_odds, correct = zip(*map_blocks(work, data.n, data.k), strict=True)
    return np.concatenate(log_odds), np.concatenate(correct).astype(np.float64)
