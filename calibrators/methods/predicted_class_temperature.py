"""A temperature for each predicted class, by exact coordinate search on the ECE."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge, Le

from calibrators.base import TemperatureTypeMap
from calibrators.data import CalibrationSet
from calibrators.errors import ParameterError
from calibrators.export.onnx import Builder
from calibrators.fitting.context import FitContext
from calibrators.methods._after_temperature import AfterTemperature
from calibrators.methods._step_tables import refuse
from calibrators.methods.temperature import TemperatureMap
from calibrators.metrics.bins import bin_index
from calibrators.numerics.confidence_curves import Samples, observe
from calibrators.numerics.parallel import Floats, scratch_bytes

POINTS_PER_OCTAVE = 16
OCTAVES = 3


@dataclass(frozen=True, eq=False, kw_only=True)
class PredictedClassTemperatureMap(TemperatureTypeMap):
    """``softmax(logits / class_temperatures[predicted class])``."""

    method = "predicted_class_temperature"
    complexity = 50

    class_temperatures: Floats

    def __post_init__(self) -> None:
        super().__post_init__()
        values = self.class_temperatures
        if values.shape != (self.k,):
            raise ParameterError(
                "bad_parameter",
                f"class_temperatures must have shape ({self.k},), got {values.shape}",
            )
        broken = np.logical_not((values > 1e-37) & (values < 1e37))
        refuse("class_temperatures", "lie between 1e-37 and 1e37", values, broken)

    def _inverse_temperatures(self, logits: Floats) -> Floats:
        return np.asarray(1 / self.class_temperatures[logits.argmax(axis=1)])

    def _onnx_inverse_temperature(self, graph: Builder, logits: str) -> str:
        top = graph.add("ArgMax", logits, axis=1, keepdims=1)
        return graph.add("Gather", graph.constant(1 / self.class_temperatures), top)


@dataclass(frozen=True)
class PredictedClassTemperature(AfterTemperature):
    """Divide the logits by a temperature that depends on the predicted class and minimises the ECE.

    ``p = softmax(z / T[argmax z])``, so the order of the classes never changes. The search on the
    fit set tries 97 temperatures, from 1/8 to 8 times the temperature T0 of temperature scaling. It
    runs twice, starting from T0 and from the best single temperature for all classes, and the
    better result is used.

    The contribution of the samples predicted as class k to the bins of the ECE is tabulated once
    for each temperature, from the confidence curve (numerics.confidence_curves). After that,
    changing the temperature of one class costs a few additions, regardless of n. Sweeps over the
    classes continue until no class can lower the ECE; the result is a coordinate-wise minimum on
    the grid. Classes with the most predictions come first. On ties, the temperature nearest to the
    start is used. Classes that are never predicted keep the starting temperature.

    This is a variant of class-based temperature scaling (the method `cts`), which divides the logit
    of *every* class by that class's own temperature and can change the predicted class. Here, the
    temperature belongs to the predicted class.

    If a class has few samples, its temperature fits their noise; see docs/studies/posthoc.md.

    After Frenkel, Goldberger: Network calibration by class-based temperature scaling. EUSIPCO 2021.

    >>> rng = np.random.default_rng(0)
    >>> z = rng.normal(size=(6000, 3)) * 2
    >>> y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    >>> factor = np.array([1.0, 2.0, 3.0])[z.argmax(axis=1)]     # each class off in its own way
    >>> fitted = PredictedClassTemperature().fit(CalibrationSet(z * factor[:, None], y))
    >>> bool(np.all(np.abs(fitted.class_temperatures / [1, 2, 3] - 1) < 0.25))
    True
    """

    name = "predicted_class_temperature"
    summary = "a temperature for each predicted class, by coordinate search on the ECE"
    reference = "after Frenkel and Goldberger, EUSIPCO 2021"
    cost = "temperature scaling and 97 passes over the confidences"

    bins: Annotated[int, Ge(2), Le(1000)] = 15

    def memory_bytes(self, n: int, k: int) -> int:
        """Estimate the peak memory: the logits or two search tables, and 20 numbers per row."""
        table = k * self.bins * (2 * OCTAVES * POINTS_PER_OCTAVE + 1)
        return 8 * (max(n * k, 2 * table) + 20 * n) + scratch_bytes()

    def _fit_scaled(
        self, data: CalibrationSet, base: TemperatureMap, context: FitContext
    ) -> PredictedClassTemperatureMap:
        steps = np.arange(-OCTAVES * POINTS_PER_OCTAVE, OCTAVES * POINTS_PER_OCTAVE + 1)
        factors = 2.0 ** (steps / POINTS_PER_OCTAVE)
        predicted = data.logits.argmax(axis=1)
        table = self._tabulate(
            observe(data, 1 / base.temperature), predicted, data.k, factors, context
        )
        order = _most_predicted_first(table, predicted)
        best_for_all = int(np.abs(table.sum(axis=0)).sum(axis=1).argmin())
        searches = [_search(table, order, at, context) for at in (len(factors) // 2, best_for_all)]
        total, sweeps, chosen = min(searches, key=lambda found: found[0])
        context.step(len(factors) + 1, len(factors) + 1, total / data.n)
        return PredictedClassTemperatureMap(
            k=data.k,
            kind=data.kind,
            class_temperatures=base.temperature * factors[chosen],
            fit_info={
                "objective": "ece",
                "value": total / data.n,
                "sweeps": sweeps,
                "device": "cpu",
            },
        )

    def _tabulate(
        self,
        samples: Samples,
        predicted: Floats,
        k: int,
        factors: Floats,
        context: FitContext,
    ) -> Floats:
        """Return the sum of confidence minus correctness for each class, temperature and bin."""
        table = np.empty((k, len(factors), self.bins))
        for place, factor in enumerate(factors):
            confidence = np.exp(-samples.curve.log_partition(1 / factor)[0])
            cell = predicted * self.bins + bin_index(confidence, self.bins)
            gap = np.bincount(cell, confidence - samples.correct, k * self.bins)
            table[:, place] = gap.reshape(k, self.bins)
            context.step(place + 1, len(factors) + 1)
        return table


def _most_predicted_first(table: Floats, predicted: Floats) -> Floats:
    """Return the predicted classes, most frequent first.

    Ties are broken by the sums of the table, so that class numbering does not matter.
    """
    counts = np.bincount(predicted, minlength=len(table))
    order = np.lexsort((table[:, 0].sum(axis=1), -counts))
    return np.asarray(order[: np.count_nonzero(counts)])


def _search(
    table: Floats, order: Floats, start: int, context: FitContext
) -> tuple[float, int, Floats]:
    """Return n times the ECE, the number of sweeps, and the index of each class's temperature."""
    nearest = np.argsort(np.abs(np.arange(table.shape[1]) - start), kind="stable")
    table = table[:, nearest]
    chosen = np.zeros(len(table), dtype=np.int64)
    gaps = table[:, 0].sum(axis=0)
    sweeps, before = 0, None
    while before is None or (chosen != before).any():
        sweeps, before = sweeps + 1, chosen.copy()
        for place in order:
            context.cancelled()
            others = gaps - table[place, chosen[place]]
            values = np.abs(others + table[place]).sum(axis=1)
            if values.min() < values[chosen[place]] - 1e-9:
                chosen[place] = values.argmin()
            gaps = others + table[place, chosen[place]]
    return float(np.abs(gaps).sum()), sweeps, nearest[chosen]
