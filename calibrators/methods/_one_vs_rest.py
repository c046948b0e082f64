"""Base classes for methods that fit, for each class, a function of its own probability.

Let ``p = softmax(logits / T)`` with the T of temperature scaling. The new probability of class k is
``f_k(p_k)``, divided by the sum of the row, where f_k is fitted to the indicator of label k. A row
in which all classes get 0 keeps p.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from calibrators.base import CalibrationMap
from calibrators.data import CalibrationSet
from calibrators.export.onnx import DOUBLE, FLOAT, Builder
from calibrators.fitting.context import FitContext
from calibrators.methods._after_temperature import AfterTemperature
from calibrators.methods._top_label import log_sum
from calibrators.methods.temperature import TemperatureMap, check_temperature
from calibrators.numerics.parallel import BLOCK_ELEMENTS, Floats, Scratch, get_threads, map_blocks
from calibrators.numerics.softmax import rewritten

Bools = NDArray[np.bool_]
Part = TypeVar("Part")

# a fit holds about ten arrays per block, which stay in the cache if blocks are smaller
ARRAYS = 4
BLOCKS_A_STEP = 8
UNDERFLOW = 1e-290
COST_OF_CLASS = 32


@dataclass(frozen=True, eq=False)
class ClassShares:
    """Class probabilities and their logarithms in float64: (n, k), or (c, n) for c of the classes.

    ``top`` holds the positions of the largest probabilities. ``top_log_rest`` holds ``ln(1 - p)``
    at these positions, which cannot be recovered from p if p is near 1.
    """

    p: Floats
    log_p: Floats
    top: tuple[NDArray[np.intp], NDArray[np.intp]]
    top_log_rest: Floats

    def log_rest(self) -> Floats:
        """Return ``ln(1 - p)``; it is -inf if the logits of all other classes are -inf."""
        logs = -self.p
        logs[self.top] = 0
        np.log1p(logs, out=logs)
        logs[self.top] = self.top_log_rest
        return logs


@dataclass(frozen=True, eq=False, kw_only=True)
class OneVsRestMap(CalibrationMap):
    """A new probability for each class of ``softmax(logits / base_temperature)``; rows sum to 1.

    A class whose logit is -inf keeps probability 0.
    """

    keeps_class = False

    base_temperature: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_temperature(self.base_temperature)

    @property
    def row_cost(self) -> int:
        """Approximate number of values computed per row in addition to its logits."""
        return COST_OF_CLASS * self.k

    @abstractmethod
    def _log_probabilities(self, shares: ClassShares) -> Floats:
        """Return the logarithms (n, k) of the new, unnormalised probabilities in a new array.

        The values of classes with p = 0, whose logits are -inf, do not matter.
        """

    @abstractmethod
    def _onnx_log_probabilities(self, graph: Builder, shares: OnnxShares) -> str:
        """Add ``_log_probabilities`` in doubles (n, k) to a graph; return the output's name."""

    def _transform(self, logits: Floats) -> Floats:
        def write(block: Floats, largest: Floats, target: Floats) -> None:
            scaled = np.subtract(block, largest, dtype=np.float64)
            scaled *= 1 / self.base_temperature
            new = self._log_probabilities(_shares(scaled))
            new[np.isneginf(scaled)] = -np.inf
            all_zero = np.isneginf(new.max(axis=1))
            new[all_zero] = scaled[all_zero]
            target[...] = new

        return rewritten(logits, write)

    def onnx_logits(self, graph: Builder, logits: str) -> str:
        """Add the logarithms of the new probabilities to an ONNX graph."""
        axis = graph.constant([1], np.int64)
        wide = graph.add("Cast", logits, to=DOUBLE)
        gaps = graph.add("Sub", wide, graph.add("ReduceMax", wide, axis, keepdims=1))
        wide = graph.add("Mul", gaps, graph.constant(1 / self.base_temperature, np.float64))
        new = self._onnx_log_probabilities(graph, _onnx_shares(graph, logits, wide, self.k))
        never = graph.constant(-np.inf, np.float64)
        new = graph.add("Where", graph.add("IsInf", wide), never, new)
        all_zero = graph.add("IsInf", graph.add("ReduceMax", new, axis, keepdims=1))
        return graph.add("Cast", graph.add("Where", all_zero, wide, new), to=FLOAT)


@dataclass(frozen=True)
class OneVsRestCalibrator(AfterTemperature, Generic[Part]):
    """Temperature scaling, then a function of each class's own probability."""

    copies = 1.0
    numbers_a_row = 15.0

    def memory_bytes(self, n: int, k: int) -> int:
        """Estimate the peak memory of a fit, in which each thread fits one class at a time."""
        more = 8 * self.numbers_a_row * n * (min(get_threads(), k) - 1)
        return super().memory_bytes(n, k) + int(more)

    def _fit_scaled(
        self, data: CalibrationSet, base: TemperatureMap, context: FitContext
    ) -> CalibrationMap:
        rows = _Rows.of(data, base.temperature)
        classes = BLOCKS_A_STEP * max(1, BLOCK_ELEMENTS // (ARRAYS * data.n))
        parts: list[Part] = []
        for begin in range(0, data.k, classes):
            end = min(data.k, begin + classes)

            def work(start: int, stop: int, scratch: Scratch, begin: int = begin) -> Part:
                chosen = np.arange(begin + start, begin + stop)[:, np.newaxis]
                shares = rows.of_classes(begin + start, begin + stop)
                return self._fit_classes(shares, data.labels == chosen, data.k)

            parts += map_blocks(work, end - begin, ARRAYS * data.n)
            context.step(end, data.k)
        return self._map_of(parts, base, context)

    @abstractmethod
    def _fit_classes(self, shares: ClassShares, is_label: Bools, k: int) -> Part:
        """Fit c of the k classes, given their shares (c, n) and label indicators (c, n).

        Rows for which ``informative`` is False carry no information about a class's function.
        """

    @abstractmethod
    def _map_of(self, parts: list[Part], base: TemperatureMap, context: FitContext) -> OneVsRestMap:
        """Return the map, given the results of all classes in order."""


def informative(shares: ClassShares) -> Bools:
    """Return a mask of the classes that the logits neither rule out nor make certain.

    A class is ruled out if its logit is -inf, and certain if all other logits are -inf.
    """
    possible = np.isfinite(shares.log_p)
    possible[shares.top] = np.isfinite(shares.top_log_rest)
    return possible


@dataclass(frozen=True, eq=False)
class _Rows:
    """A set with three numbers per row, from which the shares of any class are computed."""

    data: CalibrationSet
    temperature: float
    top: NDArray[np.intp]
    total: Floats
    top_log_rest: Floats

    @classmethod
    def of(cls, data: CalibrationSet, temperature: float) -> _Rows:
        def work(start: int, stop: int, scratch: Scratch) -> tuple[Floats, Floats]:
            wide = _scaled(data, temperature, slice(start, stop), slice(None))
            with np.errstate(under="ignore"):
                return _sums(wide, np.exp(wide), data.logits[start:stop].argmax(axis=1))

        parts = map_blocks(work, data.n, data.k)
        total, top_log_rest = (np.concatenate(one) for one in zip(*parts, strict=True))
        return cls(data, temperature, data.logits.argmax(axis=1), total, top_log_rest)

    def of_classes(self, start: int, stop: int) -> ClassShares:
        """Return the shares (c, n) of the classes from ``start`` to ``stop - 1``."""
        wide = np.ascontiguousarray(
            _scaled(self.data, self.temperature, slice(None), slice(start, stop)).T
        )
        with np.errstate(under="ignore"):
            p = np.exp(wide) / self.total
        wide -= np.log(self.total)
        rows = np.flatnonzero((self.top >= start) & (self.top < stop))
        return ClassShares(p, wide, (self.top[rows] - start, rows), self.top_log_rest[rows])


def _scaled(data: CalibrationSet, temperature: float, rows: slice, classes: slice) -> Floats:
    """Return ``(logits - row maximum) / T`` in float64, as the map computes it."""
    with np.errstate(over="ignore", under="ignore"):
        row_max = data.row_max[rows, np.newaxis]
        gaps = np.subtract(data.logits[rows, classes], row_max, dtype=np.float64)
        gaps *= 1 / temperature
    return gaps


def _shares(scaled: Floats) -> ClassShares:
    """Return the shares (n, k) of every class, given scaled logits whose row maxima are 0."""
    wide, top = scaled.astype(np.float64), scaled.argmax(axis=1)
    p = np.exp(wide)
    total, top_log_rest = _sums(wide, p, top)
    # a row with a single finite logit is certain, whatever that logit is
    top_log_rest[np.isinf(top_log_rest)] = 0
    p /= total[:, np.newaxis]
    wide -= np.log(total)[:, np.newaxis]
    return ClassShares(p, wide, (np.arange(len(top)), top), top_log_rest)


def _sums(wide: Floats, weights: Floats, top: NDArray[np.intp]) -> tuple[Floats, Floats]:
    """Return, for each row, the sum of ``weights = exp(wide)`` and ``ln(1 - p)`` of its top class.

    ``wide`` is 0 at the top class, whose p is therefore one over the sum.
    """
    at = np.arange(len(top))
    weights[at, top] = 0
    rest = weights.sum(axis=1)
    weights[at, top] = 1
    with np.errstate(divide="ignore"):
        log_rest = np.log(rest)
    lost = np.flatnonzero(rest < UNDERFLOW)
    others = wide[lost]
    others[np.arange(len(lost)), top[lost]] = -np.inf
    log_rest[lost] = log_sum(others, others.max(axis=1))
    return 1 + rest, log_rest - np.log1p(rest)


@dataclass(frozen=True)
class OnnxShares:
    """Names of p, ln p and ln(1 - p), doubles (n, k), in an ONNX graph."""

    p: str
    log_p: str
    log_rest: str


def _onnx_shares(graph: Builder, logits: str, wide: str, k: int) -> OnnxShares:
    """Add the shares of every class to a graph, given scaled logits ``wide`` with row maxima 0."""
    axis = graph.constant([1], np.int64)
    none, one = graph.constant(0.0, np.float64), graph.constant(1.0, np.float64)
    place = graph.add("ArgMax", logits, axis=1, keepdims=1)
    is_top = graph.add("Equal", place, graph.constant(np.arange(k), np.int64))
    others = graph.add("Where", is_top, graph.constant(-np.inf, np.float64), wide)
    rest = graph.add("ReduceSum", graph.add("Exp", others), axis, keepdims=1)
    total = graph.add("Add", rest, one)
    log_total = graph.add("Log", total)
    second = graph.add("ReduceMax", others, axis, keepdims=1)
    alone = graph.add("IsInf", second)
    reach = graph.add("Where", alone, none, second)
    weights = graph.add("Exp", graph.add("Sub", others, reach))
    log_rest = graph.add("Log", graph.add("ReduceSum", weights, axis, keepdims=1))
    log_rest = graph.add("Sub", graph.add("Add", log_rest, reach), log_total)
    log_rest = graph.add("Where", alone, none, log_rest)
    p = graph.add("Div", graph.add("Exp", wide), total)
    return OnnxShares(
        p,
        graph.add("Sub", wide, log_total),
        graph.add("Where", is_top, log_rest, graph.add("Log", graph.add("Sub", one, p))),
    )
