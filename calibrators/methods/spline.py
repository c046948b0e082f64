"""Spline: a smooth correction of the confidence, from the cumulative accuracy by quantile."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from calibrators.errors import ParameterError
from calibrators.export.onnx import Builder
from calibrators.fitting.context import FitContext
from calibrators.methods._isotonic_fit import tally
from calibrators.methods._step_tables import (
    check_rising,
    onnx_confidence,
    onnx_interpolated,
    refuse,
)
from calibrators.methods._top_label import (
    TopLabelCalibrator,
    TopLabelMap,
    confidence_of,
    log_odds_of,
)
from calibrators.methods.temperature import TemperatureMap
from calibrators.numerics.parallel import Floats

NODES = 2000


@dataclass(frozen=True, eq=False, kw_only=True)
class SplineMap(TopLabelMap):
    """``c + correction(c)``, where the correction is linear between the nodes ``confidence``.

    It raises no confidence above ``1 - least`` and lowers none below ``least``. A confidence that
    is already beyond one of these limits is not moved further out.
    """

    method = "spline"
    complexity = 70

    confidence: Floats
    correction: Floats
    least: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.confidence.ndim != 1 or self.confidence.shape != self.correction.shape:
            raise ParameterError(
                "bad_parameter",
                "confidence and correction must have equal length, "
                f"got shapes {self.confidence.shape} and {self.correction.shape}",
            )
        check_rising("confidence", self.confidence)
        refuse("correction", "be finite", self.correction, ~np.isfinite(self.correction))
        if not 0 < self.least < 0.5:
            raise ParameterError("bad_parameter", f"least must be in (0, 0.5), got {self.least}")

    def _recalibrated(self, log_odds: Floats) -> Floats:
        old, rest = confidence_of(log_odds), confidence_of(-log_odds)
        correction = np.interp(old, self.confidence, self.correction)
        with np.errstate(divide="ignore"):
            moved = np.log(np.maximum(old + correction, 0))
            moved -= np.log(np.maximum(rest - correction, 0))
        furthest = -log_odds_of(np.asarray(self.least))
        lowest, highest = np.minimum(log_odds, -furthest), np.maximum(log_odds, furthest)
        return np.asarray(np.clip(moved, lowest, highest))

    def _onnx_recalibrated(self, graph: Builder, log_odds: str) -> str:
        old = onnx_confidence(graph, log_odds)
        rest = onnx_confidence(graph, graph.add("Neg", log_odds))
        nodes, heights = self.confidence[np.newaxis], self.correction[np.newaxis]
        correction = onnx_interpolated(graph, old, nodes, heights)
        none = graph.constant(0.0, np.float64)
        for_it = graph.add("Max", graph.add("Add", old, correction), none)
        against = graph.add("Max", graph.add("Sub", rest, correction), none)
        moved = graph.add("Sub", graph.add("Log", for_it), graph.add("Log", against))
        furthest = -log_odds_of(np.asarray(self.least))
        lowest = graph.add("Min", log_odds, graph.constant(-furthest, np.float64))
        highest = graph.add("Max", log_odds, graph.constant(furthest, np.float64))
        return graph.add("Min", graph.add("Max", moved, lowest), highest)


@dataclass(frozen=True)
class Spline(TopLabelCalibrator):
    """``c + S'(q(c))``, where S is a smooth fit to cumulative accuracy minus confidence.

    The confidence is ``c = max softmax(z / T)`` with the T of temperature scaling. Rows are sorted
    by c, and ``D(i/n) = sum_{j <= i} (correct_j - c_j) / n`` is the cumulative gap between accuracy
    and confidence over the i least confident rows. S is the natural cubic spline with ``knots``
    equally spaced knots over [0, 1] that best fits D at i/n, i = 0..n, by least squares. Its slope
    at the quantile q of a confidence estimates accuracy minus confidence there, and is added to the
    confidence.

    Conventions: equal confidences (to about 1e-5 in log odds) share their mean correctness and the
    mean slope over their quantiles. The correction is stored at no more than 2,000 confidences; it
    is linear between them and constant outside. If there are more rows, neighbouring rows are
    divided into 2,000 groups of equal size, and the mean confidence of each group is used. If
    several splines fit equally well, as with few rows, the one with the smallest knot values is
    used. A corrected confidence stays at least 1/(2 (n + 1)), the resolution of n rows, away from 0
    and 1, unless the old confidence was closer, in which case it comes no closer. The other classes
    share the rest in their old proportions, and the predicted class keeps the largest probability.
    The order of two rows' confidences may change.

    Rows with a single finite logit are left out, as they are certain under any map.

    Gupta, Rahimi, Ajanthan, Mensink, Sminchisescu, Hartley: Calibration of neural networks using
    splines. ICLR 2021. The authors fit the model's own scores; here, the logits are divided by T
    first.

    >>> from calibrators import CalibrationSet
    >>> rng = np.random.default_rng(0)
    >>> z = rng.normal(size=(5000, 4)) * 3
    >>> y = np.where(rng.random(5000) < 0.6, z.argmax(axis=1), rng.integers(4, size=5000))
    >>> fitted = Spline().fit(CalibrationSet(z, y))              # right 7 times in 10
    >>> fitted.apply(z[:3]).max(axis=1).round(1)
    array([0.7, 0.7, 0.7])
    """

    name = "spline"
    summary = "a smooth correction of the top label's confidence (cubic spline, 6 knots by default)"
    reference = "Gupta et al., ICLR 2021"
    cost = "temperature scaling and a sort of the rows"
    copies = 0.25
    numbers_a_row = 18.0

    knots: Annotated[int, Ge(2), Le(100)] = 6

    def _fit_confidence(
        self, log_odds: Floats, correct: Floats, base: TemperatureMap, context: FitContext
    ) -> SplineMap:
        distinct, _, hits, rows = tally(confidence_of(log_odds), correct)
        n = int(rows.sum())
        gaps = np.repeat(hits / rows - distinct, rows.astype(np.intp))
        ahead = _sums(gaps) / n
        values, curve = nearest_spline(np.arange(n + 1) / n, ahead, self.knots)
        error = float(np.mean((curve - ahead) ** 2))
        context.step(1, 1, error)
        starts = _node_starts(rows)
        size = np.add.reduceat(rows, starts)
        return SplineMap(
            k=base.k,
            kind=base.kind,
            base_temperature=base.temperature,
            confidence=np.add.reduceat(distinct * rows, starts) / size,
            correction=np.diff(curve[_sums(size).astype(np.intp)]) * n / size,
            least=0.5 / (n + 1),
            fit_info={
                "objective": "squared_error",
                "value": error,
                "knot_values": values.tolist(),
                "device": "cpu",
            },
        )


def nearest_spline(at: Floats, target: Floats, knots: int) -> tuple[Floats, Floats]:
    """Fit a natural cubic spline to ``target`` at ascending points of [0, 1] by least squares.

    Return its values at ``knots`` equally spaced knots, and its values at the points. If several
    splines fit equally well, return the one with the smallest knot values.

    >>> at = np.linspace(0, 1, 50)
    >>> values, curve = nearest_spline(at, 2 * at + 1, 3)
    >>> values.round(6).tolist(), bool(np.allclose(curve, 2 * at + 1))
    ([1.0, 2.0, 3.0], True)
    """
    left = np.clip((at * (knots - 1)).astype(np.intp), 0, knots - 2)
    ahead = at * (knots - 1) - left
    behind = 1 - ahead
    local = np.stack([behind, ahead, behind**3 - behind, ahead**3 - ahead], axis=1)
    edges = np.searchsorted(left, np.arange(knots))
    pieces = [local[first:last] for first, last in pairwise(edges)]
    shapes = _shapes(knots)
    gram = sum(m.T @ (one.T @ one) @ m for one, m in zip(pieces, shapes, strict=True))
    targets = [target[first:last] for first, last in pairwise(edges)]
    pull = sum(t @ one @ m for t, one, m in zip(targets, pieces, shapes, strict=True))
    values = np.linalg.lstsq(np.asarray(gram), np.asarray(pull), rcond=1e-12)[0]
    curves = [one @ (m @ values) for one, m in zip(pieces, shapes, strict=True)]
    return values, np.concatenate(curves)


def _shapes(knots: int) -> list[Floats]:
    """Return, for each piece between two knots, the matrix (4, knots) that maps knot values to it.

    A piece is defined by four numbers: its values at both ends, and a sixth of its second
    derivatives at both ends, in units in which the piece has length 1. The second derivative is
    linear along a piece, continuous, and 0 at the first and last knot.
    """
    bends = np.zeros((knots, knots))
    chain = 4 * np.eye(knots - 2) + np.eye(knots - 2, k=1) + np.eye(knots - 2, k=-1)
    bends[1:-1] = np.linalg.solve(chain, np.diff(np.eye(knots), 2, axis=0))
    values = np.eye(knots)
    return [np.stack([values[j], values[j + 1], bends[j], bends[j + 1]]) for j in range(knots - 1)]


def _sums(amounts: Floats) -> Floats:
    """Return the cumulative sums of ``amounts``, preceded by 0."""
    return np.concatenate([[0.0], np.cumsum(amounts)])


def _node_starts(rows: Floats) -> NDArray[np.intp]:
    """Return the starts of at most NODES runs of confidences with similar numbers of rows."""
    if rows.size <= NODES:
        return np.arange(rows.size)
    starts = np.searchsorted(_sums(rows)[:-1], np.arange(NODES) * rows.sum() / NODES)
    return np.unique(starts[starts < rows.size])
