"""CTS, class-based temperature scaling: each column of the logits gets its own temperature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from calibrators.base import CalibrationMap
from calibrators.data import CalibrationSet
from calibrators.errors import BoundarySolution, ParameterError
from calibrators.export.onnx import DOUBLE, FLOAT, Builder
from calibrators.fitting.context import FitContext
from calibrators.methods._after_temperature import AfterTemperature
from calibrators.methods._linear import Features, LinearMap, features_of_set
from calibrators.methods._step_tables import refuse
from calibrators.methods.temperature import TemperatureMap
from calibrators.numerics.parallel import Floats, Scratch, map_blocks, row_blocks, scratch_bytes
from calibrators.numerics.softmax import rewritten

POINTS_PER_OCTAVE = 16
OCTAVES = 2
GAIN = 1e-9  # in rows; a smaller decrease of the ECE is treated as a rounding error
NEVER = -37.0  # a score this far below the largest does not change the confidence

Integers = NDArray[np.intp]


@dataclass(frozen=True, eq=False, kw_only=True)
class ClassTemperatureMap(LinearMap):
    """``softmax(weights * x)`` with x = logits / base_temperature; the bias is 0.

    If ``centred`` is True, the mean of the row's finite values is subtracted from x.
    """

    method = "cts"
    complexity = 180

    centred: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weights.ndim != 1 or self.bias.any():
            raise ParameterError(
                "bad_parameter", "a CTS map must have one weight for each class, and a bias of 0"
            )
        broken = np.logical_not((self.weights > 1e-37) & (self.weights < 1e37))
        refuse("weights", "lie between 1e-37 and 1e37", self.weights, broken)

    @classmethod
    def features(cls) -> Features:
        """Return "centred"."""
        return "centred"

    def _transform(self, logits: Floats) -> Floats:
        if self.centred:
            return super()._transform(logits)

        def write(block: Floats, largest: Floats, target: Floats) -> None:
            scores = block / self.class_temperatures
            scores -= scores.max(axis=1, keepdims=True)
            target[...] = scores

        return rewritten(logits, write)

    def onnx_logits(self, graph: Builder, logits: str) -> str:
        """Add the logits, each divided by the temperature of its column, to an ONNX graph."""
        if self.centred:
            return super().onnx_logits(graph, logits)
        wide = graph.add("Cast", logits, to=DOUBLE)
        inverse = graph.constant(self.weights / self.base_temperature, np.float64)
        scores = graph.add("Mul", wide, inverse)
        largest = graph.add("ReduceMax", scores, graph.constant([1], np.int64), keepdims=1)
        return graph.add("Cast", graph.add("Sub", scores, largest), to=FLOAT)

    @property
    def class_temperatures(self) -> Floats:
        """The temperature of each class's column, (k,)."""
        return np.asarray(self.base_temperature / self.weights)


@dataclass(frozen=True)
class ClassTemperature(AfterTemperature):
    """``p = softmax(z_1 / T_1, ..., z_K / T_K)`` with temperatures chosen to minimise the ECE.

    This is the greedy search of the paper on the fit set. Class by class, it picks the grid
    temperature that lowers the ECE most, with all other temperatures fixed. The search ends after
    ``sweeps`` rounds over the classes, or when no class changes. It starts from the single grid
    temperature with the lowest ECE. The predicted class may change. To keep it, use
    `predicted_class_temperature`, where the temperature of a row depends on its predicted class.

    Choices made here: z are the logits divided by the temperature of temperature scaling, minus the
    mean of the row's finite values, so that neither the scale of the logits nor a constant added to
    a row matters. The grid has 65 temperatures in equal ratios, from a quarter to four times the
    scale. Classes with the most predictions come first. With ``as_published``, z are the logits as
    they are, so both the scale and constants matter; the grid is 0.1, 0.2, ..., 10; and classes
    come in numerical order.

    For each row, the two largest columns and the sum of exponentials are stored. Trying a
    temperature therefore costs one exponential per row instead of K.

    If a class has few rows, its temperature fits their noise, and accuracy can fall. The method is
    included for comparison with published tables; see docs/studies/posthoc.md.

    Frenkel, Goldberger: Network calibration by class-based temperature scaling. EUSIPCO 2021.

    >>> rng = np.random.default_rng(0)
    >>> z = rng.normal(size=(6000, 3)) * 2
    >>> z -= z.mean(axis=1, keepdims=True)
    >>> y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    >>> fitted = ClassTemperature().fit(CalibrationSet(z * [1, 1, 2], y))    # spoil one column
    >>> [round(float(one), 1) for one in fitted.class_temperatures]
    [1.4, 1.1, 1.6]
    """

    name = "cts"
    summary = "a temperature for each class's logits, by greedy search on the ECE"
    reference = "Frenkel and Goldberger, EUSIPCO 2021"
    cost = "65 exponentials for each row and class, up to 5 times"
    for_comparison = True

    bins: Annotated[int, Ge(2), Le(1000)] = 15
    sweeps: Annotated[int, Ge(1), Le(100)] = 5
    as_published: bool = False

    def memory_bytes(self, n: int, k: int) -> int:
        """Estimate the peak memory: the features, their mask and 20 more numbers per row."""
        return int(8 * n * (1.3 * k + 20)) + scratch_bytes()

    def _fit(self, data: CalibrationSet, context: FitContext) -> CalibrationMap:
        if not self.as_published:
            return super()._fit(data, context)
        base = TemperatureMap(k=data.k, kind=data.kind, temperature=1.0)
        x = data.logits.astype(np.float64)
        return self._searched(data, base, x, np.arange(1, 101) / 10, np.arange(data.k), context)

    def _fit_scaled(
        self, data: CalibrationSet, base: TemperatureMap, context: FitContext
    ) -> ClassTemperatureMap:
        steps = np.arange(-OCTAVES * POINTS_PER_OCTAVE, OCTAVES * POINTS_PER_OCTAVE + 1)
        x, masked = features_of_set(data, base, "centred", tolerance=0.0)
        sums, counts = x.sum(axis=0), np.bincount(data.logits.argmax(axis=1), minlength=data.k)
        if masked is not None:
            x[masked] = -np.inf
        order = np.lexsort((sums, -counts))
        return self._searched(data, base, x, 2.0 ** (steps / POINTS_PER_OCTAVE), order, context)

    def _searched(
        self,
        data: CalibrationSet,
        base: TemperatureMap,
        x: Floats,
        factors: Floats,
        order: Integers,
        context: FitContext,
    ) -> ClassTemperatureMap:
        search = GreedySearch(x, data.labels, factors, self.bins)
        start = int(search.chosen[0])
        if start in (0, factors.size - 1):
            context.warn(
                BoundarySolution,
                "the single temperature with the lowest ECE is at the end of the grid, "
                f"{base.temperature * factors[start]:.3g}: the search starts there",
            )
        value, sweeps = search.run(order, self.sweeps, context)
        return ClassTemperatureMap(
            k=data.k,
            kind=data.kind,
            base_temperature=base.temperature,
            weights=1 / factors[search.chosen],
            bias=np.zeros(data.k),
            centred=not self.as_published,
            fit_info={"objective": "ece", "value": value, "sweeps": sweeps, "device": "cpu"},
        )


@dataclass(frozen=True, eq=False)
class Leaders:
    """The two largest scores of each row, their columns, and the sum of exponentials.

    ``top`` is the column of ``largest``, and ``runner`` the column of ``second``. ``total`` is the
    sum of exp(score - largest). A row without finite scores has ``largest`` -inf and ``total`` 0.
    """

    top: Integers
    largest: Floats
    runner: Integers
    second: Floats
    total: Floats

    @classmethod
    def of(cls, scores: Floats) -> Leaders:
        """Return the leaders of scores (n, k); the scores are overwritten."""
        rows = np.arange(len(scores))
        top = scores.argmax(axis=1)
        largest = scores[rows, top]
        reach = np.where(np.isinf(largest), 0.0, largest)
        total = np.exp(scores - reach[:, np.newaxis]).sum(axis=1)
        scores[rows, top] = -np.inf
        runner = scores.argmax(axis=1)
        return cls(top, largest, runner, scores[rows, runner], total)

    def put(self, rows: Any, part: Leaders) -> None:
        """Replace the given rows with ``part``."""
        for name, values in vars(part).items():
            getattr(self, name)[rows] = values

    def joined(self, column: int, score: Floats) -> Leaders:
        """Return the leaders after adding a column with the given scores (n,)."""
        wins = (score > self.largest) | ((score == self.largest) & (column < self.top))
        weight = np.exp(-np.abs(score - self.largest))
        second = np.where(wins, self.largest, np.maximum(score, self.second))
        behind = np.where(score > self.second, column, self.runner)
        return Leaders(
            np.where(wins, column, self.top),
            np.maximum(score, self.largest),
            np.where(wins, self.top, behind),
            second,
            np.where(wins, 1 + self.total * weight, self.total + weight),
        )


class GreedySearch:
    """Greedy search over the temperatures of the columns of ``x`` (n, k); values may be -inf."""

    def __init__(self, x: Floats, labels: Integers, factors: Floats, bins: int) -> None:
        self._x, self._labels, self._bins, self._inverse = x, labels, bins, 1 / factors
        start = self._best_for_all(factors)
        self.chosen = np.full(x.shape[1], start)
        # ties go to the temperature nearest to the start
        self._nearest = np.argsort(np.abs(np.arange(factors.size) - start), kind="stable")
        self._leading = self._leaders_of_all()

    def run(self, order: Integers, sweeps: int, context: FitContext) -> tuple[float, int]:
        """Search until nothing changes, for at most ``sweeps`` rounds; return ECE and rounds."""
        n, steps = len(self._x), sweeps * order.size + 1
        for sweep in range(sweeps):
            before = self.chosen.copy()
            for place, column in enumerate(order):
                value = self._improve(int(column)) / n
                context.step(sweep * order.size + place + 1, steps, value)
            if (self.chosen == before).all():
                break
        context.step(steps, steps, value)
        return value, sweep + 1

    def _best_for_all(self, factors: Floats) -> int:
        """Return the index of the factor that gives the lowest ECE if all columns use it.

        On ties, the factor nearest to 1 is used.
        """
        values = []
        for place in range(factors.size):
            self.chosen = np.full(self._x.shape[1], place)
            leading = self._leaders_of_all()
            sums = self._sums(1 / leading.total, leading.top == self._labels)
            values.append(np.abs(sums).sum())
        nearest = np.argsort(np.abs(np.log(factors)).round(9), kind="stable")
        return int(nearest[np.asarray(values)[nearest].argmin()])

    def _leaders_of_all(self) -> Leaders:
        def work(start: int, stop: int, scratch: Scratch) -> Leaders:
            return self._leaders(slice(start, stop))

        parts = map_blocks(work, *self._x.shape)
        columns = zip(*(vars(one).values() for one in parts), strict=True)
        return Leaders(*(np.concatenate(column) for column in columns))

    def _improve(self, column: int) -> float:
        """Set a column to its best temperature; return n times the resulting ECE."""
        others = self._without(column)
        values = self._values(column, others)[self._nearest]
        best, now = int(values.argmin()), int(np.argmax(self._nearest == self.chosen[column]))
        if not values[best] < values[now] - GAIN:
            return float(values[now])
        self.chosen[column] = self._nearest[best]
        score = self._x[:, column] * self._inverse[self.chosen[column]]
        self._leading = others.joined(column, score)
        return float(values[best])

    def _without(self, column: int) -> Leaders:
        """Return the leaders among all columns but this one."""
        now = self._leading
        score = self._x[:, column] * self._inverse[self.chosen[column]]
        # at least the term of the largest score itself, despite rounding
        left = np.maximum(now.total - np.exp(score - now.largest), 1.0)
        top, runner = now.top.copy(), now.runner.copy()
        others = Leaders(top, now.largest.copy(), runner, now.second.copy(), left)
        leads = np.flatnonzero((now.top == column) | (now.runner == column))
        for block in row_blocks(leads.size, self._x.shape[1]):
            others.put(leads[block], self._leaders(leads[block], column))
        return others

    def _leaders(self, rows: Any, without: int | None = None) -> Leaders:
        scores = self._x[rows] * self._inverse[self.chosen]
        if without is not None:
            scores[:, without] = -np.inf
        return Leaders.of(scores)

    def _values(self, column: int, others: Leaders) -> Floats:
        """Return n times the ECE for each grid temperature of one column."""
        own, right = self._x[:, column], self._labels == others.top
        inverse = self._inverse
        highest = np.where(own > 0, own * inverse.max(), own * inverse.min()) - others.largest
        idle, chasing = highest < NEVER, (highest >= NEVER) & (highest < 0)
        fixed = self._sums(1 / others.total[idle], right[idle])
        chaser = own[chasing], others.largest[chasing], others.total[chasing], right[chasing]
        rival = np.flatnonzero(highest >= 0)
        largest, total = others.largest[rival], others.total[rival]
        # on a tie, the lower column number leads
        bound = np.where(column < others.top[rival], np.nextafter(largest, -np.inf), largest)
        hits = self._labels[rival] == column, right[rival]

        def work(start: int, stop: int, scratch: Scratch) -> Floats:
            values = np.empty(stop - start)
            for place, factor in enumerate(inverse[start:stop]):
                confidence = 1 / (chaser[2] + np.exp(chaser[0] * factor - chaser[1]))
                sums = fixed + self._sums(confidence, chaser[3])
                score = own[rival] * factor
                wins = score > bound
                weight = np.exp(-np.abs(score - largest))
                confidence = 1 / np.where(wins, 1 + total * weight, total + weight)
                sums += self._sums(confidence, np.where(wins, *hits))
                values[place] = np.abs(sums).sum()
            return values

        return np.concatenate(map_blocks(work, inverse.size, own.size))

    def _sums(self, confidence: Floats, correct: NDArray[np.bool_]) -> Floats:
        """Return the sum of confidence minus correctness for each bin."""
        index = np.ceil(confidence * self._bins).astype(np.intp)
        return np.bincount(index, confidence - correct, self._bins + 1).astype(np.float64)
