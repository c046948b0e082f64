"""BBQ, Bayesian binning into quantiles: an average over histograms of different sizes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge, Gt, Le
from numpy.typing import NDArray

from calibrators.fitting.context import FitContext
from calibrators.methods._bins import edges_at, mass_cuts, tie_ends
from calibrators.methods._ties import log_odds_reach
from calibrators.methods._top_label import TopLabelCalibrator, confidence_of
from calibrators.methods.histogram import HistogramMap
from calibrators.methods.temperature import TemperatureMap
from calibrators.numerics.parallel import Floats

NEGLIGIBLE = 1e-4
NEAR_ONE = 1 - 1e-12


@dataclass(frozen=True, eq=False, kw_only=True)
class BbqMap(HistogramMap):
    """Averaged ``accuracy`` (b,) between the merged ``edges`` (b - 1,), which are log odds."""

    method = "bbq"
    complexity = 190


@dataclass(frozen=True)
class Bbq(TopLabelCalibrator):
    """Replace the top label's confidence with a weighted mean over histograms of different sizes.

    The confidence is ``c = max softmax(z / T)`` with the T of temperature scaling. For each number
    of bins B from n^(1/3) / ``spread`` to ``spread`` n^(1/3), there is a candidate histogram whose
    bins have equal numbers of rows. For a bin with n rows, of which m are correct, let p be its
    midpoint on the scale of confidence, N = ``prior_rows``, ``a = p N/B`` and ``b = (1 - p) N/B``.
    The value of the bin is ``(m + a) / (n + N/B)``, the posterior mean under a Beta(a, b) prior.
    The candidates are averaged with weights proportional to their marginal likelihood, where G is
    the gamma function:

    ``prod over bins of  G(N/B) / G(n + N/B) * G(m + a) / G(a) * G(n - m + b) / G(b)``.

    Candidates with less than 1/10,000 of the largest weight are left out. Rows of equal confidence
    (to about 1e-5 in log odds) stay in one bin, so there may be fewer bins.

    The result is a step function that need not be monotonic. The other classes share the rest in
    their old proportions, and the predicted class keeps the largest probability. The method is
    included for comparison with published tables: public comparisons rank it near the bottom, and
    `isotonic` and `additive` are better choices.

    Rows with a single finite logit are left out, as they are certain under any map.

    Naeini, Cooper, Hauskrecht: Obtaining well calibrated probabilities using Bayesian binning. AAAI
    2015.

    >>> from calibrators import CalibrationSet
    >>> rng = np.random.default_rng(0)
    >>> z = rng.normal(size=(5000, 4)) * 3
    >>> y = np.where(rng.random(5000) < 0.6, z.argmax(axis=1), rng.integers(4, size=5000))
    >>> fitted = Bbq().fit(CalibrationSet(z, y))                 # every row is right 7 times in 10
    >>> fitted.accuracy.round(1).min(), fitted.accuracy.round(1).max()
    (np.float64(0.7), np.float64(0.7))
    """

    name = "bbq"
    summary = "an average over histograms with different numbers of bins"
    reference = "Naeini et al., AAAI 2015"
    cost = "temperature scaling, a sort of the rows, and 50 n^(2/3) bins"
    for_comparison = True
    copies = 0.25
    numbers_a_row = 13.0

    spread: Annotated[float, Ge(1), Le(100)] = 10.0
    prior_rows: Annotated[float, Gt(0), Le(1e6)] = 2.0

    def _fit_confidence(
        self, log_odds: Floats, correct: Floats, base: TemperatureMap, context: FitContext
    ) -> BbqMap:
        ranked = RankedRows.of(log_odds, correct)
        candidates = []
        for bins in ranked.sizes(self.spread):
            candidates.append(ranked.candidate(bins, self.prior_rows))
            context.cancelled()
        scores = np.array([one.score for one in candidates])
        weights = np.exp(scores - scores.max())
        kept = np.flatnonzero(weights >= NEGLIGIBLE)
        edges, accuracy = averaged([candidates[place] for place in kept], weights[kept])
        hits = accuracy[np.searchsorted(edges, log_odds)]
        value = float(((hits - correct) ** 2).mean()) if correct.size else 0.0
        context.step(1, 1, value)
        return BbqMap(
            k=base.k,
            kind=base.kind,
            base_temperature=base.temperature,
            edges=edges,
            accuracy=accuracy,
            fit_info={
                "objective": "marginal_likelihood",
                "value": value,
                "candidates": len(candidates),
                "averaged": int(kept.size),
                "most_likely_bins": candidates[int(weights.argmax())].accuracy.size,
                "device": "cpu",
            },
        )


@dataclass(frozen=True, eq=False)
class Candidate:
    """A histogram over log odds, with its log marginal likelihood."""

    edges: Floats
    accuracy: Floats
    score: float


@dataclass(frozen=True, eq=False)
class RankedRows:
    """Rows in ascending order of log odds, with the number of correct rows below each position.

    ``ends`` holds the end positions of runs of equal log odds.
    """

    log_odds: Floats
    hits_below: Floats
    ends: NDArray[np.intp]

    @classmethod
    def of(cls, log_odds: Floats, correct: Floats) -> RankedRows:
        """Sort rows by their log odds, and count the correct ones below each position."""
        order = np.argsort(log_odds)
        ordered = log_odds[order]
        below = np.concatenate([[0.0], np.cumsum(correct[order])])
        return cls(ordered, below, tie_ends(ordered, log_odds_reach))

    def sizes(self, spread: float) -> Iterator[int]:
        """Yield the candidates' bin counts; skip those that ties reduce to the previous one."""
        n = self.log_odds.size
        centre = n ** (1 / 3)
        before, most = 0, min(n, math.floor(centre * spread))
        for bins in range(max(1, math.floor(centre / spread)), most + 1):
            found = mass_cuts(bins, self.ends).size + 1
            if found != before:
                yield bins
            before = found
        if not before:
            yield 1

    def candidate(self, bins: int, prior_rows: float) -> Candidate:
        """Return the histogram with ``bins`` bins, or fewer because of ties."""
        cuts = mass_cuts(bins, self.ends)
        edges = edges_at(self.log_odds, cuts)
        places = np.concatenate([[0], cuts, [self.log_odds.size]])
        rows, hits = np.diff(places), np.diff(self.hits_below[places])
        bounds = np.concatenate([[0.0], confidence_of(edges), [1.0]])
        middle = np.minimum((bounds[1:] + bounds[:-1]) / 2, NEAR_ONE)
        weight = prior_rows / rows.size
        right, wrong = weight * middle, weight * (1 - middle)
        score = (
            rows.size * math.lgamma(weight)
            - _log_gamma(rows + weight)
            + _log_gamma(hits + right)
            - _log_gamma(right)
            + _log_gamma(rows - hits + wrong)
            - _log_gamma(wrong)
        )
        return Candidate(edges, (hits + right) / (rows + weight), score)


def averaged(candidates: list[Candidate], weights: Floats) -> tuple[Floats, Floats]:
    """Return the edges and values of a weighted mean of step functions.

    >>> first = Candidate(np.array([0.0]), np.array([0.2, 0.8]), 0.0)
    >>> second = Candidate(np.array([1.0]), np.array([0.4, 0.6]), 0.0)
    >>> edges, values = averaged([first, second], np.array([1.0, 1.0]))
    >>> edges.tolist(), values.round(9).tolist()
    ([0.0, 1.0], [0.3, 0.6, 0.7])
    """
    edges = np.unique(np.concatenate([one.edges for one in candidates]))
    at = np.append(edges, np.inf)
    values = np.zeros(at.size)
    for one, weight in zip(candidates, weights / weights.sum(), strict=True):
        values += weight * one.accuracy[np.searchsorted(one.edges, at)]
    return edges, np.clip(values, 0.0, 1.0)


def _log_gamma(values: Floats) -> float:
    """Return the sum of the log gamma function over the values."""
    return math.fsum(map(math.lgamma, values.tolist()))
