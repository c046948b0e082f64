"""MetaCal: its two constraints on new data over many draws, and its limit cases."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from helpers.samples import draw, sample
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax
from scipy.stats import entropy

from calibrators import CalibrationSet, FitError, ParameterError
from calibrators.methods.metacal import MetaCal, MetaCalMap
from calibrators.methods.temperature import TemperatureScaling

FRESH = draw(20_000, 5, seed=999)
RIGHT = FRESH.logits.argmax(axis=1) == FRESH.labels


def fit(data: CalibrationSet, **parameters: Any) -> MetaCalMap:
    fitted = MetaCal(**parameters).fit(data)
    assert isinstance(fitted, MetaCalMap)
    return fitted


def rejected(fitted: MetaCalMap, logits: np.ndarray) -> np.ndarray:
    """Return which rows have the uniform distribution."""
    return np.ptp(fitted.apply(logits), axis=1) == 0


@pytest.mark.parametrize("miscoverage", [0.02, 0.05, 0.3])
@pytest.mark.parametrize("n", [100, 1000])
def test_right_predictions_are_rejected_no_more_often_than_allowed(
    n: int, miscoverage: float
) -> None:
    rates, limits = [], []
    for seed in range(40):
        data = draw(n, 5, seed=seed)
        fitted = fit(data, miscoverage=miscoverage)
        right = int((data.logits.argmax(axis=1) == data.labels).sum())
        assert fitted.fit_info["miscoverage"] <= miscoverage
        rates.append(rejected(fitted, FRESH.logits)[RIGHT].mean())
        limits.append(miscoverage + math.sqrt(math.log(1 / 0.05) / (2 * right)))
    spread = np.std(rates) / math.sqrt(len(rates))
    assert np.mean(rates) <= miscoverage + 3 * spread
    assert np.mean(rates) >= miscoverage - 3 * spread - 2 / (0.6 * n)
    # at most 5 % of the draws lie above Hoeffding's bound
    assert np.mean(np.array(rates) > limits) <= 0.05


def test_the_rate_is_spread_as_order_statistics_are() -> None:
    """With n correct and r rejected predictions, the rate follows Beta(r + 1, n - r)."""
    places = []
    for seed in range(120):
        data = draw(400, 5, seed=seed)
        fitted = fit(data, miscoverage=0.1)
        right = int((data.logits.argmax(axis=1) == data.labels).sum())
        gone = round(fitted.fit_info["miscoverage"] * right)
        mean = (gone + 1) / (right + 1)
        deviation = math.sqrt(mean * (1 - mean) / (right + 2))
        places.append((rejected(fitted, FRESH.logits)[RIGHT].mean() - mean) / deviation)
    assert abs(np.mean(places)) < 4 / math.sqrt(120)
    assert 0.85 < np.std(places) < 1.15


@pytest.mark.parametrize("accuracy", [0.85, 0.95])
def test_accepted_rows_have_the_requested_accuracy(accuracy: float) -> None:
    reached, wanted = [], []
    for seed in range(40):
        fitted = fit(draw(2000, 5, seed=seed), constraint="accuracy", accuracy=accuracy)
        assert fitted.fit_info["accuracy"] >= accuracy
        accepted = ~rejected(fitted, FRESH.logits)
        reached.append(RIGHT[accepted].mean())
        wanted.append(accuracy - math.sqrt(math.log(20) / (2 * fitted.fit_info["accepted"])))
    assert np.mean(reached) == pytest.approx(accuracy, abs=0.01)
    assert np.mean(np.array(reached) < wanted) <= 0.05


def test_no_fewer_rows_are_accepted_than_the_accuracy_needs() -> None:
    data = draw(2000, 5)
    fitted = fit(data, constraint="accuracy", accuracy=0.9)
    order = np.argsort(entropy(softmax(data.logits / fitted.base_temperature, axis=1), axis=1))
    right = (data.logits.argmax(axis=1) == data.labels)[order]
    accuracies = np.cumsum(right) / np.arange(1, data.n + 1)
    assert fitted.fit_info["accepted"] == np.flatnonzero(accuracies >= 0.9).max() + 1


def test_the_default_accuracy_is_half_of_the_possible_gain() -> None:
    data = draw(4000, 5, temperature=0.5)
    fitted = fit(data, constraint="accuracy")
    scores = entropy(softmax(data.logits / fitted.base_temperature, axis=1), axis=1)
    right = (data.logits.argmax(axis=1) == data.labels)[np.argsort(scores)]
    accuracies = np.cumsum(right) / np.arange(1, data.n + 1)
    middle = (accuracies[199:].max() + right.mean()) / 2
    assert fitted.fit_info["accuracy"] == pytest.approx(middle, abs=1e-3)


def test_an_accuracy_out_of_reach_is_refused() -> None:
    rng = np.random.default_rng(0)
    noise = CalibrationSet(rng.normal(size=(2000, 4)), rng.integers(4, size=2000))
    clear = CalibrationSet(
        np.concatenate([noise.logits, draw(500, 4).logits]),
        np.concatenate([noise.labels, draw(500, 4).labels]),
    )
    with pytest.raises(FitError, match=r"MetaCal.accuracy must be at most 0\.\d+.*got 0.9999"):
        MetaCal(constraint="accuracy", accuracy=0.9999).fit(clear)


@pytest.mark.parametrize(
    "parameters",
    [{"miscoverage": 0.0}, {"constraint": "accuracy", "accuracy": 0.1}],
    ids=["no miscoverage", "an accuracy it has"],
)
def test_is_temperature_scaling_where_nothing_is_rejected(parameters: dict[str, Any]) -> None:
    data = sample("cal")
    fitted = fit(data, **parameters)
    expected = TemperatureScaling().fit(data).apply(data.logits)
    np.testing.assert_allclose(fitted.apply(data.logits), expected, atol=1e-7)
    assert fitted.fit_info["accepted"] == data.n


def test_too_few_right_predictions_reject_nothing() -> None:
    """With 18 predictions, the worst twentieth cannot be determined."""
    data = draw(25, 3)
    assert (data.logits.argmax(axis=1) == data.labels).sum() <= 18
    assert fit(data).fit_info["accepted"] == data.n


def test_accepted_rows_have_the_best_temperature_of_their_own() -> None:
    data = draw(3000, 5, dtype=np.float64)
    fitted = fit(data, miscoverage=0.2)
    z, y = data.logits, data.labels
    scores = entropy(softmax(z / fitted.base_temperature, axis=1), axis=1)
    accepted = scores <= fitted.threshold
    assert (rejected(fitted, z) == ~accepted).all()

    def loss(log_t: float) -> float:
        logs = log_softmax(z[accepted] / math.exp(log_t), axis=1)
        return -float(logs[np.arange(accepted.sum()), y[accepted]].mean())

    best = math.exp(minimize_scalar(loss, bounds=(-3, 3), options={"xatol": 1e-10}).x)
    assert fitted.temperature == pytest.approx(best, rel=1e-5)
    np.testing.assert_allclose(
        fitted.apply(z)[accepted], softmax(z[accepted] / best, axis=1), atol=1e-6
    )


def test_masked_classes_have_no_share_of_a_rejected_row() -> None:
    fitted = MetaCalMap(k=4, base_temperature=1.0, threshold=0.5, temperature=2.0)
    p = fitted.apply([[0.1, 0.0, -np.inf, 0.0], [0.0, -np.inf, -np.inf, -np.inf]])
    np.testing.assert_allclose(p, [[1 / 3, 1 / 3, 0, 1 / 3], [1, 0, 0, 0]], atol=1e-15)


def test_scores_apart_by_rounding_alone_are_not_cut() -> None:
    """Rows that are permutations of each other have equal entropy except for the last bits."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(40, 6)) * 3
    copies = np.concatenate([rows[:, rng.permutation(6)] for _ in range(25)])
    labels = (copies / 2 + rng.gumbel(size=copies.shape)).argmax(axis=1)
    fitted = fit(CalibrationSet(copies, labels), miscoverage=0.2)
    gone = rejected(fitted, copies).reshape(25, 40)
    assert (gone == gone[0]).all()
    assert gone.any()
    assert not gone.all()


def test_all_accepted_rows_right_keep_the_temperature_of_all() -> None:
    data = draw(400, 3, seed=2)
    fitted = fit(data, constraint="accuracy", accuracy=1.0)
    assert fitted.fit_info["accuracy"] == 1
    assert fitted.temperature == fitted.base_temperature
    assert fitted.fit_info["warnings"] == []


@pytest.mark.parametrize(
    ("parameters", "rule"),
    [
        ({"accuracy": 0.95}, r"accuracy must be 0.0 if .*got 0.95: set constraint='accuracy'"),
        (
            {"constraint": "accuracy", "miscoverage": 0.2},
            r"miscoverage must be 0.05 if .*got 0.2: set constraint='miscoverage'",
        ),
    ],
)
def test_a_number_that_the_constraint_ignores_is_refused(
    parameters: dict[str, Any], rule: str
) -> None:
    with pytest.raises(ParameterError, match=rf"MetaCal\.{rule}"):
        MetaCal(**parameters)


def test_the_threshold_is_a_number() -> None:
    for threshold in (math.nan, math.inf):
        with pytest.raises(ParameterError, match=f"threshold must be a finite.*{threshold}"):
            MetaCalMap(k=4, base_temperature=1.0, threshold=threshold, temperature=2.0)
