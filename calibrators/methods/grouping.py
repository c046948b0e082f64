"""Grouping calibration: a temperature for each learned feature group, averaged over partitions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from calibrators.base import Calibrator
from calibrators.data import CalibrationSet
from calibrators.errors import ParameterError
from calibrators.fitting.context import FitContext
from calibrators.methods._after_temperature import fallback_reason
from calibrators.methods._feature_map import FeatureMap
from calibrators.methods.temperature import TemperatureMap, TemperatureScaling, check_temperature
from calibrators.numerics.confidence_curves import curve_numbers, observe
from calibrators.numerics.lbfgs import minimise_together
from calibrators.numerics.parallel import Floats, row_blocks
from calibrators.numerics.softmax import softmax

OCTAVES, NODES_PER_OCTAVE = 4, 2
STEP = math.log(2) / NODES_PER_OCTAVE
SPREAD = 0.3
TOLERANCE, GAIN = 1e-6, 1e-6
BLOCK_ROWS = 1 << 11
TICKS = 1000
MOST_PARTITIONS, MOST_GROUPS = 100, 20


@dataclass(frozen=True, eq=False, kw_only=True)
class GroupingMap(FeatureMap):
    """``mean over u of softmax(logits / T_ug)``, where g is the row's group in partition u.

    ``temperatures`` has shape (partitions, groups). ``weights`` has one row per temperature, in the
    same order, whose product with the features is the score of that group. In each partition, a row
    belongs to the group with the largest score.
    """

    method = "grouping"
    complexity = 122
    keeps_class = True

    weights: Floats
    temperatures: Floats

    def _check_arrays(self) -> None:
        shape = self.temperatures.shape
        if (
            len(shape) != 2
            or not self.temperatures.size
            or (self.weights.ndim != 2 or len(self.weights) != self.temperatures.size)
        ):
            raise ParameterError(
                "bad_parameter",
                "weights must have a row for each of the temperatures (partitions, groups), "
                f"got shapes {self.weights.shape} and {shape}",
            )
        if shape[0] > MOST_PARTITIONS or shape[1] > MOST_GROUPS:
            raise ParameterError(
                "bad_parameter",
                f"a map may have at most {MOST_PARTITIONS} partitions of {MOST_GROUPS} groups, "
                f"got {shape[0]:,} of {shape[1]:,}",
            )
        for temperature in self.temperatures.ravel().tolist():
            check_temperature(temperature)

    @property
    def feature_count(self) -> int:
        """Number of features per row."""
        return int(self.weights.shape[1])

    @property
    def row_cost(self) -> int:
        """Approximate number of values computed per row in addition to its logits."""
        return self.weights.size // 8 + len(self.temperatures) * self.k

    def groups(self, features: Floats) -> NDArray[np.intp]:
        """Return the group of each row in each partition, (n, partitions)."""
        return groups_of(features, self.weights, self.temperatures.shape[1])

    def _transform_features(self, logits: Floats, features: Floats) -> Floats:
        out = np.empty(logits.shape, logits.dtype)
        inverse = 1 / self.temperatures
        for rows in row_blocks(len(logits), max(logits.shape[1], len(inverse))):
            block, groups = logits[rows], self.groups(features[rows])
            total = np.zeros(block.shape)
            for place, own in enumerate(inverse):
                total += softmax(block, own[groups[:, place]])
            with np.errstate(divide="ignore"):
                out[rows] = np.log(total / len(inverse))
        return out


def groups_of(features: Floats, weights: Floats, groups: int) -> NDArray[np.intp]:
    """Return the group with the largest score for each row and partition, (n, partitions)."""
    found = np.empty((len(features), len(weights) // groups), np.intp)
    for rows in row_blocks(len(features), max(features.shape[1], len(weights))):
        with np.errstate(over="ignore", invalid="ignore"):
            scores = features[rows].astype(np.float64) @ weights.T
        found[rows] = scores.reshape(-1, len(weights) // groups, groups).argmax(axis=2)
    return found


@dataclass(frozen=True)
class Grouping(Calibrator):
    """``p = mean over partitions u of softmax(z / T_ug)``, where g is the row's group in u.

    The method needs the features h of each row. Each partition divides the rows into groups by a
    linear function of h: ``P(g | h) = softmax(W_u h)``, without bias. W_u and a temperature for
    each of the ``groups`` minimise the NLL of the mixture ``sum_g P(g | h) softmax(z / T_g)`` plus
    ``decay`` times the mean of W_u^2. Each row is then assigned to its most probable group, and
    each group gets the exact temperature of temperature scaling on its rows. This is repeated from
    ``partitions`` random starts, drawn with ``seed``, and the probabilities are averaged. The order
    of the classes never changes.

    The defaults match the released code: 2 groups, 20 partitions, decay 0.1, 100 steps. The
    released code learns groups on one part of the data and temperatures on another; here, both are
    learned on all rows. The released code uses raw features; here, features are divided by their
    root mean square, so that the effect of decay does not depend on the scale. Both implementations
    use L-BFGS, this one for at most ``steps`` steps. A group whose rows have no optimum within the
    bounds of temperature scaling gets the temperature of all rows. If temperature scaling itself
    ends at its bound or finds flat logits, the map is temperature scaling.

    Yang, Zhan, Gan: Beyond probability partitions: calibrating neural networks with semantic aware
    grouping. NeurIPS 2023.

    >>> rng = np.random.default_rng(0)
    >>> h = rng.normal(size=(4000, 6))
    >>> z = rng.normal(size=(4000, 3)) * 2
    >>> T = np.where(h @ [1, -1, 0, 0, 0, 2] > 0, 4, 1)          # depends on the side of a plane
    >>> y = (z / T[:, None] + rng.gumbel(size=z.shape)).argmax(axis=1)
    >>> fitted = Grouping(partitions=5).fit(CalibrationSet(z, y, features=h))
    >>> sides = [[2.0, -2, 0, 0, 0, 4], [-2.0, 2, 0, 0, 0, -4]]
    >>> fitted.apply([[3.0, 0, 0]] * 2, features=sides)[:, 0].round(1).tolist()
    [0.5, 0.9]
    """

    name = "grouping"
    summary = "one temperature for each learned feature group, averaged over several partitions"
    reference = "Yang et al., NeurIPS 2023"
    cost = "about 100 products of the features with 40 weights, temperature scaling in 40 groups"
    needs_features = True

    groups: Annotated[int, Ge(2), Le(MOST_GROUPS)] = 2
    partitions: Annotated[int, Ge(1), Le(MOST_PARTITIONS)] = 20
    decay: Annotated[float, Ge(0), Le(1e6)] = 0.1
    steps: Annotated[int, Ge(1), Le(10_000)] = 100
    seed: Annotated[int, Ge(0), Le(2**32 - 1)] = 0

    def memory_bytes(self, n: int, k: int) -> int:
        """Estimate the peak memory: curves of all rows, or a subset of the rows with its groups."""
        curves = 8 * n * (curve_numbers(k) + 2 * _Likelihoods.count() + 4)
        return super().memory_bytes(n, k) + max(curves, 8 * n * (k + self.partitions))

    def feature_bytes(self, n: int, d: int) -> int:
        """Estimate the memory for a block of features in float64 and for the weights."""
        return 8 * min(n, BLOCK_ROWS) * d + 8 * 6 * self.groups * self.partitions * d

    def _fit(self, data: CalibrationSet, context: FitContext) -> GroupingMap:
        assert data.features is not None  # noqa: S101
        base = TemperatureScaling().fit_in(data, context.without_progress())
        assert isinstance(base, TemperatureMap)  # noqa: S101
        values = data.features.values
        count = self.groups * self.partitions
        weights = np.zeros((count, data.features.width))
        temperatures = np.full((self.partitions, self.groups), base.temperature)
        share = 0.0
        if fallback_reason(base) is None:
            weights = self._learned(data, values, base, context.part(0, TICKS // 2, TICKS))
            groups = groups_of(values, weights, self.groups)
            part = context.part(TICKS // 2, TICKS, TICKS)
            temperatures = self._temperatures(data, groups, base, part)
            share = float(np.mean(groups == 0))
        context.step(TICKS, TICKS)
        return GroupingMap(
            k=data.k,
            kind=data.kind,
            weights=weights,
            temperatures=temperatures,
            fit_info={
                "base_temperature": base.temperature,
                "mean_share_of_first_group": share,
                "temperatures": temperatures.tolist(),
            },
        )

    def _learned(
        self, data: CalibrationSet, values: Floats, base: TemperatureMap, context: FitContext
    ) -> Floats:
        """Return the learned weights (partitions * groups, d), which apply to unscaled features."""
        scale = _root_mean_square(values)
        likelihoods = _Likelihoods.of(data, 1 / base.temperature)
        width, count = values.shape[1], self.groups * self.partitions
        rng = np.random.default_rng(self.seed)
        weights = rng.uniform(-1, 1, size=(self.partitions, self.groups * width))
        spread = np.tile(np.linspace(-SPREAD, SPREAD, self.groups), (self.partitions, 1))
        start = np.concatenate([weights / math.sqrt(width), spread], axis=1)

        def functions(point: Floats) -> tuple[Floats, Floats]:
            context.cancelled()
            weights, log_betas = point[:, : -self.groups], point[:, -self.groups :]
            value, of_weights, of_betas = self._mixtures(
                values, weights.reshape(count, width) / scale, log_betas, likelihoods
            )
            of_weights = of_weights.reshape(weights.shape) / scale
            value = value + self.decay * np.mean(weights**2, axis=1)
            of_weights += self.decay * 2 * weights / weights.shape[1]
            return value, np.concatenate([of_weights, of_betas], axis=1)

        point = minimise_together(
            functions,
            start,
            self.steps,
            TOLERANCE,
            GAIN,
            lambda step: context.step(step, self.steps),
        )
        return np.asarray(point[:, : -self.groups].reshape(count, width) / scale)

    def _mixtures(
        self, features: Floats, weights: Floats, log_betas: Floats, likelihoods: _Likelihoods
    ) -> tuple[Floats, Floats, Floats]:
        """Return each partition's mean NLL and its gradients for the weights and log betas."""
        n, total = len(features), np.zeros(self.partitions)
        of_weights, of_betas = np.zeros(weights.shape), np.zeros(log_betas.shape)
        for start in range(0, n, BLOCK_ROWS):
            rows = slice(start, start + BLOCK_ROWS)
            block = features[rows].astype(np.float64)
            shape = (self.partitions, self.groups, len(block))
            scores = (weights @ block.T).reshape(shape)
            prior = scores - _log_sum_exp(scores)
            value, slope = (one.reshape(shape) for one in likelihoods.at(rows, log_betas.ravel()))
            joint = prior + value
            whole = _log_sum_exp(joint)
            share = np.exp(joint - whole)
            total -= whole[:, 0].sum(axis=1)
            of_weights += (np.exp(prior) - share).reshape(len(weights), -1) @ block
            of_betas -= (share * slope).sum(axis=2)
        return total / n, of_weights / n, of_betas / n

    def _temperatures(
        self,
        data: CalibrationSet,
        groups: NDArray[np.intp],
        base: TemperatureMap,
        context: FitContext,
    ) -> Floats:
        """Return the temperatures (partitions, groups), each fitted on the rows of its group."""
        found = np.full((self.partitions, self.groups), base.temperature)
        plain = data.with_features(None)
        for partition in range(self.partitions):
            for group in range(self.groups):
                context.step(partition * self.groups + group, found.size)
                rows = np.flatnonzero(groups[:, partition] == group)
                if not rows.size:
                    continue
                own = TemperatureScaling().fit_in(plain.take(rows), context.inner())
                assert isinstance(own, TemperatureMap)  # noqa: S101
                if fallback_reason(own) is None:
                    found[partition, group] = own.temperature
        return found


@dataclass(frozen=True)
class _Likelihoods:
    """The log likelihood of each row's label as a function of log beta, by cubic interpolation.

    ``table`` (nodes, n) holds its values at the nodes, and ``slopes`` its derivatives times the
    distance between nodes.
    """

    table: Floats
    slopes: Floats

    @classmethod
    def count(cls) -> int:
        """Return the number of nodes."""
        return 2 * OCTAVES * NODES_PER_OCTAVE + 1

    @classmethod
    def of(cls, data: CalibrationSet, beta: float) -> _Likelihoods:
        """Tabulate the log likelihoods of a set's labels at nodes relative to ``beta``."""
        samples = observe(data, beta)
        nodes = np.exp2(np.arange(cls.count()) / NODES_PER_OCTAVE - OCTAVES)
        table, slopes = np.empty((2, len(nodes), data.n))
        for place, one in enumerate(nodes.tolist()):
            level, slope = samples.curve.log_partition(one)
            table[place] = -one * samples.label_gap - level
            slopes[place] = (-one * samples.label_gap - slope) * STEP
        return cls(table, slopes)

    def at(self, rows: slice, log_betas: Floats) -> tuple[Floats, Floats]:
        """Return the values and slopes (betas, rows) of the given rows at the given log betas."""
        last = len(self.table) - 1
        at = np.clip(log_betas / STEP + OCTAVES * NODES_PER_OCTAVE, 0, last)
        left = np.minimum(at.astype(np.intp), last - 1)
        t = (at - left)[:, np.newaxis]
        value, slope = self.table[:, rows], self.slopes[:, rows]
        low, start, end = value[left], slope[left], slope[left + 1]
        rise = value[left + 1] - low
        second, third = 3 * rise - 2 * start - end, start + end - 2 * rise
        found = low + t * (start + t * (second + t * third))
        inside = ((at > 0) & (at < last))[:, np.newaxis]
        return found, (start + t * (2 * second + 3 * t * third)) * inside / STEP


def _log_sum_exp(values: Floats) -> Floats:
    """Return the log-sum-exp over the second axis, which is kept with length 1."""
    largest = values.max(axis=1, keepdims=True)
    return np.asarray(np.log(np.exp(values - largest).sum(axis=1, keepdims=True)) + largest)


def _root_mean_square(values: Floats) -> float:
    """Return the root mean square of the features, or 1 if all of them are 0."""
    largest = max(float(values.max()), -float(values.min())) or 1.0
    total = 0.0
    for rows in row_blocks(*values.shape):
        total += float(((values[rows].astype(np.float64) / largest) ** 2).sum())
    return largest * math.sqrt(total / values.size) or 1.0
