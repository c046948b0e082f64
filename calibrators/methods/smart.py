"""SMART: a temperature from each sample's logit margin, by a network of 49 numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Ge, Gt, Le

from calibrators.adam import Adam
from calibrators.base import TemperatureTypeMap
from calibrators.blocks import Floats, scratch_bytes
from calibrators.context import FitContext
from calibrators.curves import curve_numbers, observe
from calibrators.data import CalibrationSet
from calibrators.devices import torch_device, torch_threads
from calibrators.errors import FitError, NotConverged, ParameterError
from calibrators.indicators import Indicator, indicate, onnx_indicator
from calibrators.methods._after_temperature import AfterTemperature
from calibrators.methods.temperature import TemperatureMap, check_temperature
from calibrators.objectives import Objective, ObjectiveName, make_objective
from calibrators.onnx import FLOAT, Builder

if TYPE_CHECKING:
    import torch

MOST_HIDDEN = 4096
HIDDEN_AT_ONCE = 1 << 20
FLOOR = 0.1
NEUTRAL = math.log(math.expm1(1 - FLOOR))


@dataclass(frozen=True, eq=False, kw_only=True)
class SmartMap(TemperatureTypeMap):
    """``softmax(logits / (base_temperature * T(s)))``, T = softplus(relu(s w1 + b1) w2 + b2) + 0.1.

    s is the standardised indicator, ``(indicator(logits / base_temperature) - centre) / spread``.
    """

    method = "smart"

    base_temperature: float
    indicator: Indicator
    centre: Floats
    spread: Floats
    w1: Floats
    b1: Floats
    w2: Floats
    b2: float

    def __post_init__(self) -> None:
        super().__post_init__()
        inputs, hidden = self.w1.shape if self.w1.ndim == 2 else (0, 0)
        shapes = [self.centre.shape, self.spread.shape, self.b1.shape, self.w2.shape]
        expected = self.k if self.indicator == "all_logits" else 1
        if shapes != [(inputs,), (inputs,), (hidden,), (hidden,)] or inputs != expected:
            raise ParameterError("bad_parameter", "the arrays of a SMART map do not fit together")
        if not 1 <= hidden <= MOST_HIDDEN:
            raise ParameterError(
                "bad_parameter", f"a SMART map has 1 to {MOST_HIDDEN} hidden units, got {hidden}"
            )
        check_temperature(self.base_temperature)
        if not (self.spread > 0).all():
            raise ParameterError("bad_parameter", "a SMART map's spread must be positive")

    def _inverse_temperatures(self, logits: Floats) -> Floats:
        signal = indicate(self.indicator, logits, self.base_temperature)
        raised = np.empty(len(signal))
        step = max(1, HIDDEN_AT_ONCE // len(self.b1))
        for start in range(0, len(signal), step):
            block = signal[start : start + step]
            hidden = ((block - self.centre) / self.spread) @ self.w1
            hidden += self.b1
            np.maximum(hidden, 0, out=hidden)
            raised[start : start + step] = hidden @ self.w2
        return 1 / (self.base_temperature * (np.logaddexp(0, raised + self.b2) + FLOOR))

    @property
    def row_cost(self) -> int:
        """Return about how many numbers are calculated for a row beside its logits."""
        return self.w1.size

    def _onnx_inverse_temperature(self, graph: Builder, logits: str) -> str:
        def constant(value: Any) -> str:
            return graph.constant(value, np.float64)

        signal = onnx_indicator(self.indicator, graph, logits, self.base_temperature)
        standard = graph.add("Sub", signal, constant(self.centre))
        standard = graph.add("Div", standard, constant(self.spread))
        hidden = graph.add("MatMul", standard, constant(self.w1))
        hidden = graph.add("Relu", graph.add("Add", hidden, constant(self.b1)))
        raised = graph.add("MatMul", hidden, constant(self.w2[:, np.newaxis]))
        raised = graph.add("Add", raised, constant(self.b2))
        # onnxruntime's own Softplus overflows in float64
        tail = graph.add("Exp", graph.add("Neg", graph.add("Abs", raised)))
        tail = graph.add("Log", graph.add("Add", tail, constant(1.0)))
        softplus = graph.add("Add", graph.add("Relu", raised), tail)
        temperature = graph.add("Add", softplus, constant(FLOOR))
        temperature = graph.add("Mul", temperature, constant(self.base_temperature))
        return graph.add("Cast", graph.add("Reciprocal", temperature), to=FLOAT)


@dataclass(frozen=True)
class Smart(AfterTemperature):
    """Sample Margin-Aware Recalibration of Temperature: ``p = softmax(z / T(margin))``.

    The margin, largest minus second largest logit, says how sure the model is of each sample; a
    hidden layer of 16 units turns it into that sample's temperature. Logits are divided by the
    exact temperature of temperature scaling first, so their scale is of no account, and the network
    starts there (T = 1 for every sample). It then minimises the soft-binned calibration error
    ``sum_b sqrt(R_b^2 + (delta W_b)^2) / n`` (see calibrators.objectives) by full-batch Adam with
    analytic gradients. The order of the classes never changes, so neither does accuracy. The
    objective is the *binned* form; the per-sample form stated in the paper's Eq. 6
    (``objective="pointwise"``) is minimised by confidences of 0 and 1.

    ``indicator`` and ``objective`` offer the alternatives the paper compares (its Tables 3 and 4).

    Needs torch (``pip install calibrd[train]``).

    Reference: SMART, Sample Margin-Aware Recalibration of Temperature.

    >>> rng = np.random.default_rng(0)
    >>> z = rng.normal(size=(2000, 10)) * 4
    >>> y = (z / 2 + rng.gumbel(size=z.shape)).argmax(axis=1)    # the truth has temperature 2
    >>> fitted = Smart(steps=50).fit(CalibrationSet(z, y))
    >>> bool(abs(fitted.temperatures(z).mean() - 2) < 0.2)
    True
    """

    name = "smart"
    needs_torch = True
    summary = "a temperature for each sample from its logit margin (49 parameters)"
    reference = "SMART: Sample Margin-Aware Recalibration of Temperature"
    cost = "one to a few seconds; needs torch"

    seed: Annotated[int, Ge(0), Le(2**32 - 1)] = 0
    steps: Annotated[int, Ge(1), Le(100_000)] = 300
    learning_rate: Annotated[float, Gt(0)] = 5e-3
    hidden: Annotated[int, Ge(1), Le(MOST_HIDDEN)] = 16
    indicator: Indicator = "margin"
    objective: ObjectiveName = "charbonnier"
    bins: Annotated[int, Ge(2), Le(1000)] = 15
    lam: Annotated[float, Gt(0), Le(1e6)] = 200.0
    delta: Annotated[float, Ge(0), Le(1)] = 1e-3

    def memory_bytes(self, n: int, k: int) -> int:
        """The logits once, or the hidden units and the curves of confidence."""
        inputs = 3 * k if self.indicator == "all_logits" else 0
        numbers = max(k, 3 * self.hidden + 4 + curve_numbers(k)) + inputs
        return 8 * n * numbers + scratch_bytes()

    def _fit_scaled(
        self, data: CalibrationSet, base: TemperatureMap, context: FitContext
    ) -> SmartMap:
        device = torch_device(context.device)
        signal = indicate(self.indicator, data.logits, base.temperature)
        centre, spread = signal.mean(axis=0), signal.std(axis=0)
        spread[spread == 0] = 1.0
        weights, value = self._train((signal - centre) / spread, data, base.temperature, context)
        return SmartMap(
            k=data.k,
            kind=data.kind,
            base_temperature=base.temperature,
            indicator=self.indicator,
            centre=centre,
            spread=spread,
            **weights,
            fit_info={
                "objective": self.objective,
                "value": value,
                "steps": self.steps,
                "device": str(device),
            },
        )

    def _train(
        self, signal: Floats, data: CalibrationSet, temperature: float, context: FitContext
    ) -> tuple[dict[str, Any], float]:
        """The network's weights after all steps, and the objective they reach."""
        import torch

        device = torch_device(context.device)
        samples = observe(data, 1 / temperature, str(device))
        objective = make_objective(
            self.objective, samples, bins=self.bins, lam=self.lam, delta=self.delta
        )
        inputs = torch.from_numpy(signal).to(device)
        w1, b1 = initial_weights(self.seed, inputs.shape[1], self.hidden)
        start = (w1, b1, np.zeros(self.hidden), np.array(NEUTRAL))
        weights = [torch.tensor(one, device=device) for one in start]
        optimiser = Adam(weights, self.learning_rate)
        with torch_threads(data.n * self.hidden):
            first = _set_gradients(weights, inputs, objective)
            for step in range(1, self.steps + 1):
                value = _set_gradients(weights, inputs, objective)
                optimiser.step()
                context.step(step, self.steps, value)
            value = _set_gradients(weights, inputs, objective)
        if value > first:
            context.warn(
                NotConverged,
                f"the objective rose from {first:.3g} to {value:.3g}: try a smaller learning_rate",
            )
        fitted = [one.cpu().numpy() for one in weights]
        named = dict(zip(("w1", "b1", "w2"), fitted, strict=False))
        return {**named, "b2": float(fitted[3])}, value


def _set_gradients(
    weights: list[torch.Tensor], inputs: torch.Tensor, objective: Objective
) -> float:
    """The objective at these weights; leaves its gradient in their ``grad``."""
    w1, b1, w2, b2 = weights
    hidden = (w1.T @ inputs.T).add_(b1[:, None]).clamp_(min=0)
    raised = w2 @ hidden + b2
    temperature = raised.exp().log1p().where(raised < 30, raised) + FLOOR
    if not temperature.isfinite().all():
        raise FitError("diverged", "the fit did not stay finite: try a smaller learning_rate")
    value, by_log_beta = objective(1 / temperature)
    by_raised = -by_log_beta / temperature * raised.sigmoid()
    active = (hidden > 0).to(hidden.dtype)
    w1.grad = (active @ (by_raised[:, None] * inputs)).T * w2
    b1.grad = (active @ by_raised) * w2
    w2.grad, b2.grad = hidden @ by_raised, by_raised.sum()
    return value


def initial_weights(seed: int, inputs: int, hidden: int) -> tuple[Floats, Floats]:
    """The hidden layer's start, uniform in (-1, 1): w1 (inputs, hidden) and b1 (hidden,)."""
    rng = np.random.default_rng(seed)
    return rng.uniform(-1, 1, (inputs, hidden)), rng.uniform(-1, 1, hidden)
