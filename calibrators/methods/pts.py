"""PTS: a temperature from each sample's ten largest logits, by a small network."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge, Le

from calibrators.base import TemperatureTypeMap
from calibrators.data import CalibrationSet
from calibrators.errors import ParameterError
from calibrators.export.onnx import FLOAT, Builder
from calibrators.fitting.context import FitContext
from calibrators.methods._after_temperature import AfterTemperature
from calibrators.methods._smart_features import onnx_sorted_gaps, sorted_gaps
from calibrators.methods.temperature import TemperatureMap, check_temperature
from calibrators.numerics.confidence_curves import Samples, curve_numbers, observe
from calibrators.numerics.parallel import Floats, row_blocks, scratch_bytes

LARGEST = 3.0
ITERATIONS = 200
MAX_PARAMETERS = 1000


@dataclass(frozen=True, eq=False, kw_only=True)
class ParametrizedTemperatureMap(TemperatureTypeMap):
    """``softmax(logits / (base_temperature * T(x)))``, log T from two hidden layers of relu units.

    x are the standardised gaps of ``logits / base_temperature`` from the largest to the next ones;
    |log T| is at most 3.
    """

    method = "pts"
    complexity = 90

    base_temperature: float
    centre: Floats
    spread: Floats
    w1: Floats
    b1: Floats
    w2: Floats
    b2: Floats
    w3: Floats
    b3: float

    def __post_init__(self) -> None:
        super().__post_init__()
        inputs, hidden = len(self.centre), len(self.b1)
        if not 1 <= inputs < self.k:
            raise ParameterError(
                "bad_parameter",
                f"centre must have 1 to {self.k - 1} numbers for {self.k} classes, got {inputs}",
            )
        expected = {
            "spread": (inputs,),
            "w1": (inputs, hidden),
            "w2": (hidden, hidden),
            "b2": (hidden,),
            "w3": (hidden,),
        }
        count = hidden * (inputs + hidden + 2) + 1
        if count > MAX_PARAMETERS:
            raise ParameterError(
                "bad_parameter",
                f"a PTS map must have at most {MAX_PARAMETERS:,} parameters, got {count:,}",
            )
        for name, shape in expected.items():
            actual = getattr(self, name).shape
            if actual != shape:
                raise ParameterError(
                    "bad_parameter", f"{name} must have shape {shape}, got {actual}"
                )
        check_temperature(self.base_temperature)
        if not (self.spread > 0).all():
            raise ParameterError(
                "bad_parameter", f"spread must be positive, got {self.spread.min():g}"
            )

    @property
    def row_cost(self) -> int:
        """Approximate count of numbers computed per row in addition to its logits."""
        return self.w1.size + self.w2.size

    def _inverse_temperatures(self, logits: Floats) -> Floats:
        network = Network(self.w1, self.b1, self.w2, self.b2, self.w3, np.array(self.b3))
        inverse = np.empty(len(logits))
        for rows in row_blocks(len(logits), self.k + 4 * (len(self.centre) + len(self.b1))):
            gaps = sorted_gaps(logits[rows], len(self.centre), self.base_temperature)
            log_temperature = network.run((gaps - self.centre) / self.spread).output
            inverse[rows] = np.exp(-log_temperature) / self.base_temperature
        return inverse

    def _onnx_inverse_temperature(self, graph: Builder, logits: str) -> str:
        def layer(inputs: str, weights: Floats, bias: Floats | float) -> str:
            product = graph.add("MatMul", inputs, graph.constant(weights, np.float64))
            return graph.add("Add", product, graph.constant(bias, np.float64))

        gaps = onnx_sorted_gaps(graph, logits, len(self.centre), self.base_temperature)
        centred = graph.add("Sub", gaps, graph.constant(self.centre, np.float64))
        standard = graph.add("Div", centred, graph.constant(self.spread, np.float64))
        first = graph.add("Relu", layer(standard, self.w1, self.b1))
        second = graph.add("Relu", layer(first, self.w2, self.b2))
        ends = (graph.constant(-LARGEST, np.float64), graph.constant(LARGEST, np.float64))
        output = graph.add("Clip", layer(second, self.w3[:, np.newaxis], self.b3), *ends)
        inverse = graph.add("Exp", graph.add("Neg", output))
        base = graph.constant(self.base_temperature, np.float64)
        return graph.add("Cast", graph.add("Div", inverse, base), to=FLOAT)


@dataclass(frozen=True)
class Run:
    """Forward pass of a network: inputs, hidden activations and output."""

    inputs: Floats
    first: Floats
    second: Floats
    output: Floats
    free: Floats


@dataclass(frozen=True)
class Network:
    """Two hidden layers of relu units and one output clipped to [-LARGEST, LARGEST]."""

    w1: Floats
    b1: Floats
    w2: Floats
    b2: Floats
    w3: Floats
    b3: Floats

    @classmethod
    def start(cls, inputs: int, hidden: int, seed: int) -> Network:
        """Return a network with random hidden layers, uniform in +-1/sqrt(inputs), and output 0."""
        rng = np.random.default_rng(seed)

        def drawn(wide: int, *size: int) -> Floats:
            return rng.uniform(-1, 1, size) / math.sqrt(wide)

        first = drawn(inputs, inputs, hidden), drawn(inputs, hidden)
        second = drawn(hidden, hidden, hidden), drawn(hidden, hidden)
        return cls(*first, *second, np.zeros(hidden), np.zeros(()))

    @property
    def parts(self) -> tuple[Floats, ...]:
        """All parameters, layer by layer."""
        return self.w1, self.b1, self.w2, self.b2, self.w3, self.b3

    def moved(self, step: Floats) -> Network:
        """Return the network with ``step`` added to its flattened parameters."""
        ends = np.cumsum([one.size for one in self.parts])[:-1]
        pieces = np.split(step, ends)
        return Network(*(a + b.reshape(a.shape) for a, b in zip(self.parts, pieces, strict=True)))

    def run(self, inputs: Floats) -> Run:
        """Run the forward pass on ``inputs``."""
        first = np.maximum(inputs @ self.w1 + self.b1, 0)
        second = np.maximum(first @ self.w2 + self.b2, 0)
        raw = second @ self.w3 + self.b3
        return Run(inputs, first, second, raw.clip(-LARGEST, LARGEST), np.abs(raw) < LARGEST)

    def jacobian(self, run: Run) -> Floats:
        """Return the derivatives of each sample's output for all parameters, (parameters, n)."""
        n = len(run.output)
        free = run.free.astype(np.float64)
        to_second = free * (run.second.T > 0) * self.w3[:, np.newaxis]
        to_first = (self.w2 @ to_second) * (run.first.T > 0)
        return np.concatenate(
            [
                (run.inputs.T[:, np.newaxis] * to_first).reshape(-1, n),
                to_first,
                (run.first.T[:, np.newaxis] * to_second).reshape(-1, n),
                to_second,
                run.second.T * free,
                free[np.newaxis],
            ]
        )


@dataclass(frozen=True)
class ParametrizedTemperature(AfterTemperature):
    """Parametrized temperature scaling: ``p = softmax(z / T(z))``, T from the ten largest logits.

    Two hidden layers of 5 relu units turn the sorted gaps from the largest logit to the next nine
    into log T; they minimise the mean of (c - a)^2, c the confidence and a the correctness
    of the prediction. The published procedure trains with 100,000 steps of Adam on batches. It is a
    small least-squares problem, and is solved as one here: by Levenberg-Marquardt on the confidence
    curve (numerics.confidence_curves), with the full Jacobian of, by default, at most 86
    parameters, until a step lowers the objective by less than the fraction ``tolerance``.

    Choices made here: the inputs are gaps instead of the logits themselves, whose level has no
    meaning, divided by the exact temperature of temperature scaling, so that their scale has none
    either; the output is log T, clipped to |log T| <= 3, while the paper takes the absolute value;
    the network starts at T = 1; a penalty of ``decay / n`` times the squared distance of the
    parameters from their start keeps fits on few rows from following their noise.

    Tomani, Cremers, Buettner: Parameterized temperature scaling for boosting the expressive power
    in post-hoc uncertainty calibration. ECCV 2022.

    >>> rng = np.random.default_rng(0)
    >>> z = rng.normal(size=(2000, 10)) * 4
    >>> y = (z / 2 + rng.gumbel(size=z.shape)).argmax(axis=1)    # the truth has temperature 2
    >>> fitted = ParametrizedTemperature().fit(CalibrationSet(z, y))
    >>> bool(abs(fitted.temperatures(z).mean() - 2) < 0.3)
    True
    """

    name = "pts"
    summary = "a temperature for each sample from its largest logits (by default 10; 86 parameters)"
    reference = "Tomani et al., ECCV 2022"
    cost = "about a second for 10,000 samples; about 10 seconds with 800 parameters"

    seed: Annotated[int, Ge(0), Le(2**32 - 1)] = 0
    logits: Annotated[int, Ge(2), Le(150)] = 10
    hidden: Annotated[int, Ge(1), Le(24)] = 5
    decay: Annotated[float, Ge(0)] = 1.0
    tolerance: Annotated[float, Ge(1e-12), Le(0.1)] = 1e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        count = self.hidden * (self.logits + self.hidden + 2) + 1
        if count > MAX_PARAMETERS:
            raise ParameterError(
                "bad_parameter",
                f"ParametrizedTemperature.logits and hidden must yield at most {MAX_PARAMETERS:,} "
                f"parameters, hidden (logits + hidden + 2) + 1, got {count:,}",
            )

    def memory_bytes(self, n: int, k: int) -> int:
        """Estimate the peak memory: the logits, or the Jacobian, its products and the curves."""
        inputs = min(self.logits, k) - 1
        parameters = self.hidden * (inputs + self.hidden + 2) + 1
        return 8 * n * max(k, int(2.8 * parameters) + curve_numbers(k)) + scratch_bytes()

    def _fit_scaled(
        self, data: CalibrationSet, base: TemperatureMap, context: FitContext
    ) -> ParametrizedTemperatureMap:
        inputs = sorted_gaps(data.logits, min(self.logits, data.k) - 1, base.temperature)
        centre, spread = inputs.mean(axis=0), inputs.std(axis=0)
        spread[spread == 0] = 1.0
        samples = observe(data, 1 / base.temperature)
        problem = PtsProblem(samples, (inputs - centre) / spread, self.decay / data.n)
        start = Network.start(inputs.shape[1], self.hidden, self.seed)
        network, value, iterations = problem.solve(start, self.tolerance, context)
        w1, b1, w2, b2, w3, b3 = network.parts
        return ParametrizedTemperatureMap(
            k=data.k,
            kind=data.kind,
            base_temperature=base.temperature,
            centre=centre,
            spread=spread,
            w1=w1,
            b1=b1,
            w2=w2,
            b2=b2,
            w3=w3,
            b3=float(b3),
            fit_info={
                "objective": "mse",
                "value": value,
                "iterations": iterations,
                "device": "cpu",
            },
        )


@dataclass(frozen=True)
class PtsProblem:
    """Mean of (c - a)^2 plus ``pull`` times the squared distance from the start."""

    samples: Samples
    inputs: Floats
    pull: float

    def solve(
        self, start: Network, tolerance: float, context: FitContext
    ) -> tuple[Network, float, int]:
        """Run Levenberg-Marquardt; return the network, its mean (c - a)^2 and the iterations."""
        at, moved = start, np.zeros(sum(one.size for one in start.parts))
        damping = 1e-2
        run, miss, slope = self._evaluate(at)
        value = self._value(miss, moved)
        for iteration in range(1, ITERATIONS + 1):
            context.step(iteration, ITERATIONS, value)
            jacobian = at.jacobian(run) * slope
            normal = jacobian @ jacobian.T / self.samples.n
            gradient = jacobian @ miss / self.samples.n + self.pull * moved
            np.einsum("ii->i", normal)[...] += self.pull
            gain = -1.0
            while gain <= 0 and damping < 1e8:
                scale = np.diag(damping * (np.diag(normal) + 1e-6 * np.trace(normal) + 1e-12))
                step = np.linalg.solve(normal + scale, -gradient)
                tried = at.moved(step)
                outcome = self._evaluate(tried)
                gain = value - self._value(outcome[1], moved + step)
                damping *= 0.2 if gain > 0 else 5
            if gain <= 0:
                break
            at, moved, (run, miss, slope), value = tried, moved + step, outcome, value - gain
            if gain < tolerance * value:
                break
        context.step(ITERATIONS, ITERATIONS, value)
        return at, float((miss * miss).mean()), iteration

    def _evaluate(self, network: Network) -> tuple[Run, Floats, Floats]:
        """Return the run, c - a, and dc/dlog T, where log T is the output of the network."""
        run = network.run(self.inputs)
        value, slope = self.samples.curve.log_partition(np.exp(-run.output))
        confidence = np.exp(-value)
        return run, confidence - self.samples.correct, confidence * slope

    def _value(self, miss: Floats, moved: Floats) -> float:
        return float((miss * miss).mean() + self.pull * (moved * moved).sum())
