"""BBQ compared with the formulas of Naeini et al. 2015 row by row, and its limits."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from helpers.samples import confidence_and_hits, draw, draw_apart, sample
from scipy.special import betaln, logit

from calibrators import CalibrationSet
from calibrators.methods.bbq import Bbq, RankedRows
from calibrators.metrics import ece


def written_out(confidence: np.ndarray, hits: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Evaluate equations 1 to 3 of the paper with all models, N' = 2 and C = 10."""
    n = confidence.size
    order = np.argsort(confidence)
    scores, estimates = [], []
    for bins in range(max(1, int(n ** (1 / 3) / 10)), int(10 * n ** (1 / 3)) + 1):
        parts = np.split(order, np.rint(np.arange(1, bins) * n / bins).astype(int))
        odds = logit(confidence)
        cuts = [(odds[low].max() + odds[high].min()) / 2 for low, high in pairwise(parts)]
        edges = np.concatenate([[0], 1 / (1 + np.exp(-np.array(cuts))), [1]])
        score, values = 0.0, []
        for part, low, high in zip(parts, edges[:-1], edges[1:], strict=True):
            rows, right, middle = part.size, hits[part].sum(), (low + high) / 2
            alpha, beta = 2 / bins * middle, 2 / bins * (1 - middle)
            score += betaln(right + alpha, rows - right + beta) - betaln(alpha, beta)
            values.append((right + alpha) / (rows + 2 / bins))
        scores.append(score)
        estimates.append(np.array(values)[np.searchsorted(edges[1:-1], at)])
    weights = np.exp(np.array(scores) - max(scores))
    return weights @ np.array(estimates) / weights.sum()


@pytest.mark.parametrize("n", [60, 500])
def test_is_the_average_of_the_paper(n: int) -> None:
    data = draw_apart(n, 4)
    fitted = Bbq().fit(data)
    confidence, hits = confidence_and_hits(data, fitted.base_temperature)
    expected = written_out(confidence, hits, confidence)
    given = fitted.accuracy[np.searchsorted(fitted.edges, logit(confidence))]
    # candidates with less than 1/10,000 of the largest weight are left out
    np.testing.assert_allclose(given, expected, atol=2e-3)
    assert np.ptp(expected) > 0.2


def test_one_bin_is_a_beta_binomial_estimate() -> None:
    odds, hits = np.array([0.0, 1.0, 2.0, 3.0]), np.array([1.0, 0.0, 1.0, 1.0])
    one = RankedRows.of(odds, hits).candidate(1, 2.0)
    assert one.accuracy.tolist() == [(3 + 1) / (4 + 2)]
    # the probability of the hits in this order under a uniform prior is m! (n - m)! / (n + 1)!
    assert one.score == pytest.approx(math.log(6 * 1 / 120))


def test_the_weights_prefer_few_bins_where_the_accuracy_is_constant() -> None:
    rng = np.random.default_rng(0)
    odds = np.sort(rng.normal(size=4000) + 1)
    flat, steep = (rng.random(4000) < p for p in (0.7, 1 / (1 + np.exp(-4 * (odds - 1)))))
    best = []
    for hits in (flat, steep):
        ranked = RankedRows.of(odds, hits.astype(float))
        sizes = list(ranked.sizes(10.0))
        best.append(sizes[int(np.argmax([ranked.candidate(one, 2.0).score for one in sizes]))])
    assert best[0] == 1 < 4 < best[1]


def test_tied_confidences_stay_in_one_bin() -> None:
    rng = np.random.default_rng(1)
    odds = rng.integers(3, size=900).astype(float)
    ranked = RankedRows.of(odds, (rng.random(900) < 0.5).astype(float))
    assert max(ranked.candidate(size, 2.0).accuracy.size for size in ranked.sizes(10.0)) == 3
    assert len(list(ranked.sizes(10.0))) < 10


def test_never_promises_certainty_and_keeps_the_class() -> None:
    data = draw(300, 3, temperature=0.2)
    right = data.logits.argmax(axis=1)
    right[:3] = (right[:3] + 1) % 3
    fitted = Bbq().fit(CalibrationSet(data.logits, right))
    assert 0 < fitted.accuracy.min() <= fitted.accuracy.max() < 1
    p = fitted.apply(data.logits)
    assert (p.argmax(axis=1) == data.logits.argmax(axis=1)).all()


def test_lowers_the_error_of_real_logits() -> None:
    fit, test = sample("cal"), sample("test")
    assert ece(Bbq().fit(fit).apply_set(test), test.labels) < 0.012
