"""ETS: a mixture of temperature scaling, the model itself and the uniform distribution."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from calibrators.arrays import check_rows, row_maxima
from calibrators.base import CalibrationMap
from calibrators.data import CalibrationSet
from calibrators.errors import ParameterError
from calibrators.export.onnx import DOUBLE, FLOAT, Builder
from calibrators.fitting.context import FitContext
from calibrators.methods._after_temperature import AfterTemperature
from calibrators.methods._simplex import Derivatives, minimise_on_simplex
from calibrators.methods.temperature import TemperatureMap, check_temperature
from calibrators.numerics.parallel import Floats, Scratch, map_blocks, oriented
from calibrators.numerics.softmax import InverseTemperature, scaled_logits, softmax


@dataclass(frozen=True, eq=False, kw_only=True)
class EtsMap(CalibrationMap):
    """``scaled softmax(z / temperature) + unscaled softmax(z) + uniform / k``; weights sum to 1.

    The uniform part is divided among the classes whose logits are not -inf.
    """

    method = "ets"
    complexity = 20
    keeps_class = True

    temperature: float
    scaled: float
    unscaled: float
    uniform: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_temperature(self.temperature)
        weights = (self.scaled, self.unscaled, self.uniform)
        if not (min(weights) >= 0 and abs(sum(weights) - 1) <= 1e-9):
            raise ParameterError(
                "bad_parameter", f"weights must be at least 0 and sum to 1, got {weights}"
            )

    def _parts(self) -> list[tuple[float, float]]:
        """Return the weight and 1/T of each softmax part whose weight is positive."""
        parts = [(self.scaled, 1 / self.temperature), (self.unscaled, 1.0)]
        return [part for part in parts if part[0] > 0]

    def _check(self, logits: Floats) -> None:
        """Raise if a row's softmax is undefined, unless a part of the mixture checks that."""
        if not self._parts():
            check_rows(row_maxima(logits))

    def _apply(self, logits: Floats) -> Floats:
        self._check(logits)
        mixed = _shares(logits)
        mixed *= logits.dtype.type(self.uniform)
        for weight, beta in self._parts():
            part = softmax(logits, _always(beta))
            part *= logits.dtype.type(weight)
            mixed += part
        return mixed

    def _transform(self, logits: Floats) -> Floats:
        """Return the logarithms of the mixture; tiny probabilities do not underflow."""
        self._check(logits)
        with np.errstate(divide="ignore"):
            mixed: Floats = np.log(_shares(logits) * logits.dtype.type(self.uniform))
        for weight, beta in self._parts():
            part = scaled_logits(logits, _always(beta))
            with np.errstate(under="ignore"):
                total = np.exp(part).sum(axis=1, keepdims=True)
                part += math.log(weight) - np.log(total)
                np.logaddexp(mixed, part, out=mixed)
        return mixed

    def onnx_logits(self, graph: Builder, logits: str) -> str:
        """Add the logarithm of the mixture to an ONNX graph; sums over classes are in doubles."""
        axis = graph.constant([1], np.int64)
        finite = graph.add("Cast", graph.add("Not", graph.add("IsInf", logits)), to=DOUBLE)
        count = graph.add("ReduceSum", finite, axis, keepdims=1)
        uniform = graph.constant(self.uniform, np.float64)
        mixed = graph.add("Mul", graph.add("Div", finite, count), uniform)
        gaps = graph.add("Sub", logits, graph.add("ReduceMax", logits, axis, keepdims=1))
        for weight, beta in self._parts():
            scaled = graph.add("Mul", gaps, graph.constant(beta))
            part = graph.add("Softmax", graph.add("Cast", scaled, to=DOUBLE), axis=1)
            share = graph.constant(weight, np.float64)
            mixed = graph.add("Add", mixed, graph.add("Mul", part, share))
        return graph.add("Cast", graph.add("Log", mixed), to=FLOAT)


def _always(beta: float) -> InverseTemperature:
    return lambda _: beta


def _shares(logits: Floats) -> Floats:
    """Return, for each row, the uniform distribution over the classes whose logits are not -inf."""
    finite = logits > -np.inf
    count = np.maximum(finite.sum(axis=1, keepdims=True), 1)
    return np.asarray(np.divide(finite, count, dtype=logits.dtype))


@dataclass(frozen=True)
class EnsembleTemperature(AfterTemperature):
    """``p = w1 softmax(z / T) + w2 softmax(z) + w3 / K`` with w >= 0 and sum(w) = 1.

    T is the exact temperature of temperature scaling. With T fixed, the weights minimise
    ``objective``, which is "nll" or "brier"; the paper has both. This problem is convex. It is
    solved by Newton steps on the faces of the simplex, with exact zeros for unused weights, until
    ``w . gradient - min(gradient) <= 1e-11``. The left-hand side, ``gap`` in ``fit_info``, bounds
    the distance of the objective from its optimum. w = (1, 0, 0) is temperature scaling, so the
    objective on the fit set is never higher than with temperature scaling.

    Every part keeps the order of the classes, and so does the mixture. Classes whose logit is -inf
    have no share in the uniform part; K is then the number of the other classes. ``softmax(z)`` is
    the model itself, so the scale of the logits matters here: multiplying them by a constant yields
    a different family of mixtures.

    Zhang, Kailkhura, Han: Mix-n-Match, ensemble and compositional methods for uncertainty
    calibration in deep learning. ICML 2020.

    >>> rng = np.random.default_rng(0)
    >>> z = rng.normal(size=(20000, 5)) * 3
    >>> y = (z / 2 + rng.gumbel(size=z.shape)).argmax(axis=1)    # the truth has temperature 2,
    >>> y[:4000] = rng.integers(5, size=4000)                    # a fifth of the labels are random
    >>> fitted = EnsembleTemperature().fit(CalibrationSet(z, y))
    >>> bool(fitted.uniform > 0.05 and fitted.fit_info["gap"] <= 1e-11)
    True
    """

    name = "ets"
    summary = "a mixture of temperature scaling, the model itself and the uniform distribution"
    reference = "Zhang et al., ICML 2020"
    cost = "temperature scaling and 2 more passes over the logits (5 with the Brier score)"
    copies = 0.25
    numbers_a_row = 11.0

    objective: Literal["nll", "brier"] = "nll"

    def _fit_scaled(
        self, data: CalibrationSet, base: TemperatureMap, context: FitContext
    ) -> EtsMap:
        context.step(1, 2)
        make = _negative_log_likelihood if self.objective == "nll" else _brier_score
        minimum = minimise_on_simplex(make(data, 1 / base.temperature), 3, context.cancelled)
        context.step(2, 2, minimum.value)
        scaled, unscaled, uniform = minimum.weights.tolist()
        return EtsMap(
            k=data.k,
            kind=data.kind,
            temperature=base.temperature,
            scaled=scaled,
            unscaled=unscaled,
            uniform=uniform,
            fit_info={
                "objective": self.objective,
                "value": minimum.value,
                "gap": minimum.gap,
                "evaluations": minimum.evaluations,
                "device": "cpu",
            },
        )


def _log_partitions(data: CalibrationSet, beta: float) -> Floats:
    """Return ``log sum_k exp(beta (z_k - z_max))`` of every row (n,) in float64."""

    def work(start: int, stop: int, scratch: Scratch) -> Floats:
        block, axis = oriented(data.logits[start:stop], scratch)
        weights = scratch.take("weights", block.shape, block.dtype)
        with np.errstate(over="ignore", under="ignore"):
            np.subtract(block, np.expand_dims(data.row_max[start:stop], axis), out=weights)
            weights *= block.dtype.type(beta)
            np.exp(weights, out=weights)
        return np.asarray(np.log(weights.sum(axis=axis, dtype=np.float64)))

    return np.concatenate(map_blocks(work, data.n, data.k))


def _at_label(data: CalibrationSet, beta: float) -> tuple[Floats, Floats, Floats]:
    """Return the log partitions at beta and at 1, and each part's log probability of the label."""
    gap = data.label_gaps.astype(np.float64)
    at_beta, at_one = _log_partitions(data, beta), _log_partitions(data, 1.0)
    finite = np.count_nonzero(data.logits > -np.inf, axis=1)
    logs = np.stack([-beta * gap - at_beta, -gap - at_one, -np.log(finite)], axis=1)
    return at_beta, at_one, logs


def _negative_log_likelihood(data: CalibrationSet, beta: float) -> Derivatives:
    """Return the mean NLL, with its gradient and Hessian, as a function of the weights."""
    _, _, logs = _at_label(data, beta)
    largest = logs.max(axis=1)
    offset = -float(largest.mean())
    with np.errstate(under="ignore"):
        parts = np.exp(logs - largest[:, np.newaxis])

    def derivatives(weights: Floats) -> tuple[float, Floats, Floats]:
        mixed = parts @ weights
        if mixed.min() <= 0:
            return math.inf, np.zeros(3), np.zeros((3, 3))
        shares = parts / mixed[:, np.newaxis]
        value = offset - float(np.log(mixed).mean())
        return value, -shares.mean(axis=0), shares.T @ shares / len(parts)

    return derivatives


def _brier_score(data: CalibrationSet, beta: float) -> Derivatives:
    """Return the Brier score, with its gradient and Hessian, as a function of the weights.

    For two softmaxes p and q, ``sum_k p_k q_k`` is a quotient of partition functions.
    """
    at_beta, at_one, logs = _at_label(data, beta)
    products = np.empty((3, 3))
    products[:, 2] = products[2] = np.exp(logs[:, 2]).mean()
    with np.errstate(under="ignore"):
        products[0, 0] = np.exp(_log_partitions(data, 2 * beta) - 2 * at_beta).mean()
        products[1, 1] = np.exp(_log_partitions(data, 2.0) - 2 * at_one).mean()
        both = np.exp(_log_partitions(data, 1 + beta) - at_beta - at_one).mean()
        products[0, 1] = products[1, 0] = both
        right = np.exp(logs).mean(axis=0)

    def derivatives(weights: Floats) -> tuple[float, Floats, Floats]:
        slope = products @ weights - right
        return 1 + float(weights @ (slope - right)), 2 * slope, 2 * products

    return derivatives
