"""Labels that do not belong to their rows are found, and weak models are not taken for them."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from calibrators.comparison.recommendation import Candidate, recommend
from calibrators.data import CalibrationSet
from calibrators.fitting.evaluation import fit_and_judge
from calibrators.metrics import chance_test
from calibrators.metrics.chance import MAX_RANKS, MIN_ROWS
from calibrators.numerics.softmax import softmax
from calibrators.registry import make_recipe
from calibrators.report import html_page
from calibrators.report.report import Report, evaluate
from calibrators.report.verdict import Verdict


def overconfident(n: int, k: int, raised: float, seed: int = 0) -> CalibrationSet:
    """Rows of a model that raises the label's logit, with all logits doubled."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(k, size=n)
    logits = rng.normal(size=(n, k))
    logits[np.arange(n), labels] += raised
    return CalibrationSet(2 * logits, labels)


def rare(n: int, positives: int, auroc: float, seed: int = 0) -> CalibrationSet:
    """Binary scores with so many rows of class 1, to which they give small probabilities."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(n) < positives).astype(int)
    apart = 2**0.5 * NormalDist().inv_cdf(auroc)
    score = rng.normal(size=n) + apart * labels
    return CalibrationSet(apart * score - apart**2 / 2 + np.log(positives / n), labels)


def shuffled(data: CalibrationSet, seed: int = 0) -> CalibrationSet:
    labels = np.random.default_rng(seed).permutation(data.labels)
    return CalibrationSet(data.logits, labels)


def test_two_classes_have_the_auroc() -> None:
    rng = np.random.default_rng(0)
    score = rng.random(400).round(1)  # with ties
    labels = (rng.random(400) < score).astype(int)
    found = chance_test(score, labels)
    assert found is not None
    assert found.auroc == pytest.approx(roc_auc_score(labels, score), abs=1e-12)
    assert found.is_above_chance


@pytest.mark.parametrize(("k", "n"), [(2, 120), (5, 150), (50, 200)])
def test_the_limit_is_that_of_all_permutations(k: int, n: int) -> None:
    rng = np.random.default_rng(k)
    p = rng.dirichlet(np.full(k, 0.3), size=n)
    labels = rng.choice(k, size=n, p=rng.dirichlet(np.full(k, 0.5)))
    tests = [chance_test(p, rng.permutation(labels)) for _ in range(2000)]
    found = np.array([one.auroc for one in tests if one is not None])
    limits = {round(one.limit, 12) for one in tests if one is not None}
    assert len(limits) == 1
    spread = (limits.pop() - 0.5) / NormalDist().inv_cdf(0.99)
    assert found.mean() == pytest.approx(0.5, abs=4 * spread / 2000**0.5)
    assert found.std() == pytest.approx(spread, rel=0.07)
    assert np.mean([one.is_above_chance for one in tests if one is not None]) < 0.02


@pytest.mark.parametrize(("k", "n"), [(2, 120), (5, 150), (50, 2000)])
def test_the_limit_of_the_accuracy_is_that_of_all_permutations(k: int, n: int) -> None:
    rng = np.random.default_rng(k)
    p = rng.dirichlet(np.full(k, 0.3), size=n)
    labels = rng.choice(k, size=n, p=rng.dirichlet(np.full(k, 0.5)))
    tests = [one for _ in range(1000) if (one := chance_test(p, rng.permutation(labels)))]
    found = np.array([one.accuracy for one in tests])
    spread = (tests[0].accuracy_by_chance - tests[0].accuracy_limit) / NormalDist().inv_cdf(0.99)
    assert found.mean() == pytest.approx(tests[0].accuracy_by_chance, abs=4 * spread / 1000**0.5)
    assert found.std() == pytest.approx(spread, rel=0.1)
    assert np.mean([one.accuracy < one.accuracy_limit for one in tests]) < 0.03


@pytest.mark.filterwarnings("ignore::calibrators.errors.BoundarySolution")
@pytest.mark.parametrize("k", [3, 10, 200])
def test_columns_in_another_order_than_the_classes_are_at_chance(k: int) -> None:
    """Similar classes make the labels depend on the wrong columns too."""
    rng = np.random.default_rng(k)
    labels = rng.integers(k, size=5000)
    similar = 3.0 * (np.abs(np.arange(k)[:, None] - np.arange(k)) == 1)
    logits = rng.normal(size=(5000, k)) + similar[labels]
    logits[np.arange(5000), labels] += 6.0
    temperature = make_recipe("temperature", {})
    assert fit_and_judge(temperature, CalibrationSet(logits, labels)).report.chance.is_above_chance
    orders = [np.roll(np.arange(k), 1), np.arange(k)[::-1], *(rng.permutation(k) for _ in range(5))]
    for order in orders:
        moved = CalibrationSet(logits[:, order], labels)
        if (order == np.arange(k)).sum() > k // 2:
            continue
        report = fit_and_judge(temperature, moved).report
        assert report.verdict is Verdict.AT_CHANCE
        assert "columns seem to be in a different order" in report.verdict_sentence
        assert report.chance is not None
        assert report.chance.reordered_accuracy > 0.9


@pytest.mark.parametrize("moved", [2, 3, 4])
def test_some_columns_in_another_order_are_at_chance(moved: int) -> None:
    rng = np.random.default_rng(moved)
    data, classes = overconfident(4000, 10, 3.0, moved), rng.choice(10, moved, replace=False)
    numbers = np.arange(10)
    numbers[classes] = np.roll(classes, 1)
    wrong = CalibrationSet(data.logits, numbers[data.labels])
    report = fit_and_judge(make_recipe("temperature", {}), wrong).report
    assert report.verdict is Verdict.AT_CHANCE
    assert report.chance is not None
    assert report.chance.reordered_classes == tuple(sorted(classes.tolist()))
    assert report.chance.reordered_accuracy > report.chance.accuracy + 0.1
    first, second = report.chance.reordered_classes[:2]
    assert f"the columns of the classes {first}" in report.verdict_sentence
    assert str(second) in report.verdict_sentence
    assert Report.from_dict(report.to_dict()).chance == report.chance


def test_a_map_that_puts_the_columns_in_order_is_not_at_chance() -> None:
    data = overconfident(4000, 4, 3.0)
    swapped = CalibrationSet(data.logits[:, [1, 0, 2, 3]], data.labels)
    report = fit_and_judge(make_recipe("dirichlet", {}), swapped).report
    assert report.verdict is Verdict.IMPROVED


@pytest.mark.parametrize("k", [10, 100])
def test_confused_classes_are_not_taken_for_another_order(k: int) -> None:
    """Pairs that the model cannot tell apart, shifted priors and biased columns."""
    for seed in range(100):
        rng = np.random.default_rng(seed)
        labels = rng.choice(k, size=1000, p=rng.dirichlet(np.ones(k)))
        logits = rng.normal(size=(1000, k)) + rng.normal(size=k)
        rows = np.arange(1000)
        logits[rows, labels] += 3.0
        logits[rows, labels ^ 1] += 3.2  # even slightly more like the other class of the pair
        found = chance_test(softmax(logits), labels)
        assert found is not None
        assert found.reordered_classes == ()


@pytest.mark.parametrize("share", [0.001, 0.01, 0.3])
@pytest.mark.parametrize("auroc", [0.65, 0.9])
def test_shifted_priors_are_not_taken_for_another_order(share: float, auroc: float) -> None:
    """Most predictions are wrong, yet the model ranks well."""
    data = rare(20_000, int(20_000 * share), auroc)
    found = chance_test(softmax(data.logits + np.array([0.0, 9.0])), data.labels)
    assert found is not None
    assert found.accuracy < 0.45
    assert not found.is_misnumbered


def test_random_labels_have_no_better_order() -> None:
    rng = np.random.default_rng(0)
    for k, n in ((2, 200), (10, 1000), (300, 1000)):
        for _ in range(100):
            found = chance_test(rng.dirichlet(np.ones(k), size=n), rng.integers(k, size=n))
            assert found is not None
            assert found.reordered_accuracy is None


def test_labels_that_are_all_equal_cannot_be_tested() -> None:
    p = np.random.default_rng(0).random(200)
    assert chance_test(p, np.ones(200, int)) is None
    report = evaluate(p, np.ones(200, int), before=p, draws=100)
    assert report.chance is None
    assert report.verdict is Verdict.NO_MEASURABLE_CHANGE


def test_equal_rows_are_at_chance() -> None:
    labels = np.arange(200) % 2
    found = chance_test(np.full(200, 0.5), labels)
    assert found is not None
    assert (found.auroc, found.limit, found.is_above_chance) == (0.5, 0.5, False)


def test_large_sets_are_thinned_evenly() -> None:
    data = overconfident(40_000, 20, 1.0)
    found = chance_test(softmax(data.logits), data.labels)
    assert found is not None
    assert found.rows == MAX_RANKS // 20
    many = overconfident(3000, 1000, 2.5)
    wide = chance_test(softmax(many.logits), many.labels)
    assert wide is not None
    assert wide.rows == MIN_ROWS
    assert wide.is_above_chance


@pytest.mark.parametrize(
    ("method", "n", "k"),
    [("temperature", 300, 4), ("temperature", 2000, 10), ("dirichlet", 2000, 4)],
)
def test_shuffled_labels_are_at_chance(method: str, n: int, k: int) -> None:
    data = overconfident(n, k, 3.0)
    recipe = make_recipe(method, {})
    assert fit_and_judge(recipe, data).report.verdict is not Verdict.AT_CHANCE
    report = fit_and_judge(recipe, shuffled(data)).report
    assert report.verdict is Verdict.AT_CHANCE
    assert report.chance is not None
    assert report.chance.rows == n  # the model is tested on all rows, not on the judged ones alone
    assert report.chance.accuracy == pytest.approx(report.chance.accuracy_by_chance, abs=0.08)


def test_the_report_names_it() -> None:
    report = fit_and_judge(make_recipe("temperature", {}), shuffled(overconfident(2000, 10, 3.0)))
    sentence = report.report.verdict_sentence
    assert "so they may belong to other rows, or use a different class order" in sentence
    assert "with shuffled labels" in sentence
    assert f"verdict: at_chance ({sentence})" in report.report.summary()
    page = html_page.render(report.report, draw=lambda _: "")
    assert '<span class="badge at_chance">at chance</span>' in page
    again = Report.from_dict(report.report.to_dict())
    assert again.chance == report.report.chance
    assert again.verdict_sentence == sentence


def test_a_report_of_one_side_warns() -> None:
    data = shuffled(overconfident(2000, 10, 3.0))
    report = evaluate(softmax(data.logits), data.labels, draws=100)
    assert report.verdict is None
    assert "warning: the labels are not predicted" in report.summary()
    assert "Warning: the labels are not predicted" in html_page.render(report, draw=lambda _: "")
    data = overconfident(2000, 10, 3.0)
    assert "at chance" not in evaluate(softmax(data.logits), data.labels, draws=100).summary()


def test_it_is_not_recommended() -> None:
    data = shuffled(overconfident(2000, 10, 3.0))
    judged = [fit_and_judge(make_recipe(name, {}), data) for name in ("temperature", "vector")]
    candidates = [Candidate(one.map.method, one.map.method, one.report, one.rows) for one in judged]
    found = recommend(candidates)
    assert found.place is None
    assert "was judged at chance" in found.reason


@pytest.mark.parametrize("seed", range(3))
def test_a_weak_model_of_many_classes_is_not_at_chance(seed: int) -> None:
    data = overconfident(1000, 1000, 2.5, seed)
    report = fit_and_judge(make_recipe("temperature", {}), data).report
    assert 0.1 < (report.metrics["accuracy"] or 0) < 0.3
    assert report.verdict is not Verdict.AT_CHANCE


@pytest.mark.parametrize("seed", range(5))
def test_a_score_of_a_rare_class_is_not_at_chance(seed: int) -> None:
    data = rare(5000, 50, 0.8, seed)
    report = fit_and_judge(make_recipe("temperature", {}), data).report
    assert report.metrics["accuracy"] == pytest.approx(0.99)  # the share of the other class
    assert report.verdict is not Verdict.AT_CHANCE


def test_the_whole_data_set_counts_where_the_judged_rows_are_too_few() -> None:
    """Of 20 rows of the rare class, 4 are judged: they alone often show nothing."""
    data, recipe = [rare(2000, 20, 0.8, seed) for seed in range(20)], make_recipe("temperature", {})
    reports = [fit_and_judge(recipe, one).report for one in data]
    rows = [one.chance.rows for one in reports if one.chance is not None]
    assert set(rows) == {400, 2000}
    assert sum(one.verdict is Verdict.AT_CHANCE for one in reports) <= 1
