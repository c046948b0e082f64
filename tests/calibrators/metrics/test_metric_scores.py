"""Proper scores and rankings, compared with scikit-learn and definitions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from sklearn.metrics import (
    brier_score_loss,
    log_loss,
    roc_auc_score,
    top_k_accuracy_score,
)

from calibrators.metrics import (
    TopLabel,
    accuracy,
    aurc,
    brier,
    classwise_auroc,
    e_aurc,
    nll,
    one_vs_one_auroc,
    ood_auroc,
    refinement_auroc,
    row_scores,
    top_k_error,
    top_label,
)


@pytest.mark.parametrize("classes", [2, 3, 100])
def test_scores_agree_with_scikit_learn(sample, classes: int) -> None:
    probabilities, labels = sample(1500, classes=classes, sharpen=1.3)
    names = np.arange(classes)
    assert nll(probabilities, labels) == pytest.approx(
        log_loss(labels, probabilities, labels=names), rel=1e-9
    )
    one_hot = np.eye(classes)[labels]
    assert brier(probabilities, labels) == pytest.approx(
        ((probabilities - one_hot) ** 2).sum(axis=1).mean(), rel=1e-12
    )
    assert accuracy(probabilities, labels) == np.mean(probabilities.argmax(axis=1) == labels)


def test_binary_brier_is_twice_the_one_column_score(sample) -> None:
    probabilities, labels = sample(1000, classes=2)
    single = brier_score_loss(labels, probabilities[:, 1], scale_by_half=True)
    assert brier(probabilities[:, 1], labels) == pytest.approx(2 * single)


@pytest.mark.parametrize("k", [1, 5])
def test_top_k_error_agrees_with_scikit_learn(sample, k: int) -> None:
    probabilities, labels = sample(3000, classes=20)
    theirs = 1 - top_k_accuracy_score(labels, probabilities, k=k, labels=np.arange(20))
    assert top_k_error(probabilities, labels, k=k) == pytest.approx(theirs)
    assert top_k_error(probabilities, labels, k=1) == pytest.approx(
        1 - accuracy(probabilities, labels)
    )


def test_top_k_ties_go_to_the_first_columns() -> None:
    flat = np.full((4, 4), 0.25)
    assert top_k_error(flat, [0, 1, 2, 3], k=1) == 0.75
    assert top_k_error(flat, [0, 1, 2, 3], k=3) == 0.25
    assert top_k_error(flat, [0, 1, 2, 3]) == 0.0


def test_a_zero_on_the_label_costs_a_finite_amount() -> None:
    tiny = np.finfo(np.float32).tiny
    for dtype in (np.float32, np.float64):
        assert nll(np.array([[1, 0]], dtype), [1]) == pytest.approx(-np.log(tiny))


def test_row_scores_average_to_the_scores(sample) -> None:
    probabilities, labels = sample(800, classes=6)
    rows = row_scores(probabilities, labels)
    assert rows.nll.mean() == nll(probabilities, labels)
    assert rows.brier.mean() == brier(probabilities, labels)
    assert rows.top.accuracy == accuracy(probabilities, labels)


@pytest.mark.parametrize("decimals", [1, 12])
def test_auroc_agrees_with_scikit_learn(sample, decimals: int) -> None:
    probabilities, labels = sample(1200, classes=4)
    top = top_label(probabilities, labels)
    rounded = TopLabel(top.confidence.round(decimals), top.correct)
    assert refinement_auroc(rounded) == pytest.approx(
        roc_auc_score(rounded.correct, rounded.confidence)
    )
    assert classwise_auroc(probabilities, labels) == pytest.approx(
        roc_auc_score(labels, probabilities, multi_class="ovr")
    )


def test_classwise_auroc_leaves_out_absent_classes(sample) -> None:
    probabilities, labels = sample(500, classes=4)
    kept = labels != 3
    expected = np.mean([roc_auc_score(labels[kept] == c, probabilities[kept, c]) for c in range(3)])
    assert classwise_auroc(probabilities[kept], labels[kept]) == pytest.approx(expected)
    assert np.isnan(classwise_auroc([[0.5, 0.5]], [0]))


@pytest.mark.parametrize("classes", [2, 4, 30])
@pytest.mark.parametrize("decimals", [1, 12])
def test_one_vs_one_auroc_agrees_with_scikit_learn(sample, classes: int, decimals: int) -> None:
    probabilities, labels = sample(1500, classes=classes)
    rounded = probabilities.round(decimals) + 10.0**-decimals
    rounded /= rounded.sum(axis=1, keepdims=True)
    theirs = (
        roc_auc_score(labels, rounded, multi_class="ovo")
        if classes > 2
        else roc_auc_score(labels, rounded[:, 1])
    )
    assert one_vs_one_auroc(rounded, labels) == pytest.approx(theirs)


def test_one_vs_one_auroc_is_the_mean_over_pairs_of_classes_with_rows(sample) -> None:
    probabilities, labels = sample(300, classes=5)
    kept = (labels != 3) & ((labels != 1) | (np.arange(300) < 60))  # class 1 is rare
    probabilities, labels = probabilities[kept], labels[kept]
    areas = []
    for first, second in itertools.permutations([0, 1, 2, 4], 2):
        pair = (labels == first) | (labels == second)
        areas.append(roc_auc_score(labels[pair] == first, probabilities[pair, first]))
    assert one_vs_one_auroc(probabilities, labels) == pytest.approx(np.mean(areas))
    assert np.isnan(one_vs_one_auroc([[0.5, 0.5], [0.6, 0.4]], [0, 0]))


def test_auroc_without_both_kinds_is_nan() -> None:
    assert np.isnan(refinement_auroc(TopLabel([0.5, 0.9], [True, True])))
    assert np.isnan(refinement_auroc(TopLabel([0.5, 0.9], [False, False])))


def test_ood_auroc_ranks_by_entropy(sample) -> None:
    inside, _ = sample(400, sharpen=2.0)
    outside, _ = sample(300, sharpen=0.5, seed=1)
    entropy = [-(p * np.log(p)).sum(axis=1) for p in (inside, outside)]
    flags = np.repeat([0, 1], [400, 300])
    expected = roc_auc_score(flags, np.concatenate(entropy))
    assert ood_auroc(inside, outside) == pytest.approx(expected)
    assert ood_auroc(outside, inside) == pytest.approx(1 - expected)
    assert expected > 0.8
    certain = np.eye(3)
    assert ood_auroc(certain, np.full((2, 3), 1 / 3)) == 1.0
    assert ood_auroc(certain, certain) == 0.5


def naive_aurc(correct: np.ndarray) -> float:
    """Return the AURC of rows in descending order of confidence."""
    return float(np.mean(np.cumsum(~correct) / np.arange(1, correct.size + 1)))


def test_aurc_is_the_definition(sample) -> None:
    top = top_label(*sample(700))
    order = np.argsort(-top.confidence)
    assert aurc(top) == pytest.approx(naive_aurc(top.correct[order]))
    best = naive_aurc(np.sort(top.correct)[::-1])
    assert e_aurc(top) == pytest.approx(aurc(top) - best)
    assert 0 < e_aurc(top) < aurc(top)


def test_aurc_of_ties_is_the_mean_over_their_orders() -> None:
    correct = np.array([True, False, False, True, True])
    top = TopLabel([0.9, 0.7, 0.7, 0.7, 0.2], correct)
    orders = [naive_aurc(correct[[0, *middle, 4]]) for middle in itertools.permutations([1, 2, 3])]
    assert aurc(top) == pytest.approx(np.mean(orders))
    assert max(orders) > min(orders)


def test_aurc_limits() -> None:
    assert aurc(TopLabel([0.1, 0.9], [True, True])) == 0.0
    assert aurc(TopLabel([0.1, 0.9], [False, False])) == 1.0
    assert e_aurc(TopLabel([0.1, 0.2, 0.9], [False, True, True])) == 0.0
    assert e_aurc(TopLabel([0.9, 0.2, 0.1], [False, True, True])) > 0.3
