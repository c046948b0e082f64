"""Histogram binning: the confidence is replaced with the accuracy of the bin it falls in."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import numpy as np
from annotated_types import Ge, Le

from calibrators.errors import ParameterError
from calibrators.export.onnx import Builder
from calibrators.fitting.context import FitContext
from calibrators.methods._bins import Binning, Bins, bins_of, even_edges
from calibrators.methods._one_vs_rest import (
    Bools,
    ClassShares,
    OneVsRestCalibrator,
    OneVsRestMap,
    OnnxShares,
    informative,
)
from calibrators.methods._step_tables import (
    check_rising,
    check_shares,
    count_below,
    onnx_count_below,
    stacked,
)
from calibrators.methods._ties import log_odds_reach, share_reach
from calibrators.methods._top_label import TopLabelCalibrator, TopLabelMap, log_odds_of
from calibrators.methods.temperature import TemperatureMap
from calibrators.numerics.parallel import Floats

MAP_COPIES = 12  # measured with 2,000 classes and 10,000 bins


@dataclass(frozen=True, eq=False, kw_only=True)
class HistogramMap(TopLabelMap):
    """The ``accuracy`` (b,) of the bin that the confidence falls in; ``edges`` are log odds."""

    method = "histogram"
    complexity = 110

    edges: Floats
    accuracy: Floats

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.edges.ndim != 1 or self.accuracy.shape != (self.edges.size + 1,):
            raise ParameterError(
                "bad_parameter",
                "edges must be one element shorter than accuracy, "
                f"got shapes {self.edges.shape} and {self.accuracy.shape}",
            )
        check_rising("edges", self.edges, least=0)
        check_shares("accuracy", self.accuracy)

    def _recalibrated(self, log_odds: Floats) -> Floats:
        return self._accuracy_log_odds[np.searchsorted(self.edges, log_odds)]

    @cached_property
    def _accuracy_log_odds(self) -> Floats:
        return log_odds_of(self.accuracy)

    def _onnx_recalibrated(self, graph: Builder, log_odds: str) -> str:
        place = onnx_count_below(graph, log_odds, self.edges[np.newaxis])
        return graph.add("Gather", graph.constant(self._accuracy_log_odds, np.float64), place)


@dataclass(frozen=True)
class Histogram(TopLabelCalibrator):
    """Replace the top label's confidence with the accuracy of the fit rows in the same bin.

    The confidence is ``c = max softmax(z / T)`` with the T of temperature scaling. With
    ``binning="mass"``, there are ``bins`` bins with equal numbers of rows, whose edges lie halfway
    (in log odds) between neighbouring rows. Rows of equal confidence (to about 1e-5 in log odds)
    stay together in the lower bin, so there may be fewer bins. With ``binning="width"``, bins are
    (i/M, (i + 1)/M] for M = ``bins``, and the value of an empty bin is its midpoint. The other
    classes share the rest in their old proportions. The predicted class keeps the largest
    probability, as its confidence does not fall below the probability of the second class.

    With ``smoothing``, the value of a bin with m rows, of which s are correct, is
    ``(s + smoothing / 2) / (m + smoothing)``. This keeps the NLL finite if a prediction is wrong in
    a bin that had no mistakes on the fit set. ``smoothing=0`` gives the plain accuracy s / m.

    Rows with a single finite logit are left out, as they are certain under any map.

    Zadrozny, Elkan: Obtaining calibrated probability estimates from decision trees and naive
    Bayesian classifiers. ICML 2001. Equal mass, with guarantees and without splitting the rows:
    Gupta, Ramdas: Distribution-free calibration guarantees for histogram binning. ICML 2021.

    >>> from calibrators import CalibrationSet
    >>> rng = np.random.default_rng(0)
    >>> z = rng.normal(size=(5000, 4)) * 3
    >>> y = np.where(rng.random(5000) < 0.6, z.argmax(axis=1), rng.integers(4, size=5000))
    >>> fitted = Histogram(bins=3).fit(CalibrationSet(z, y))     # right 7 times in 10
    >>> fitted.accuracy.round(1)
    array([0.7, 0.7, 0.7])
    """

    name = "histogram"
    summary = "the accuracy of the bin that the top label's confidence falls in"
    reference = "Zadrozny and Elkan, ICML 2001; Gupta and Ramdas, ICML 2021"
    cost = "temperature scaling and a sort of the rows"
    copies = 0.25
    numbers_a_row = 13.0

    bins: Annotated[int, Ge(1), Le(10_000)] = 15
    binning: Binning = "mass"
    smoothing: Annotated[float, Ge(0), Le(1e6)] = 1.0

    def _fit_confidence(
        self, log_odds: Floats, correct: Floats, base: TemperatureMap, context: FitContext
    ) -> HistogramMap:
        even = log_odds_of(even_edges(self.bins))
        bins = bins_of(log_odds, correct, even, self.binning, log_odds_reach)
        accuracy = bins.shares(self.smoothing / 2, self.smoothing)
        value = bins.squared_error(accuracy)
        context.step(1, 1, value)
        return HistogramMap(
            k=base.k,
            kind=base.kind,
            base_temperature=base.temperature,
            edges=bins.edges,
            accuracy=accuracy,
            fit_info={
                "objective": "squared_error",
                "value": value,
                "bins": bins.rows.size,
                "device": "cpu",
            },
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class HistogramOneVsRestMap(OneVsRestMap):
    """The frequency of each class in the bin of its probability; rows sum to 1.

    ``edges`` (k, b - 1) and ``frequency`` (k, b) have a row for each class.
    """

    method = "histogram_one_vs_rest"
    complexity = 160

    edges: Floats
    frequency: Floats

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.frequency.ndim != 2 or len(self.frequency) != self.k:
            raise ParameterError(
                "bad_parameter",
                f"frequency must have a row for each of {self.k} classes, "
                f"got shape {self.frequency.shape}",
            )
        if self.edges.shape != (self.k, self.frequency.shape[1] - 1):
            raise ParameterError(
                "bad_parameter",
                "edges must have as many rows as frequency and one fewer column, "
                f"got shapes {self.edges.shape} and {self.frequency.shape}",
            )
        check_rising("edges", self.edges, least=0)
        check_shares("frequency", self.frequency)

    def _log_probabilities(self, shares: ClassShares) -> Floats:
        place = count_below(shares.p, self.edges)
        place += np.arange(self.k) * self.frequency.shape[1]
        return self._log_frequency.ravel().take(place)

    def _onnx_log_probabilities(self, graph: Builder, shares: OnnxShares) -> str:
        count = onnx_count_below(graph, shares.p, self.edges)
        begin = np.arange(self.k)[np.newaxis] * self.frequency.shape[1]
        place = graph.add("Add", count, graph.constant(begin, np.int64))
        logs = graph.constant(self._log_frequency.ravel(), np.float64)
        return graph.add("Gather", logs, place)

    @cached_property
    def _log_frequency(self) -> Floats:
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.frequency))


@dataclass(frozen=True)
class HistogramOneVsRest(OneVsRestCalibrator["list[Bins]"]):
    """Replace each class's probability with the frequency of the class among rows in the same bin.

    Let ``p = softmax(z / T)`` with the T of temperature scaling. Each class has its own bins of
    p_k, built as in ``Histogram``. f_k is the share of label k in the bin, and the new
    probabilities are ``f_k(p_k) / sum_j f_j(p_j)``. The predicted class may change.

    With ``smoothing``, the value of a bin with m rows, of which s have label k, is
    ``(s + smoothing / K) / (m + smoothing)``, as if ``smoothing`` more rows had been spread evenly
    over the K classes. With ``smoothing=0``, all classes of a row may get 0; the row then keeps p.

    A row in which the logit of class k, or of every class but k, is -inf carries no information
    about f_k and is left out of its fit. A class without informative rows has equal-width bins,
    whose values are their midpoints.

    Zadrozny, Elkan: Obtaining calibrated probability estimates from decision trees and naive
    Bayesian classifiers. ICML 2001, one class against the rest as in their KDD 2002 paper.

    >>> from calibrators import CalibrationSet
    >>> rng = np.random.default_rng(0)
    >>> z = rng.normal(size=(5000, 4)) * 3
    >>> y = np.where(rng.random(5000) < 0.6, z.argmax(axis=1), 0)    # errors are always class 0
    >>> fitted = HistogramOneVsRest().fit(CalibrationSet(z, y))
    >>> fitted.apply([[0.0, 6.0, 0.0, 0.0]]).round(1)
    array([[0.4, 0.6, 0. , 0. ]])
    """

    name = "histogram_one_vs_rest"
    summary = "the observed frequency of each class in its probability bin, with rows renormalised"
    reference = "Zadrozny and Elkan, ICML 2001 and KDD 2002"
    cost = "temperature scaling and a sort of the rows for each class"

    bins: Annotated[int, Ge(1), Le(10_000)] = 15
    binning: Binning = "mass"
    smoothing: Annotated[float, Ge(0), Le(1e6)] = 1.0

    def memory_bytes(self, n: int, k: int) -> int:
        """Estimate the peak memory, including the map, its archive and its ONNX model."""
        return super().memory_bytes(n, k) + MAP_COPIES * 2 * 8 * self.bins * k

    def _fit_classes(self, shares: ClassShares, is_label: Bools, k: int) -> list[Bins]:
        parts = zip(shares.p, is_label, informative(shares), strict=True)
        even = even_edges(self.bins)
        return [
            bins_of(p[rows], label[rows].astype(np.float64), even, self.binning, share_reach)
            for p, label, rows in parts
        ]

    def _map_of(
        self, parts: list[list[Bins]], base: TemperatureMap, context: FitContext
    ) -> HistogramOneVsRestMap:
        bins = [one for part in parts for one in part]
        shares = [one.shares(self.smoothing / base.k, self.smoothing) for one in bins]
        errors = [one.squared_error(own) for one, own in zip(bins, shares, strict=True)]
        # a class with a constant probability has a single bin, which is stored twice
        edges = [one.edges if one.edges.size else np.zeros(1) for one in bins]
        return HistogramOneVsRestMap(
            k=base.k,
            kind=base.kind,
            base_temperature=base.temperature,
            edges=stacked(edges),
            frequency=stacked([np.resize(one, max(2, one.size)) for one in shares]),
            fit_info={
                "objective": "squared_error",
                "value": float(np.mean(errors)),
                "bins": sum(one.rows.size for one in bins),
                "device": "cpu",
            },
        )
