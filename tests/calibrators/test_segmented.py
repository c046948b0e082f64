"""Segmented: the right temperature for each segment, however many rows it has."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
from helpers.samples import draw, in_segments
from helpers.segment_samples import drawn
from numpy.typing import NDArray
from scipy.integrate import quad
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from calibrators import (
    CalibrationSet,
    FitError,
    ParameterError,
)
from calibrators.errors import BoundarySolution
from calibrators.fitting.context import FitContext
from calibrators.methods._shrinkage import FINE, Rounds, SegmentSample, Solution, shrink, split_up
from calibrators.methods.auto import Auto
from calibrators.methods.segmented import Segmented, SegmentedMap
from calibrators.methods.smart import Smart
from calibrators.methods.temperature import TemperatureMap, TemperatureScaling

Floats = NDArray[np.float64]
Sizes = NDArray[np.int64]


def excess_nll(temperatures: Floats, truth: Floats) -> float:
    """Return how much the NLL of new rows exceeds that of the truth, averaged over segments."""
    clean = draw(1500, 5, temperature=1.0, seed=77, dtype=np.float64).logits
    best = log_softmax(clean, axis=1)
    wrong = (log_softmax(clean * ratio, axis=1) for ratio in truth / temperatures)
    return float(np.mean([(np.exp(best) * (best - one)).sum(axis=1).mean() for one in wrong]))


def losses(sizes: Sizes, tau: float, seeds: int) -> dict[str, float]:
    """Return the mean excess with one temperature, with separate ones, and with shrinkage."""
    found: dict[str, list[float]] = {"one": [], "own": [], "shrunk": []}
    for seed in range(seeds):
        data, truth = drawn(sizes, tau, seed)
        shrunk = Segmented().fit(data)
        with warnings.catch_warnings():
            # small segments with only correct predictions
            warnings.simplefilter("ignore", BoundarySolution)
            own = Segmented(shrinkage="none").fit(data)
        assert isinstance(shrunk, SegmentedMap)
        assert isinstance(own, SegmentedMap)
        assert isinstance(shrunk.base, TemperatureMap)
        one = shrunk.base.temperature
        found["one"].append(excess_nll(np.full(len(sizes), one), truth))
        found["own"].append(excess_nll(one * own.temperatures, truth))
        found["shrunk"].append(excess_nll(one * shrunk.temperatures, truth))
    return {name: float(np.mean(values)) for name, values in found.items()}


@pytest.mark.parametrize(
    ("sizes", "tau"),
    [
        (np.full(20, 20), 0.4),
        (np.full(20, 100), 0.15),
        (np.full(100, 5), 0.4),
        (np.r_[4000, np.full(20, 50)], 0.15),
    ],
)
def test_shrinkage_beats_one_temperature_and_own_temperatures(sizes: Sizes, tau: float) -> None:
    mean = losses(sizes, tau, seeds=5)
    assert mean["shrunk"] < 0.85 * min(mean["one"], mean["own"])


def test_shrinkage_saves_nine_tenths_of_the_cost_of_needless_temperatures() -> None:
    mean = losses(np.full(20, 50), 0.0, seeds=8)
    assert mean["shrunk"] - mean["one"] < 0.1 * (mean["own"] - mean["one"])


def test_large_segments_get_the_temperature_of_their_own_fit() -> None:
    data, _ = drawn(np.full(4, 20_000), 0.4, seed=0)
    fitted = Segmented().fit(data)
    assert isinstance(fitted, SegmentedMap)
    assert data.segments is not None
    for place, ratio in enumerate(fitted.temperatures):
        alone = TemperatureScaling().fit(data.take(data.segments.rows(place)))
        assert ratio * fitted.base.temperature == pytest.approx(alone.temperature, rel=1e-3)  # type: ignore[attr-defined]


def test_equal_segments_keep_to_the_base_to_the_bit() -> None:
    data = draw(3000, 4, temperature=2.0, seed=1)
    fitted = Segmented().fit(CalibrationSet(data.logits, data.labels, np.arange(3000) % 3))
    assert isinstance(fitted, SegmentedMap)
    assert fitted.fit_info["tau"] == 0
    assert fitted.temperatures.tolist() == [1, 1, 1]
    alone = TemperatureScaling().fit(data)
    given = fitted.apply(data.logits, np.arange(3000) % 3)
    np.testing.assert_array_equal(given, alone.apply(data.logits))


def segments_of(sizes: Sizes, tau: float, seed: int) -> tuple[list[SegmentSample], list[Any]]:
    """Return the segments after temperature scaling, and each one's NLL as a function of log T."""
    data, _ = drawn(sizes, tau, seed)
    assert data.segments is not None
    logits = TemperatureScaling().fit(data).transform(data.logits)

    def nll_of(rows: NDArray[np.intp]) -> Any:
        def nll(log_t: float) -> float:
            p = log_softmax(logits[rows] * math.exp(-log_t), axis=1)
            return -float(p[np.arange(len(rows)), data.labels[rows]].sum())

        return nll

    functions = [nll_of(data.segments.rows(place)) for place in range(len(sizes))]
    return split_up(logits, data.labels, data.segments), functions


@pytest.mark.parametrize("tau", [0.05, 0.3, 1.0])
def test_temperatures_are_the_minimisers_that_scipy_finds(tau: float) -> None:
    segments, functions = segments_of(np.array([1, 3, 20, 300]), 0.5, seed=2)
    for segment, nll in zip(segments, functions, strict=True):
        found = segment.solve(tau**-2, 1.0, FINE)
        best = minimize_scalar(
            lambda x, nll=nll: nll(x) + x**2 / (2 * tau**2),
            bounds=(-2.7, 2.7),
            method="bounded",
            options={"xatol": 1e-9},
        )
        assert -math.log(found.beta) == pytest.approx(best.x, abs=2e-6)


class Plateau(Rounds):
    """Rounds whose evidence does not change below tau = 1/sqrt(2)."""

    def solve(self, precision: float, accuracy: float = FINE) -> list[Solution]:
        return [Solution(evidence=1.0 if precision >= 2 else 0.5)]


def test_a_tau_as_likely_as_its_neighbours_is_taken_as_it_is() -> None:
    segments, _ = segments_of(np.array([50]), 0.5, seed=3)
    tau, _ = shrink(Plateau(segments, FitContext()))
    assert tau == 0.5


def test_the_derivatives_are_those_of_the_nll() -> None:
    segments, functions = segments_of(np.array([50]), 0.5, seed=3)
    nll, h = functions[0], 1e-4
    for log_t in (-0.7, 0.0, 0.9):
        value, slope, bend = segments[0].nll(math.exp(-log_t))
        up, down = nll(log_t - h), nll(log_t + h)
        assert value == pytest.approx(nll(log_t), rel=1e-12)
        assert slope == pytest.approx((up - down) / (2 * h), rel=1e-5, abs=1e-6)
        assert bend == pytest.approx((up - 2 * nll(log_t) + down) / h**2, rel=1e-4)


@pytest.mark.parametrize("rows", [1, 5, 40, 400])
def test_evidence_is_near_the_integral(rows: int) -> None:
    segments, functions = segments_of(np.full(6, rows), 0.4, seed=4)
    for tau in (0.1, 0.5):
        for segment, nll in zip(segments, functions, strict=True):
            found = segment.solve(tau**-2, 1.0, FINE)
            top, width = -math.log(found.beta), min(tau, 5 / math.sqrt(rows))
            reference = nll(top)

            def density(
                x: float, nll: Any = nll, start: float = reference, tau: float = tau
            ) -> float:
                prior = math.exp(-(x**2) / (2 * tau**2)) / (tau * math.sqrt(2 * math.pi))
                return prior * math.exp(start - nll(x))

            exact = math.log(quad(density, top - 8 * width, top + 8 * width)[0]) - reference
            assert found.evidence == pytest.approx(exact, abs=0.1)


@pytest.mark.parametrize(("rows", "truth"), [(30, 0.4), (300, 0.15), (300, 0.4)])
def test_tau_has_the_largest_evidence(rows: int, truth: float) -> None:
    segments, _ = segments_of(np.full(12, rows), truth, seed=5)

    def evidence(tau: float) -> float:
        return sum(one.solve(tau**-2, 1.0, FINE).evidence for one in segments)

    tau, found = shrink(Rounds(segments, FitContext()))
    best = max(evidence(one) for one in np.geomspace(1 / 64, 1, 100))
    assert evidence(tau) == pytest.approx(best, abs=0.02)
    assert tau == pytest.approx(truth, rel=0.6)
    exact = [one.solve(tau**-2, 1.0, FINE).beta for one in segments]
    assert [one.beta for one in found] == pytest.approx(exact, rel=1e-6)


def test_a_label_that_the_base_calls_impossible_changes_nothing() -> None:
    data = draw(200, 3, dtype=np.float64)
    logits = np.vstack([data.logits, [[0.0, -np.inf, 1.0]]])
    with_it = SegmentSample(logits, np.append(data.labels, 1)).solve(4.0, 1.0, FINE)
    without = SegmentSample(np.array(data.logits), data.labels).solve(4.0, 1.0, FINE)
    assert with_it == without
    only = SegmentSample(logits[-1:], np.array([1]))
    assert only.solve(0.0, 1.0, FINE).beta == only.solve(4.0, 1.0, FINE).beta == 1


def test_a_fit_without_segments_explains_how_to_pass_them() -> None:
    with pytest.raises(FitError, match=r"CalibrationSet\(logits, labels, segments\)") as caught:
        Segmented().fit(draw(50, 3))
    assert caught.value.code == "missing_segments"


def test_the_base_is_another_method() -> None:
    with pytest.raises(ParameterError, match="neither segments nor features, got 'segmented'"):
        Segmented(base="segmented")
    with pytest.raises(ParameterError, match="did you mean 'temperature'"):
        Segmented(base="temprature")


def test_any_base_is_fitted_with_the_seed() -> None:
    data = in_segments(draw(300, 3))
    made = Segmented(base="smart", seed=5).fit(data)
    assert isinstance(made, SegmentedMap)
    alone = Smart(seed=5).fit(data)
    np.testing.assert_array_equal(made.apply(data.logits), alone.apply(data.logits))
    assert made.fit_info["base"] == "smart"
    assert made.fit_info["base_fit"] == alone.fit_info


def test_auto_may_be_the_base_and_explains_its_choice() -> None:
    seen: list[tuple[int, int]] = []
    data = in_segments(draw(400, 3))
    made = Segmented(base="auto").fit(data, progress=lambda *told: seen.append(told[:2]))
    assert isinstance(made, SegmentedMap)
    assert made.base.method == made.fit_info["base"] == made.fit_info["base_fit"]["winner"]
    assert seen == sorted(seen)
    assert len({step for step, _ in seen}) > 20


def test_a_segment_that_is_always_right_stays_finite() -> None:
    data, _ = drawn(np.array([500, 500, 30]), 0.3, seed=1)
    labels = data.labels.copy()
    labels[1000:] = data.logits[1000:].argmax(axis=1)
    assert data.segments is not None
    names = np.array(data.segments.names)[data.segments.codes]
    made = Segmented().fit(CalibrationSet(data.logits, labels, names))
    assert isinstance(made, SegmentedMap)
    assert made.fit_info["segments"][2]["unpenalised"] is None
    assert 1 / 16 < made.temperatures[2] < 1
    with pytest.warns(BoundarySolution, match=r"1 of 3 segments have no .* base's: '0002'"):
        own = Segmented(shrinkage="none").fit(CalibrationSet(data.logits, labels, names))
    assert isinstance(own, SegmentedMap)
    assert own.fit_info["tau"] is None
    assert own.temperatures[2] == 1


def test_a_base_at_its_bound_is_left_alone() -> None:
    data = draw(300, 3)
    right = in_segments(CalibrationSet(data.logits, data.logits.argmax(axis=1)))
    with pytest.warns(BoundarySolution):
        made = Segmented().fit(right)
    assert isinstance(made, SegmentedMap)
    assert made.temperatures.tolist() == [1, 1, 1]


@pytest.mark.parametrize("scale", [60.0, 1 / 60])
def test_segments_that_stop_at_a_bound_are_named(scale: float) -> None:
    data = draw(1200, 3, temperature=scale)
    names = np.resize(["a", "b", "c", "d"], data.n)
    with pytest.warns(BoundarySolution, match="4 of 4 segments stop at a bound") as caught:
        made = Segmented(base="identity").fit(CalibrationSet(data.logits, data.labels, names))
    end = "16" if scale > 1 else "0.0625"
    assert f"'a' at T = {end}, 'b' at T = {end}, 'c' at T = {end}, ...;" in str(caught[0].message)
    assert [one["code"] for one in made.fit_info["warnings"]] == ["boundary_solution"]


def test_only_the_segment_that_stops_at_a_bound_is_named() -> None:
    data = draw(1200, 3, temperature=1.0)
    logits, names = data.logits.copy(), np.resize(["near", "far"], data.n)
    logits[names == "far"] *= 60
    with pytest.warns(BoundarySolution, match=r"1 of 2 segments .*: 'far' at T = 16; choose"):
        Segmented(base="identity").fit(CalibrationSet(logits, data.labels, names))


@pytest.mark.parametrize("times", [100.0, 1e6])
def test_a_segment_on_a_scale_of_its_own_is_named(times: float) -> None:
    """It determines the temperature of all rows, and so distorts the other segments."""
    data = draw(1500, 3, temperature=1.0)
    logits, names = data.logits.copy(), np.resize(["a", "b", "c", "d", "far"], data.n)
    logits[names == "far"] *= times
    with pytest.warns(BoundarySolution, match="rescale the logits of these segments to match"):
        Segmented().fit(CalibrationSet(logits, data.labels, names))


def test_a_thousand_segments_of_one_row() -> None:
    data = draw(1000, 3, temperature=1.5)
    made = Segmented().fit(CalibrationSet(data.logits, data.labels, np.arange(1000)))
    assert isinstance(made, SegmentedMap)
    assert len(made.segments) == 1000
    assert np.abs(np.log(made.temperatures)).max() < 0.5


def test_auto_does_not_try_it_by_default() -> None:
    assert "segmented" not in Auto()._recipes()
    assert "segmented" not in Auto(allow_class_change=True)._recipes()
