"""PTS: a small network computes a temperature from the ten largest logits of each sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge, Gt, Le

from calibrators.base import TemperatureTypeMap
from calibrators.data import CalibrationSet
from calibrators.errors import ParameterError
from calibrators.export.onnx import FLOAT, Builder
from calibrators.fitting.context import FitContext
from calibrators.methods._after_temperature import AfterTemperature
from calibrators.methods._pts_network import LARGEST, Network, PtsDescent, PtsProblem
from calibrators.methods._smart_features import onnx_sorted_gaps, sorted_gaps
from calibrators.methods.temperature import TemperatureMap, check_temperature
from calibrators.numerics.confidence_curves import curve_numbers, observe
from calibrators.numerics.objectives import ObjectiveName, make_objective
from calibrators.numerics.parallel import Floats, row_blocks, scratch_bytes

MAX_PARAMETERS = 1000


@dataclass(frozen=True, eq=False, kw_only=True)
class ParametrizedTemperatureMap(TemperatureTypeMap):
    """``softmax(logits / (base_temperature * T(x)))``, where log T is the output of a network.

    The network has two hidden layers of ReLU units. x are the standardised gaps from the largest of
    ``logits / base_temperature`` to the next ones. |log T| is at most 3.
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
        count = hidden * (inputs + hidden + 3) + 1
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
        """Approximate number of values computed per row in addition to its logits."""
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
class ParametrizedTemperature(AfterTemperature):
    """Parametrized temperature scaling: ``p = softmax(z / T(z))``, T from the ten largest logits.

    Two hidden layers of 5 ReLU units turn the sorted gaps from the largest logit to the next nine
    into log T. Their parameters minimise the mean of (c - a)^2, where c is the confidence and a is
    1 if the prediction is correct, else 0. The published procedure trains with 100,000 steps of
    Adam on batches. This is a small least-squares problem, solved here by Levenberg-Marquardt on
    the confidence curve (numerics.confidence_curves), with the full Jacobian of (by default) at
    most 86 parameters, until a step lowers the objective by less than the fraction ``tolerance``.

    Choices made here: the inputs are gaps instead of the logits themselves, because only
    differences between logits matter. The gaps are divided by the exact temperature of temperature
    scaling, so their scale does not matter either. The output is log T, clipped to |log T| <= 3,
    while the paper uses the absolute value. The network starts at T = 1. To avoid overfitting on
    few rows, the objective includes a penalty of ``decay / n`` times the squared distance of the
    parameters from their start.

    ``objective`` offers the objectives that the SMART paper compares in its Table 3 (see
    numerics.objectives); ``bins``, ``lam`` and ``delta`` are as in `smart`. All of them except
    "mse" are minimised by BFGS with the same penalty, until five steps in a row lower the objective
    by less than ``tolerance`` or 200 steps are done.

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
    objective: ObjectiveName = "mse"
    bins: Annotated[int, Ge(2), Le(1000)] = 15
    lam: Annotated[float, Gt(0), Le(1e6)] = 200.0
    delta: Annotated[float, Ge(0), Le(1)] = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        count = self.hidden * (self.logits + self.hidden + 2) + 1
        if count > MAX_PARAMETERS:
            raise ParameterError(
                "bad_parameter",
                f"ParametrizedTemperature.logits and hidden must yield at most {MAX_PARAMETERS:,} "
                f"parameters, counted as hidden (logits + hidden + 2) + 1, got {count:,}",
            )

    def memory_bytes(self, n: int, k: int) -> int:
        """Estimate the peak memory: the logits, or the Jacobian, its products and the curves."""
        inputs = min(self.logits, k) - 1
        parameters = self.hidden * (inputs + self.hidden + 3) + 1
        return 8 * n * max(k, int(2.8 * parameters) + curve_numbers(k)) + scratch_bytes()

    def _fit_scaled(
        self, data: CalibrationSet, base: TemperatureMap, context: FitContext
    ) -> ParametrizedTemperatureMap:
        inputs = sorted_gaps(data.logits, min(self.logits, data.k) - 1, base.temperature)
        centre, spread = inputs.mean(axis=0), inputs.std(axis=0)
        spread[spread == 0] = 1.0
        problem = self._problem(data, 1 / base.temperature, (inputs - centre) / spread)
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
                "objective": self.objective,
                "value": value,
                "iterations": iterations,
                "device": "cpu",
            },
        )

    def _problem(
        self, data: CalibrationSet, scale: float, inputs: Floats
    ) -> PtsProblem | PtsDescent:
        smoothed = self.objective == "label_smoothing"
        samples = observe(data, scale, with_mean_gaps=smoothed)
        if self.objective == "mse":
            return PtsProblem(samples, inputs, self.decay / data.n)
        objective = make_objective(
            self.objective, samples, bins=self.bins, lam=self.lam, delta=self.delta
        )
        return PtsDescent(objective, inputs, self.decay / data.n)
