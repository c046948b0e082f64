"""Base classes for vector scaling, matrix scaling and Dirichlet calibration: ``softmax(W x + b)``.

The features x are computed from logits divided by the exact temperature of temperature scaling, and
do not change if a constant is added to a row. ``centred`` subtracts the mean of the row's finite
logits; ``log_softmax`` takes the logarithms of the temperature-scaled probabilities. A logit of
-inf yields the feature 0, which does not affect the other classes, and its own class keeps
probability 0.

The fit minimises the mean NLL plus ``sum(precision * (parameter - start)^2) / (2 n)``. The start
W = I, b = 0 is temperature scaling, so the result is the posterior mode under normal priors around
temperature scaling. The objective is convex. Its minimum is finite for any data, even if a class is
always predicted correctly or never occurs, and the NLL on the fit set is never higher than with
temperature scaling. Newton's method minimises it until no component of the gradient exceeds
``tolerance``. It runs in float64 if ``tolerance`` is below 1e-6, otherwise in the dtype of the
logits.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Gt, Le
from numpy.typing import NDArray

from calibrators.base import CalibrationMap
from calibrators.data import CalibrationSet
from calibrators.errors import ParameterError
from calibrators.export.onnx import DOUBLE, FLOAT, Builder
from calibrators.fitting.context import FitContext
from calibrators.methods._after_temperature import AfterTemperature
from calibrators.methods._newton import Array, NewtonMinimum, minimise
from calibrators.methods._regression import Full
from calibrators.methods.temperature import TemperatureMap, check_temperature
from calibrators.numerics.parallel import Floats, Scratch, map_blocks
from calibrators.numerics.softmax import rewritten

Penalty = Annotated[float, Gt(0), Le(1e9)]
# with a larger tolerance, the fit could end where it starts, at temperature scaling
Tolerance = Annotated[float, Gt(0), Le(1e-2)]

Features = Literal["centred", "log_softmax"]

FAR = -1e100
SINGLE_PRECISION = 1e-6
MATRICES = 12.5
PRODUCTS = 8  # a softmax entry takes as long as this many multiply-adds of a matrix product


@dataclass(frozen=True, eq=False, kw_only=True)
class LinearMap(CalibrationMap):
    """``softmax(W x + b)``, where x are features of ``logits / base_temperature``.

    ``weights`` is W (k, k), row i for class i, or its diagonal (k,) if all other entries are 0.
    """

    keeps_class = False

    base_temperature: float
    weights: Floats
    bias: Floats

    def __post_init__(self) -> None:
        super().__post_init__()
        check_temperature(self.base_temperature)
        if self.weights.shape not in ((self.k,), (self.k, self.k)) or self.bias.shape != (self.k,):
            raise ParameterError(
                "bad_parameter",
                f"weights and bias must match k={self.k} classes, got shapes {self.weights.shape} "
                f"and {self.bias.shape}",
            )

    @property
    def row_cost(self) -> int:
        """Approximate number of values computed per row in addition to its logits."""
        return self.weights.size // PRODUCTS

    @classmethod
    @abstractmethod
    def features(cls) -> Features:
        """Return the kind of features that W is applied to."""

    def _transform(self, logits: Floats) -> Floats:
        def write(block: Floats, largest: Floats, target: Floats) -> None:
            x, masked = features_of(block, largest, self.base_temperature, self.features())
            scores = x * self.weights if self.weights.ndim == 1 else x @ self.weights.T
            scores += self.bias
            scores[masked] = -np.inf
            scores -= scores.max(axis=1, keepdims=True)
            target[...] = scores

        return rewritten(logits, write)

    def onnx_logits(self, graph: Builder, logits: str) -> str:
        """Add features and scores to an ONNX graph, as doubles; -inf logits give -inf scores."""
        axis = graph.constant([1], np.int64)

        def constant(value: Any) -> str:
            return graph.constant(value, np.float64)

        def total(values: str) -> str:
            return graph.add("ReduceSum", values, axis, keepdims=1)

        zero = constant(0.0)
        masked = graph.add("IsInf", logits)
        wide = graph.add("Cast", logits, to=DOUBLE)
        gaps = graph.add("Sub", wide, graph.add("ReduceMax", wide, axis, keepdims=1))
        gaps = graph.add("Mul", gaps, constant(1 / self.base_temperature))
        gaps = graph.add("Max", gaps, constant(FAR))
        if self.features() == "log_softmax":
            level = graph.add("Log", total(graph.add("Exp", gaps)))
        else:
            finite = total(graph.add("Cast", graph.add("Not", masked), to=DOUBLE))
            level = graph.add("Div", total(graph.add("Where", masked, zero, gaps)), finite)
        x = graph.add("Where", masked, zero, graph.add("Sub", gaps, level))
        product = "Mul" if self.weights.ndim == 1 else "MatMul"
        scores = graph.add(product, x, constant(self.weights.T))
        scores = graph.add("Add", scores, constant(self.bias))
        scores = graph.add("Where", masked, constant(-np.inf), scores)
        scores = graph.add("Sub", scores, graph.add("ReduceMax", scores, axis, keepdims=1))
        return graph.add("Cast", scores, to=FLOAT)


def features_of(
    block: Floats, maxima: Floats, temperature: float, kind: Features
) -> tuple[Array, NDArray[np.bool_]]:
    """Return the features (n, k) in float64 and a mask of -inf logits; ``maxima`` is (n, 1)."""
    masked = np.isneginf(block)
    x = np.subtract(block, maxima, dtype=np.float64)
    x *= 1 / temperature
    np.maximum(x, FAR, out=x)
    if kind == "log_softmax":
        x -= np.log(np.exp(x).sum(axis=1, keepdims=True))
        x[masked] = 0
    else:
        x[masked] = 0
        x -= x.sum(axis=1, keepdims=True) / (block.shape[1] - masked.sum(axis=1, keepdims=True))
        x[masked] = 0
    return x, masked


def fitted_map(
    kind: type[LinearMap],
    base: TemperatureMap,
    weights: Floats,
    bias: Floats,
    minimum: NewtonMinimum,
) -> LinearMap:
    """Build the map of a method from its parameters and the solver's result."""
    return kind(
        k=base.k,
        kind=base.kind,
        base_temperature=base.temperature,
        weights=weights,
        bias=bias,
        fit_info={"objective": "nll", "device": "cpu", **minimum.info},
    )


def features_of_set(
    data: CalibrationSet, base: TemperatureMap, kind: Features, tolerance: float, ones: int = 0
) -> tuple[Floats, NDArray[np.bool_] | None]:
    """Return the features (n, k + ones) of all rows, and a mask of -inf logits, or None.

    The last ``ones`` columns are 1. The mask is None if no logit is -inf. The features have the
    dtype of the logits, unless the tolerance requires more precision than float32 has.
    """
    dtype = data.logits.dtype if tolerance >= SINGLE_PRECISION else np.dtype(np.float64)
    x = np.ones((data.n, data.k + ones), dtype=dtype)
    masked = np.empty((data.n, data.k), dtype=bool)

    def work(start: int, stop: int, scratch: Scratch) -> bool:
        rows = slice(start, stop)
        maxima = data.row_max[rows, np.newaxis]
        with np.errstate(over="ignore", under="ignore"):
            features = features_of(data.logits[rows], maxima, base.temperature, kind)
            x[rows, : data.k], masked[rows] = features
        return bool(masked[rows].any())

    any_masked = any(map_blocks(work, data.n, data.k))
    return x, masked if any_masked else None


@dataclass(frozen=True)
class FullCalibrator(AfterTemperature):
    """A recipe whose map has a full weight matrix.

    ``off_diagonal``, ``diagonal`` and ``intercept`` are the precisions of the penalty.
    """

    off_diagonal: Penalty = 100.0
    diagonal: Penalty = 2.0
    intercept: Penalty = 2.0
    tolerance: Tolerance = 1e-6

    copies = 2.3

    def memory_bytes(self, n: int, k: int) -> int:
        """Estimate the peak memory of a fit, including a dozen arrays the size of the weights."""
        return super().memory_bytes(n, k) + int(8 * MATRICES * k * (k + 1))

    @property
    @abstractmethod
    def _map_type(self) -> type[LinearMap]: ...

    def _fit_scaled(
        self, data: CalibrationSet, base: TemperatureMap, context: FitContext
    ) -> LinearMap:
        x, masked = features_of_set(data, base, self._map_type.features(), self.tolerance, ones=1)
        precision = np.full((data.k + 1, data.k), self.off_diagonal)
        np.fill_diagonal(precision, self.diagonal)
        precision[-1] = self.intercept
        problem = Full(x, data.labels, masked, precision)
        minimum = minimise(problem, self.tolerance, context)
        parameters = problem.parameters_at(minimum.point)
        weights = np.ascontiguousarray(parameters[:-1].T)
        return fitted_map(self._map_type, base, weights, parameters[-1], minimum)
