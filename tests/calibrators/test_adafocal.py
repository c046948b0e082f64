"""AdaFocal's update: Algorithm 1 line by line, and the streamed form against the exact one."""

import json
import math
import sys

import numpy as np
import pytest
from helpers.samples import sample

from calibrators.adafocal import AdaFocalState, BinStatistics, Settings
from calibrators.errors import DataError, ParameterError

BINS = 15


def reference_update(gammas: list[float], rows: list[tuple[float, int]], settings: Settings):
    """Run Algorithm 1 on sorted rows (confidence, correct) without ties, in plain Python.

    Also return the size of each gamma before it was compared with the switching threshold.
    """
    rows = sorted(rows)
    bins, after, sizes = len(gammas), [], []
    for number, gamma in enumerate(gammas):
        inside = rows[number * len(rows) // bins : (number + 1) * len(rows) // bins]
        if inside:
            confidence = math.fsum(c for c, _ in inside) / len(inside)
            accuracy = sum(a for _, a in inside) / len(inside)
            change = settings.rate * (confidence - accuracy)
            if gamma >= 0:
                gamma = min(settings.gamma_max, gamma * math.exp(change))
                size = abs(gamma)
                if size < settings.switch_at:
                    gamma = -settings.switch_at
            else:
                gamma = max(settings.gamma_min, gamma * math.exp(-change))
                size = abs(gamma)
                if size < settings.switch_at:
                    gamma = settings.switch_at
        else:
            size = abs(gamma)
        after.append(gamma)
        sizes.append(size)
    return after, sizes


def training(law: str, n: int, steps: int, seed: int):
    """Return log odds and correctness of a validation set, as for a network in training."""
    rng = np.random.default_rng(seed)
    ease = rng.normal(size=n)
    for step in range(steps):
        wobble, t = rng.normal(size=n), step / steps
        if law == "trained":
            odds = 0.5 + 2.5 * np.abs(ease + 0.3 * wobble) * (0.6 + t)
            truth = odds / 1.6
        elif law == "overconfident":
            odds = np.minimum(np.abs(12 + 8 * ease + 2 * wobble) * (0.5 + t), 40)
            truth = odds / 5
        else:
            odds = -2 + np.abs(ease + 0.3 * wobble) * (0.3 + 2 * t)
            truth = odds + 1
        yield odds, rng.random(n) < 1 / (1 + np.exp(-truth))


def both_ways(passes, settings: Settings):
    """Return streamed state, exact gammas, bins that were near a switch, and largest C error."""
    state, exact = AdaFocalState.begin(settings), [1.0] * BINS
    near, far = np.zeros(BINS, dtype=bool), 0.0
    for odds, correct in passes:
        statistics = BinStatistics.from_log_odds(odds, correct)
        confidence = np.exp(-np.logaddexp(0, -odds))
        state = state.update(statistics)
        rows = list(zip(confidence, correct.tolist(), strict=True))
        exact, sizes = reference_update(exact, rows, settings)
        near |= np.abs(np.array(sizes) / settings.switch_at - 1) < 0.01
        means = [part.mean() for part in np.split(np.sort(confidence), _cuts(len(odds)))]
        far = max(far, np.abs(statistics.equal_mass(BINS).mean_confidence - means).max())
    return state, np.array(exact), near, far


def _cuts(n: int) -> list[int]:
    return [i * n // BINS for i in range(1, BINS)]


@pytest.mark.parametrize(
    ("law", "n"),
    [("trained", 10_000), ("trained", 20_000), ("overconfident", 10_000), ("timid", 10_000)],
)
def test_streamed_update_is_the_exact_one(law, n):
    state, exact, near, far = both_ways(training(law, n, 20, seed=7), Settings())
    off = np.abs(state.gammas / exact - 1)[~near].max()
    sys.stdout.write(f"{law}, n = {n}: C_b off by {far:.1e}, gammas by {100 * off:.2f} %\n")
    assert state.step == 20
    assert far <= 3e-4
    assert off <= 0.01
    assert near.sum() <= 3


@pytest.mark.parametrize("law", ["trained", "overconfident", "timid"])
def test_the_same_set_again_and_again(law):
    """Errors would not average out but grow with every step."""
    n = 10_000
    one = next(training(law, n, 1, seed=3))
    state, exact, near, far = both_ways([one] * 20, Settings())
    off = np.abs(state.gammas / exact - 1)[~near].max()
    sys.stdout.write(
        f"{law}, n = {n}, repeated: C_b off by {far:.1e}, gammas by {100 * off:.4f} %\n"
    )
    assert far <= 1e-6
    assert off <= 0.01


def test_the_same_many_rows_in_cells():
    odds, correct = next(training("trained", 200_000, 1, seed=3))
    statistics, state = BinStatistics.from_log_odds(odds, correct), AdaFocalState.initial()
    for _ in range(20):
        state = state.update(statistics)
    order = np.argsort(odds)
    confidence = np.split(1 / (1 + np.exp(-odds[order])), _cuts(len(odds)))
    means = np.array([part.mean() for part in confidence])
    gaps = means - [part.mean() for part in np.split(correct[order], _cuts(len(odds)))]
    assert (20 * gaps > np.log(0.2)).all()  # no gamma reaches a bound or a switch
    assert (20 * gaps < np.log(20)).all()
    far = np.abs(statistics.equal_mass(BINS).mean_confidence - means).max()
    off = np.abs(state.gammas / np.exp(20 * gaps) - 1).max()
    sys.stdout.write(f"200,000 rows, repeated: C_b off by {far:.1e}, gammas by {100 * off:.2f} %\n")
    assert far <= 3e-5
    assert off <= 0.01


def test_a_repeated_set_of_real_logits():
    data = sample("test")
    one = BinStatistics.from_logits(data.logits, data.labels)
    state, settings, exact = AdaFocalState.initial(), Settings(), [1.0] * BINS
    logits = data.logits.astype(np.float64)
    order = np.sort(logits, axis=1)
    rest = np.log(np.exp(order[:, :-1] - order[:, -2:-1]).sum(axis=1))
    confidence = 1 / (1 + np.exp(order[:, -2] + rest - order[:, -1]))
    rows = list(zip(confidence, logits.argmax(axis=1) == data.labels, strict=True))
    for _ in range(20):
        state = state.update(one)
        exact, _ = reference_update(exact, rows, settings)
    assert state.gammas == pytest.approx(exact, rel=1e-4)


def one_gap(gap: float, **settings) -> AdaFocalState:
    """Return the state of one bin after an update with C - A equal to ``gap``."""
    return AdaFocalState.initial(bins=1, **settings).update(rows_with_gap(gap))


def rows_with_gap(gap: float) -> BinStatistics:
    accuracy = 0.5 - gap / 2
    return BinStatistics.from_confidences([0.5 + gap / 2] * 100, np.arange(100) < 100 * accuracy)


def test_bounds_and_switches():
    assert one_gap(0.5, rate=100.0).gammas.tolist() == [20.0]
    low = one_gap(-0.5, rate=4.0)
    assert low.gammas.tolist() == [-0.2]
    assert low.switches(AdaFocalState.begin(low.settings)) == [0]
    lower = low
    for _ in range(20):
        lower = lower.update(rows_with_gap(-0.5))
    assert lower.gammas.tolist() == [-2.0]
    assert lower.switches(low) == []
    back = lower.update(rows_with_gap(0.9))
    assert back.gammas.tolist() == [0.2]
    assert back.switches(lower) == [0]
    assert one_gap(0.98, rate=1000.0, gamma_max=100.0).gammas.tolist() == [100.0]


def test_gamma_exactly_at_the_threshold_does_not_switch():
    settings = Settings(bins=1, switch_at=0.2)
    state = AdaFocalState(settings, 3, [0, 1], [0.2], [0.5])
    balanced = BinStatistics.from_confidences([0.0] * 4, [False] * 4)
    assert state.update(balanced).gammas == pytest.approx([0.2], rel=1e-5)
    assert AdaFocalState(settings, 3, [0, 1], [0.1999], [0.5]).update(balanced).gammas < 0


@pytest.mark.parametrize(("right", "sign"), [(True, -1), (False, 1)])
def test_all_right_lowers_and_all_wrong_raises_every_gamma(right, sign):
    confidence = np.linspace(0.2, 0.95, 300)
    statistics = BinStatistics.from_confidences(confidence, np.full(300, right))
    state = AdaFocalState.initial().update(statistics)
    assert (np.sign(np.log(state.gammas)) == sign).all()
    assert (state.accuracy == float(right)).all()


def test_tied_edges_fewer_rows_than_bins_and_one_row():
    tied = AdaFocalState.initial().update(BinStatistics.from_confidences([1.0] * 50, [1] * 50))
    assert (np.diff(tied.edges) >= 0).all()
    assert tied.gammas == pytest.approx(np.ones(15))
    before = AdaFocalState.initial(rate=2.0)
    few = before.update(BinStatistics.from_confidences([0.6, 0.7, 0.8], [True, False, True]))
    changed = few.gammas != 1
    assert changed.sum() == 3
    assert np.array_equal(few.accuracy[~changed], before.accuracy[~changed])
    expected, _ = reference_update([1.0] * 15, [(0.6, 1), (0.7, 0), (0.8, 1)], before.settings)
    assert few.gammas == pytest.approx(expected, rel=1e-4)
    assert before.update(BinStatistics.from_confidences([0.7], [True])).step == 1


def test_the_accuracy_of_split_ties_stays_within_its_bounds():
    confidence = np.repeat([0.2, 0.4, 0.6, 0.8], [1, 46, 42, 49])
    statistics = BinStatistics.from_confidences(confidence, confidence > 0.2)
    table = statistics.equal_mass(15)
    assert (table.correct_sum / table.count).max() > 1  # by rounding
    assert AdaFocalState.initial(bins=15).update(statistics).accuracy.max() == 1


def test_without_a_row_there_is_no_update():
    with pytest.raises(DataError, match="no rows have been observed"):
        AdaFocalState.initial().update(BinStatistics.empty())


def test_update_changes_nothing_in_place():
    state = AdaFocalState.initial()
    after = state.update(rows_with_gap(0.1))
    assert state == AdaFocalState.initial()
    assert (state.step, after.step) == (0, 1)
    with pytest.raises(ValueError, match="read-only"):
        after.gammas[0] = 3


@pytest.mark.parametrize("rule", ["calfocal", "calfocal_per_sample"])
def test_calfocal_has_no_memory(rule):
    state = AdaFocalState.initial(bins=1, rate=5.0, rule=rule)
    for gap in (0.4, -0.4, 0.1):
        state = state.update(rows_with_gap(gap))
        assert state.gammas == pytest.approx([math.exp(5 * gap)], rel=2e-3)


@pytest.mark.parametrize("rate", [1.0, 10.0, 100.0])
def test_calfocal_has_no_bound(rate):
    state = AdaFocalState.initial(bins=1, rate=rate, rule="calfocal", gamma_max=2.0)
    gap = 0.4
    found = state.update(rows_with_gap(gap)).gammas
    assert np.log(found) == pytest.approx([rate * gap], rel=1e-3)
    steep = AdaFocalState.initial(bins=1, rate=1000.0, rule="calfocal")
    assert steep.update(rows_with_gap(0.5)).gammas.tolist() == [1e18]


def test_without_gamma_max_a_gamma_grows_as_long_as_there_is_a_gap():
    state = AdaFocalState.initial(bins=1, rate=8.0, gamma_max=math.inf)
    for _ in range(12):
        state = state.update(rows_with_gap(0.4))
    assert np.log(state.gammas) == pytest.approx([12 * 8 * 0.4], rel=1e-3)
    for _ in range(12):
        state = state.update(rows_with_gap(-0.4))
    assert np.log(state.gammas) == pytest.approx([0.0], abs=0.05)
    bounded = AdaFocalState.initial(bins=1, rate=10.0, gamma_max=50.0)
    for _ in range(12):
        bounded = bounded.update(rows_with_gap(0.4))
    assert bounded.gammas.tolist() == [50.0]


def test_settings_without_gamma_max_are_plain_json():
    state = AdaFocalState.initial(gamma_max=math.inf, rate=1000.0).update(rows_with_gap(0.9))
    text = json.dumps(state.to_dict(), allow_nan=False)
    again = AdaFocalState.from_dict(json.loads(text))
    assert again == state
    assert again.settings == Settings(gamma_max=None, rate=1000.0)
    assert again.gammas.max() > 1e17


def test_as_json_and_back_every_bit_stays():
    state = AdaFocalState.initial(rate=3.0, rule="calfocal").update(rows_with_gap(0.123))
    again = AdaFocalState.from_dict(json.loads(json.dumps(state.to_dict())))
    assert again == state
    assert again.settings == state.settings
    moved = AdaFocalState.from_dict(
        {**state.to_dict(), "gammas": (state.gammas * 1.0000001).tolist()}
    )
    assert moved != state
    assert not moved.is_near(state)
    assert moved.is_near(state, 1e-6)
    assert not state.is_near(AdaFocalState.begin(state.settings), 1.0)


@pytest.mark.parametrize(
    "change",
    [
        {"gammas": [1.0] * 14},
        {"gammas": [float("nan")] * 15},
        {"gammas": "many"},
        {"gammas": [[1.0], [1.0, 2.0]]},
        {"edges": [0.5] * 16},
        {"edges": list(np.linspace(1, 0, 16))},
        {"accuracy": [1.5] * 15},
        {"step": -1},
        {"step": True},
        {"step": "1"},
        {"settings": None},
        {"settings": {"speed": 3}},
        {"settings": {"bins": 0}},
        {"settings": {"rate": float("inf")}},
    ],
    ids=str,
)
def test_a_document_that_is_not_a_state_is_refused(change):
    document = {**AdaFocalState.initial().to_dict(), **change}
    with pytest.raises((DataError, ParameterError)):
        AdaFocalState.from_dict(document)
    document = AdaFocalState.initial().to_dict()
    del document[next(iter(change))]
    with pytest.raises(DataError, match="not an AdaFocal state"):
        AdaFocalState.from_dict(document)


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"bins": 0}, "bins must be at least 1, got 0"),
        ({"rate": 0.0}, "rate must be greater than 0"),
        ({"gamma_min": 1.0}, "gamma_min must be at most 0"),
        ({"gamma_max": 0.0}, "gamma_max must be greater than 0 or None, got 0.0"),
        ({"gamma_max": "inf"}, "gamma_max must be a finite number or None, got 'inf'"),
        ({"switch_at": 0.5, "gamma_min": -0.3}, "switch_at must be at most .* got 0.5"),
        ({"rule": "focal"}, "rule must be one of"),
    ],
)
def test_settings_name_the_broken_rule(settings, rule):
    with pytest.raises(ParameterError, match=rule):
        Settings(**settings)
