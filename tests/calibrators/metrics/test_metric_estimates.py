"""Closed-form intervals compared with definitions, exact enumeration and other libraries."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from calibrators.metrics import (
    TopLabel,
    aurc,
    aurc_influence,
    auroc_influence,
    paired_intervals,
    refinement_auroc,
    row_scores,
)
from calibrators.metrics.estimates import mean_interval, share_change_interval

SIZES = [(7, 3), (60, 1000), (60, 6)]


def top_of(n: int, levels: int, seed: int = 0) -> TopLabel:
    """Return confidences with this many levels, few of them tied."""
    random = np.random.default_rng(seed)
    confidence = random.integers(0, levels + 1, n) / levels
    correct = random.random(n) < 0.2 + 0.6 * confidence
    correct[:4] = [True, True, False, False]
    return TopLabel(confidence, correct)


@pytest.mark.parametrize(("n", "levels"), SIZES)
def test_the_influence_on_the_auroc_gives_delongs_variance(n: int, levels: int) -> None:
    """The definition uses placement values from all pairs of a correct and an incorrect row."""
    top = top_of(n, levels)
    right, wrong = top.confidence[top.correct], top.confidence[~top.correct]
    wins = (right[:, None] > wrong) + 0.5 * (right[:, None] == wrong)
    variance = wins.mean(axis=1).var(ddof=1) / right.size + wins.mean(axis=0).var(ddof=1) / (
        wrong.size
    )
    influence = auroc_influence(top)
    assert influence is not None
    assert np.mean(influence**2) / n == pytest.approx(variance, rel=1e-10)
    assert refinement_auroc(top) == pytest.approx(
        roc_auc_score(top.correct, top.confidence), abs=1e-12
    )


def test_no_auroc_of_a_single_wrong_row() -> None:
    assert auroc_influence(TopLabel([0.9, 0.8, 0.7], [True, True, False])) is None
    rows = row_scores([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]], [0, 0, 0])
    assert "refinement_auroc" not in paired_intervals(rows, rows, draws=2)


@pytest.mark.parametrize(("n", "levels"), [(400, 10**6), (400, 20)])
def test_the_influence_on_the_aurc_is_that_of_the_jackknife(n: int, levels: int) -> None:
    top = top_of(n, levels)
    influence = aurc_influence(top)
    assert influence.mean() == pytest.approx(0, abs=1e-12)
    rows = np.arange(n)
    whole = aurc(top)
    left_out = [
        (n - 1) * (whole - aurc(TopLabel(top.confidence[rows != i], top.correct[rows != i])))
        for i in rows
    ]
    assert np.corrcoef(influence, left_out)[0, 1] > 0.99
    assert influence.std() == pytest.approx(np.std(left_out), rel=0.05)


def test_the_change_of_ranking_has_the_spread_of_new_samples(sample) -> None:
    """Even if the predicted class changes, the estimate is the deviation of 300 samples."""
    changes: dict[str, list[float]] = {"refinement_auroc": [], "aurc": []}
    errors: dict[str, list[float]] = {"refinement_auroc": [], "aurc": []}
    random = np.random.default_rng(3)
    for seed in range(300):
        before, labels = sample(300, classes=3, sharpen=2.0, seed=seed)
        noisy = before * np.exp(random.normal(size=before.shape))
        after = noisy / noisy.sum(axis=1, keepdims=True)
        found = paired_intervals(row_scores(before, labels), row_scores(after, labels), draws=2)
        for name in changes:
            changes[name].append(found[name].value)
            errors[name].append((found[name].high - found[name].low) / (2 * 1.96))
    for name in changes:
        assert np.mean(errors[name]) == pytest.approx(np.std(changes[name]), rel=0.12)


def test_the_interval_of_a_mean_is_that_of_endless_draws() -> None:
    values = np.random.default_rng(0).exponential(size=200) ** 1.5
    drawn = stats.bootstrap(
        (values,), np.mean, n_resamples=20_000, method="percentile", random_state=1
    ).confidence_interval
    found = mean_interval(values, 0.95)
    width = drawn.high - drawn.low
    assert abs(found.high - found.value) > 1.05 * abs(found.low - found.value)
    assert (found.low, found.high) == pytest.approx(tuple(drawn), abs=0.015 * width)


@pytest.mark.parametrize(("up", "down"), [(0.05, 0.05), (0.02, 0.1), (0.01, 0.01)])
def test_the_interval_of_a_changed_share_covers_exactly_enough(up: float, down: float) -> None:
    """All tables of 100 rows are enumerated, weighted by their probability."""
    n, covered = 100, 0.0
    chances = stats.multinomial(n, [up, down, 1 - up - down])
    for gained in range(25):
        for lost in range(40):
            found = share_change_interval(gained, lost, n, 0.95)
            if found.low <= up - down <= found.high:
                covered += float(chances.pmf([gained, lost, n - gained - lost]))
    assert covered >= 0.94
