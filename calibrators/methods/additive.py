"""Additive: smooth corrections of the top label's log odds, with a credible band."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from calibrators.base import CalibrationMap
from calibrators.data import CalibrationSet
from calibrators.errors import ParameterError
from calibrators.export.onnx import Builder
from calibrators.fitting.context import FitContext
from calibrators.methods._additive_posterior import NODES, DesignRows, fit_posterior, variances
from calibrators.methods._after_temperature import AfterTemperature, fall_back
from calibrators.methods._rest_temperature import fit_rest_temperature
from calibrators.methods._smart_features import onnx_sorted_gaps, sorted_gaps
from calibrators.methods._step_tables import check_rising, interpolated, onnx_interpolated, refuse
from calibrators.methods._top_label import (
    AHEAD,
    confidence_of,
    log_sum,
    onnx_others,
    top_label,
)
from calibrators.methods.temperature import TemperatureMap, check_temperature
from calibrators.numerics.parallel import Floats, Scratch, map_blocks
from calibrators.numerics.softmax import rewritten

TERMS = 3
MIN_RANGE = 1e-6
LARGEST_HEIGHT = 1e6
MAX_NODES = 64


class _Others(NamedTuple):
    """The classes other than the predicted one, relative to it: logits, row maxima and log-sums."""

    logits: Floats
    largest: Floats
    total: Floats


@dataclass(frozen=True, eq=False, kw_only=True)
class AdditiveMap(CalibrationMap):
    """New log odds of the predicted class, ``x + f(x) + g(log(1 + m)) + h(log(1 + d))``.

    x is the log odds of the predicted class in ``softmax(logits / base_temperature)``. m is the
    margin between the largest and the second largest of the scaled logits, d the gap between the
    second and the third. The functions f, g and h are linear between their ``nodes`` (3, p) and
    constant beyond them; their ``heights`` (3, p) are a posterior mean with ``covariance``
    (3p, 3p). The other classes share the remaining probability in the proportions of
    ``softmax(logits / rest_temperature)``.
    """

    method = "additive"
    complexity = 60
    keeps_class = True
    has_interval = True

    base_temperature: float
    rest_temperature: float
    nodes: Floats
    heights: Floats
    covariance: Floats

    def __post_init__(self) -> None:
        super().__post_init__()
        check_temperature(self.base_temperature)
        check_temperature(self.rest_temperature)
        shapes = (self.nodes.shape, self.heights.shape, self.covariance.shape)
        count = self.nodes.shape[1] if self.nodes.ndim == 2 else 0
        if shapes != ((TERMS, count), (TERMS, count), (TERMS * count,) * 2) or count < 2:
            raise ParameterError(
                "bad_parameter",
                "nodes and heights must have shape (3, p) and covariance shape (3p, 3p), "
                f"got {shapes}",
            )
        if count > MAX_NODES:
            raise ParameterError(
                "bad_parameter",
                f"an additive map must have at most {MAX_NODES} nodes per term, got {count}",
            )
        check_rising("nodes", self.nodes)
        flat = np.diff(self.nodes) <= 0
        refuse("nodes", "be increasing", self.nodes[:, 1:], flat)
        broken = ~(np.abs(self.heights) <= LARGEST_HEIGHT)
        refuse("heights", "lie in [-1e6, 1e6]", self.heights, broken)
        broken = ~(np.abs(self.covariance) <= LARGEST_HEIGHT)
        refuse("covariance", "lie in [-1e6, 1e6]", self.covariance, broken)

    @property
    def row_cost(self) -> int:
        """Approximate number of values computed per row in addition to its logits."""
        return 2 * self.k + 8 * TERMS

    def _interval(self, logits: Floats, level: float) -> tuple[Floats, Floats]:
        reach = NormalDist().inv_cdf((1 + level) / 2)
        low, high = np.empty(len(logits)), np.empty(len(logits))

        def work(start: int, stop: int, scratch: Scratch) -> None:
            block = logits[start:stop]
            odds = self._log_odds(block)
            variance = variances(self._terms(block, odds), self.nodes, self.covariance)
            centre = self._corrected(block, odds)
            away = reach * np.sqrt(np.maximum(variance, 0))
            low[start:stop] = confidence_of(centre - away)
            high[start:stop] = confidence_of(np.maximum(centre + away, self._lowest(block)))

        with np.errstate(invalid="ignore"):
            map_blocks(work, len(logits), self.row_cost)
        return low, high

    def _transform(self, logits: Floats) -> Floats:
        def write(block: Floats, largest: Floats, target: Floats) -> None:
            new = self._corrected(block, self._log_odds(block))
            others = _others(block, self.rest_temperature)
            alone = np.isinf(others.largest)
            shift = np.where(alone, 0, -new - np.where(alone, 0, others.total))
            limit = np.maximum(-np.where(alone, 0, others.largest) - AHEAD, 0)
            shift = np.minimum(shift, limit).astype(block.dtype)
            np.add(others.logits, shift[:, np.newaxis], out=target)
            np.put_along_axis(target, block.argmax(axis=1)[:, np.newaxis], 0, axis=1)

        return rewritten(logits, write, self.row_cost)

    def _log_odds(self, block: Floats) -> Floats:
        return -_others(block, self.base_temperature).total

    def _lowest(self, block: Floats) -> Floats:
        """Return the lowest log odds (n,) that keep the predicted class ahead of the second.

        The upper bound of the band is never below them, so that the band includes the confidence
        that ``apply`` returns.
        """
        others = _others(block, self.rest_temperature)
        alone = np.isinf(others.largest)
        limit = np.maximum(-others.largest - AHEAD, 0)
        return np.asarray(np.where(alone, np.inf, -limit - others.total))

    def _terms(self, block: Floats, log_odds: Floats) -> Floats:
        return np.stack([log_odds, *gap_terms(block, self.base_temperature)])

    def _corrected(self, block: Floats, log_odds: Floats) -> Floats:
        terms = self._terms(block, log_odds)
        return np.asarray(log_odds + interpolated(terms.T, self.nodes, self.heights).sum(axis=1))

    def onnx_logits(self, graph: Builder, logits: str) -> str:
        """Add the map to an ONNX graph: corrected log odds, other classes at their temperature."""
        log_odds = onnx_others(graph, logits, self.k, self.base_temperature).log_odds
        one = graph.constant(1.0, np.float64)
        count = min(2, self.k - 1)  # gaps: two classes have only the margin
        gaps = onnx_sorted_gaps(graph, logits, count, self.base_temperature)
        sums = np.array([[1.0, -1.0], [0.0, 1.0]])[:count, :count]
        steps = graph.add("MatMul", gaps, graph.constant(sums, np.float64))
        logs = graph.add("Log", graph.add("Add", steps, one))
        new = log_odds
        columns = [log_odds]
        for place in range(count):
            pick = np.eye(count)[:, [place]]
            columns.append(graph.add("MatMul", logs, graph.constant(pick, np.float64)))
        for column, nodes, heights in zip(columns, self.nodes, self.heights, strict=False):
            moved = onnx_interpolated(graph, column, nodes[np.newaxis], heights[np.newaxis])
            new = graph.add("Add", new, moved)
        rest = onnx_others(graph, logits, self.k, self.rest_temperature)
        return rest.shifted(graph, graph.add("Sub", rest.log_odds, new))


@dataclass(frozen=True)
class Additive(AfterTemperature):
    """``logit P(hit) = x + f(x) + g(log(1 + m)) + h(log(1 + d))``, as smooth as the data require.

    After temperature scaling, x is the log odds of the predicted class, m the margin between the
    largest and the second largest logit, and d the gap between the second and the third. The
    functions are linear between 14 nodes, with Gaussian priors on their second differences and on
    their size. The result is an average over a grid of log precisions, which determine how smooth
    and how large the functions are, and over the models with one, two and three terms. Each model
    is weighted by its evidence (Laplace's approximation) and a weak prior. If temperature scaling
    suffices, the functions are nearly 0. There is no seed and nothing to tune.

    The predicted class is kept. The other classes share the remaining probability in the
    proportions of ``softmax(z / T_rest)``. T_rest is the most probable temperature given the rows
    whose predicted class was wrong, under the prior ``log(T_rest / T) ~ N(0, 0.5^2)``.

    The posterior yields ``interval``, a credible band of each row's confidence. If there are more
    than 4,096 rows, they are gathered by x, m and d into 4,096 cells of nearly equal size.

    Related work: penalised splines (Eilers & Marx 1996), and Laplace approximations over a grid of
    hyper-parameters (Rue, Martino & Chopin 2009). docs/studies/auto.md has a comparison.

    >>> rng = np.random.default_rng(0)
    >>> z = rng.normal(size=(5000, 4)) * 3
    >>> y = np.where(rng.random(5000) < 0.6, z.argmax(axis=1), rng.integers(4, size=5000))
    >>> fitted = Additive().fit(CalibrationSet(z, y))            # right 7 times in 10
    >>> fitted.apply(z[:3]).max(axis=1).round(1)
    array([0.7, 0.7, 0.7])
    >>> low, high = fitted.interval(z[:3], level=0.9)
    >>> bool(((0.6 < low) & (low < 0.7) & (0.7 < high) & (high < 0.8)).all())
    True
    """

    name = "additive"
    summary = "smooth corrections of the top label's log odds and margins, with a credible band"
    reference = "docs/studies/auto.md"
    cost = "temperature scaling, 3 passes over the logits, and about 0.2 seconds"
    copies = 0.5
    numbers_a_row = 24.0

    def _fit_scaled(
        self, data: CalibrationSet, base: TemperatureMap, context: FitContext
    ) -> CalibrationMap:
        log_odds, correct = top_label(data, base)
        finite = np.isfinite(log_odds)
        terms = np.stack([log_odds, *gap_terms(data.logits, base.temperature)])[:, finite]
        varied = np.array([np.ptp(term) > MIN_RANGE if term.size else False for term in terms])
        if not varied.any():
            context.step(1, 1)
            return fall_back(self.name, base, "every row has the same confidence", context)
        rows = DesignRows.gathered(terms[varied], log_odds[finite], correct[finite])
        posterior = fit_posterior(rows, context.step)
        nodes = np.tile(np.arange(float(NODES)), (TERMS, 1))
        heights = np.zeros((TERMS, NODES))
        nodes[varied], heights[varied] = posterior.nodes, posterior.heights
        places = np.flatnonzero(np.repeat(varied, NODES))
        covariance = np.zeros((TERMS * NODES,) * 2)
        covariance[np.ix_(places, places)] = posterior.covariance
        return AdditiveMap(
            k=data.k,
            kind=data.kind,
            base_temperature=base.temperature,
            rest_temperature=fit_rest_temperature(data, base.temperature, correct == 0),
            nodes=nodes,
            heights=heights,
            covariance=covariance,
            fit_info={
                "objective": "evidence",
                "value": posterior.evidence,
                "weight_of_terms": list(posterior.shares),
                "log_smoothness": posterior.smoothness,
                "log_shrinkage": posterior.shrinkage,
                "device": "cpu",
            },
        )


def gap_terms(logits: Floats, temperature: float) -> tuple[Floats, Floats]:
    """Return ``log(1 + m)`` and ``log(1 + d)`` (n,) for ``logits / temperature``.

    m is the margin between the largest and the second largest value, and d the gap between the
    second and the third, or 0 if there is no third.

    >>> one, two = gap_terms(np.array([[0.0, 3.0, 2.0]]), 1.0)
    >>> np.expm1([one[0], two[0]]).round(6).tolist()
    [1.0, 2.0]
    """

    def work(start: int, stop: int, scratch: Scratch) -> tuple[Floats, Floats]:
        gaps = sorted_gaps(logits[start:stop], min(2, logits.shape[1] - 1), temperature)
        return np.log1p(gaps[:, 0]), np.log1p(gaps[:, -1] - gaps[:, 0])

    margin, second = zip(*map_blocks(work, *logits.shape), strict=True)
    return np.concatenate(margin), np.concatenate(second)


def _others(block: Floats, temperature: float) -> _Others:
    top = block.argmax(axis=1)[:, np.newaxis]
    logits = (block - np.take_along_axis(block, top, axis=1)) * block.dtype.type(1 / temperature)
    np.put_along_axis(logits, top, -np.inf, axis=1)
    largest = logits.max(axis=1)
    return _Others(logits, largest, log_sum(logits, largest))
