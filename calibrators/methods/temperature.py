"""Temperature scaling: one number for the whole model, found exactly."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Gt, Le

from calibrators.base import Calibrator, TemperatureTypeMap
from calibrators.data import CalibrationSet
from calibrators.errors import BoundarySolution, FitError, FlatLogits, ParameterError
from calibrators.export.onnx import Builder
from calibrators.fitting.context import FitContext
from calibrators.metrics._sorted import equal_mass
from calibrators.metrics.bins import equal_width
from calibrators.numerics.confidence_curves import MANY_CLASSES, Samples, curve_numbers, observe
from calibrators.numerics.objectives import SMOOTHING, ObjectiveName, make_objective
from calibrators.numerics.parallel import Floats, scratch_bytes
from calibrators.numerics.softmax import margins, mean_gaps, partition_sums

REACH = 1e4
SUBSAMPLE = 500
MIN_START = 100
OCTAVES = 4
ITERATIONS = 100
TENTHS = 100
ALL_RIGHT = (
    "every prediction on the fit set is correct (or nearly so), so the best T is 0 or near it"
)
SCALES = {4: (1e-30, 1e15), 8: (1e-30, 1e30)}


def check_temperature(temperature: float) -> None:
    """Raise unless a temperature and its inverse are positive and finite in float32."""
    if not 1e-37 < temperature < 1e37:
        raise ParameterError(
            "bad_parameter", f"temperature must lie between 1e-37 and 1e37, got {temperature}"
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class TemperatureMap(TemperatureTypeMap):
    """``softmax(logits / temperature)``."""

    method = "temperature"
    complexity = 10

    temperature: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_temperature(self.temperature)

    def _inverse_temperatures(self, logits: Floats) -> float:
        return 1 / self.temperature

    def _onnx_inverse_temperature(self, graph: Builder, logits: str) -> str:
        return graph.constant(1 / self.temperature)


@dataclass(frozen=True)
class TemperatureScaling(Calibrator):
    """``p = softmax(z / T)``, where T minimises the mean negative log likelihood on the fit set.

    The NLL is convex in 1/T. It is minimised by Halley's method within a bracket, so the result is
    the optimum to about 1e-7, and does not depend on a fixed number of steps. If the optimum is at
    T = 0 (every prediction is correct) or T = infinity (no better than chance), T stops at a bound,
    1e4 times smaller or larger than the scale of the logits, with a BoundarySolution warning. Flat
    logits give T = 1 with a FlatLogits warning.

    ``objective`` is "nll", "label_smoothing" (0.05), or another objective from the literature:
    "ece" (equal-width bins), "ada_ece" (equal-mass bins), or one of the objectives in
    numerics.objectives, where "soft_ece" and "charbonnier" have the binned form and ``lam`` is
    ``1 / (2 sigma^2)`` for soft bins of width sigma. These objectives need not be convex. They are
    minimised on a grid from T/16 to 16 T around the NLL optimum T, refined to one part in a
    million. If the NLL itself ends at a bound, so does T. An objective that is still decreasing at
    the end of the grid also gives a BoundarySolution warning.

    ``grid="tenths"`` only tries T = 0.1, 0.2, ..., 10, whatever the scale of the logits, and takes
    the lowest T on ties. With ``objective="ada_ece"``, this is how the AdaFocal paper selects T.

    Guo, Pleiss, Sun, Weinberger: On calibration of modern neural networks. ICML 2017.

    >>> rng = np.random.default_rng(0)
    >>> z = rng.normal(size=(5000, 10)) * 2
    >>> y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)        # labels drawn from softmax(z)
    >>> round(TemperatureScaling().fit(CalibrationSet(3 * z, y)).temperature, 1)
    3.0
    """

    name = "temperature"
    summary = "one temperature for all samples, the exact minimiser of the NLL"
    reference = "Guo et al., ICML 2017"
    cost = "2 or 3 passes over the logits"

    objective: Literal[ObjectiveName, "ece", "ada_ece"] = "nll"
    grid: Literal["refined", "tenths"] = "refined"
    bins: Annotated[int, Ge(2), Le(1000)] = 15
    lam: Annotated[float, Gt(0), Le(1e6)] = 200.0
    delta: Annotated[float, Ge(0), Le(1)] = 1e-3

    def memory_bytes(self, n: int, k: int) -> int:
        """Estimate the peak memory, which for most objectives includes the confidence curves."""
        tenths = self.grid == "tenths"
        if not tenths and self.objective in ("nll", "label_smoothing"):
            return super().memory_bytes(n, k)
        few = tenths or k <= MANY_CLASSES
        numbers = 3.5 * k if few else max(k, curve_numbers(k))
        return int(8 * n * (numbers + 20)) + scratch_bytes()

    def _fit(self, data: CalibrationSet, context: FitContext) -> TemperatureMap:
        bounds = _bounds(_every(data, data.n // SUBSAMPLE)) or _bounds(data)
        if bounds is None:
            context.warn(FlatLogits, "no row has two different finite logits: T stays 1")
            return self._map(data, 1.0, at_bound=False, evaluations=0)
        if self.grid == "tenths":
            return self._on_tenths(data, context)
        root = _minimise_nll(data, bounds, SMOOTHING if self.objective == "label_smoothing" else 0)
        context.step(1, 2)
        if root.at_bound:
            why = ALL_RIGHT if root.value == bounds[1] else _why_infinite(data)
            context.warn(BoundarySolution, f"{why}; T stops at its bound, {1 / root.value:.3g}")
        elif self.objective not in ("nll", "label_smoothing"):
            function = self._function_of_beta(observe(data, root.value), context)
            beta, evaluations = minimise_on_grid(function, 1.0, OCTAVES)
            at_end = abs(math.log2(beta)) > OCTAVES - 0.1
            root = Root(beta * root.value, at_end, root.evaluations + evaluations)
            if at_end:
                context.warn(BoundarySolution, _end_sentence(self.objective, root.value))
        context.step(2, 2)
        return self._map(data, root.value, at_bound=root.at_bound, evaluations=root.evaluations)

    def _on_tenths(self, data: CalibrationSet, context: FitContext) -> TemperatureMap:
        smoothed = self.objective == "label_smoothing"
        samples = observe(data, exact=True, with_mean_gaps=smoothed)
        function = self._function_of_beta(samples, context)
        tenths = np.arange(1, TENTHS + 1)
        best = int(np.argmin([function(10 / tenth) for tenth in tenths])) + 1
        at_end = best in (1, TENTHS)
        if at_end:
            context.warn(
                BoundarySolution,
                f"the {self.objective} objective is lowest at the end of the grid from 0.1 to 10; "
                f"T stops there, at {best / 10}",
            )
        context.step(2, 2)
        return self._map(data, 10 / best, at_bound=at_end, evaluations=TENTHS)

    def _map(self, data: CalibrationSet, beta: float, **info: Any) -> TemperatureMap:
        info = {"objective": self.objective, "device": "cpu", **info}
        return TemperatureMap(k=data.k, kind=data.kind, temperature=1 / beta, fit_info=info)

    def _function_of_beta(self, samples: Samples, context: FitContext) -> Callable[[float], float]:
        def ece(beta: float) -> float:
            context.step(1, 2)
            confidence = np.exp(-samples.curve.log_partition(beta)[0])
            if self.objective == "ece":
                return equal_width(confidence, samples.correct, self.bins).ece()
            return equal_mass(confidence, samples.correct, self.bins).ece()

        if self.objective in ("ece", "ada_ece"):
            return ece
        objective = make_objective(
            self.objective, samples, bins=self.bins, lam=self.lam, delta=self.delta
        )

        def value(beta: float) -> float:
            context.step(1, 2)
            return objective(beta)[0]

        return value


def _bounds(data: CalibrationSet) -> tuple[float, float] | None:
    """Return bounds for 1/T that suit the scale of the logits, or None if the logits are flat."""
    mean_gap = float(mean_gaps(data).mean())
    if mean_gap == 0:
        return None
    margin = margins(data.logits).astype(np.float64)
    margin = margin[np.isfinite(margin) & (margin > 0)]
    scale = float(np.quantile(margin, 0.1)) if margin.size else mean_gap
    smallest, largest = SCALES[data.logits.dtype.itemsize]
    if not smallest < scale < largest:
        raise FitError(
            "bad_scale",
            f"logits must differ by more than {smallest:g} and less than {largest:g} in "
            f"{data.logits.dtype}, got margins of about {scale:.2g}: rescale them",
        )
    return 1 / (REACH * mean_gap), REACH / scale


def _minimise_nll(
    data: CalibrationSet, bounds: tuple[float, float], smoothing: float, accuracy: float = 1e-8
) -> Root:
    """Return the best 1/T; if n is large, start from the solution on every eighth row."""
    pull = data.label_gaps
    if smoothing:
        pull = (1 - smoothing) * pull + smoothing * mean_gaps(data)
    if not pull.any():
        return Root(bounds[1], True, 0)
    start = math.sqrt(bounds[0] * bounds[1])
    if data.n >= 8 * MIN_START:
        coarse = _minimise_nll(_every(data, 8), bounds, smoothing, 1e-3)
        start = start if coarse.at_bound else coarse.value
    mean_pull = float(pull.mean(dtype=np.float64))

    def derivatives(beta: float) -> tuple[float, float, float]:
        _, first, second, third = partition_sums(data.logits, data.row_max, beta)
        return first / data.n + mean_pull, second / data.n, third / data.n

    return bracketed_newton(derivatives, *bounds, start, accuracy)


def _every(data: CalibrationSet, stride: int) -> CalibrationSet:
    """Return every ``stride``-th row of a set."""
    return data if stride < 2 else data.take(np.arange(0, data.n, stride))


def _end_sentence(objective: str, beta: float) -> str:
    return (
        f"the {objective} objective is still decreasing at the end of its grid, a factor of "
        f"{2**OCTAVES} from the NLL optimum; T stops there, at {1 / beta:.3g}"
    )


def _why_infinite(data: CalibrationSet) -> str:
    """Return the reason for an infinite T: a single row, or the logits as a whole."""
    pull = data.label_gaps.astype(np.float64)
    excess = pull - mean_gaps(data)  # the slope of each row's NLL at 1/T = 0
    worst = int(excess.argmax())
    if excess.sum() - excess[worst] >= 0:
        return (
            "the logits predict the labels no better than chance (do they belong to the same rows, "
            "with the same class numbers?), so the best T is infinite"
        )
    return (
        f"row {worst} outweighs all others combined (check it: the logit of its label is "
        f"{pull[worst]:.3g} below the largest), so the best T is infinite"
    )


@dataclass(frozen=True)
class Root:
    """The root of a derivative, or a bound if the sign is the same on the whole interval."""

    value: float
    at_bound: bool
    evaluations: int


def bracketed_newton(
    derivatives: Callable[[float], Sequence[float]],
    low: float,
    high: float,
    start: float,
    accuracy: float = 1e-7,
) -> Root:
    """Return the minimiser of a convex function on [low, high], 0 < low < high.

    ``derivatives(x)`` returns the first and second derivative, and the third if it is known. Steps
    are taken in log x. A step that would leave the bracket goes to the bound if that has not been
    tried yet, otherwise to the geometric middle, so the search cannot cycle. A step squares the
    error (Newton) or, with a third derivative, cubes it (Halley). The search therefore ends with
    the first step whose square or cube is below ``accuracy``, relative to x.

    >>> bracketed_newton(lambda x: (x - 1 / x, 1 + 1 / x**2), 1e-3, 1e3, 50.0).value
    1.0...
    """
    lower_known = upper_known = False
    lowest, highest = lower, upper = math.log(low), math.log(high)
    at = min(max(math.log(start), lower), upper)
    for evaluations in range(1, ITERATIONS + 1):
        x = math.exp(at)
        slope, bend, *third = derivatives(x)
        if (at == lowest and slope >= 0) or (at == highest and slope <= 0):
            return Root(low if at == lowest else high, True, evaluations)
        if slope > 0:
            upper, upper_known = at, True
        else:
            lower, lower_known = at, True
        step = _step(x, slope, bend, *third)
        following = at + step
        if abs(step) < accuracy ** (1 / (2 + len(third))) or upper - lower < accuracy:
            return Root(math.exp(min(max(following, lower), upper)), False, evaluations)
        if following <= lower:
            following = 0.5 * (lower + upper) if lower_known else lower
        elif following >= upper:
            following = 0.5 * (lower + upper) if upper_known else upper
        at = following
    raise FitError(
        "no_root", f"no root of the derivative in [{low}, {high}]: is the function convex?"
    )


def _step(x: float, slope: float, bend: float, third: float = math.nan) -> float:
    """Return Halley's step in log x, or Newton's if they differ by a factor of 2 or more.

    Without ``third``, the step is Newton's.
    """
    if not bend > 0:
        return math.copysign(math.inf, -slope)
    newton = -slope / (x * bend)
    divisor = 1 + newton * (1 + x * third / bend) / 2
    return newton / divisor if 0.5 < divisor < 2 else newton


def minimise_on_grid(
    function: Callable[[float], float], centre: float, octaves: float = 4.0
) -> tuple[float, int]:
    """Minimise any function of one positive number; return the minimiser and evaluation count.

    The function is evaluated at eight points per octave around ``centre``, then on ever finer grids
    around the best point, down to one part in a million. On ties, the point nearest to the centre
    of the grid is used.

    >>> round(minimise_on_grid(lambda x: abs(math.log(x / 3)), 1.0)[0], 5)
    3.0
    """
    best, width, evaluations = math.log(centre), octaves * math.log(2), 0
    points = int(16 * octaves) + 1
    while width > 1e-6:
        offsets = np.linspace(-width, width, points)
        values = [function(math.exp(best + offset)) for offset in offsets]
        evaluations += len(values)
        order = np.lexsort(np.stack([np.abs(offsets), values]))
        best += float(offsets[order[0]])
        width = float(offsets[1] - offsets[0])
        points = 9
    return math.exp(best), evaluations
