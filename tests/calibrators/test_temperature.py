"""Temperature scaling compared with known truth, theorems and other libraries."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from helpers.samples import draw, sample
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp, softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator

from calibrators import CalibrationSet, FitError, ParameterError
from calibrators.errors import BoundarySolution, FlatLogits
from calibrators.methods.temperature import TemperatureMap, TemperatureScaling
from calibrators.metrics import accuracy, brier, ece, nll


def mean_nll(data: CalibrationSet, beta: float) -> float:
    z = data.logits.astype(np.float64) * beta
    return float((logsumexp(z, axis=1) - z[np.arange(data.n), data.labels]).mean())


def best_nll(data: CalibrationSet) -> float:
    """Return the optimum found by an independent solver in float64."""
    found = minimize_scalar(
        lambda log: mean_nll(data, np.exp(log)), bounds=(-12, 12), options={"xatol": 1e-10}
    )
    return float(found.fun)


@pytest.mark.parametrize("truth", [0.02, 0.5, 1.0, 3.0, 400.0])
def test_finds_the_truth(truth: float) -> None:
    fitted = TemperatureScaling().fit(draw(20_000, 5, temperature=truth))
    assert fitted.temperature == pytest.approx(truth, rel=0.03)


@pytest.mark.parametrize("k", [2, 3, 10, 48, 49, 300])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_reaches_the_optimum(k: int, dtype: type) -> None:
    data = draw(3000, k, temperature=5.0, dtype=dtype, seed=k)
    beta = 1 / TemperatureScaling().fit(data).temperature
    assert mean_nll(data, beta) - best_nll(data) < 1e-10


@pytest.mark.parametrize("scale", [1e-25, 1e-15, 1e-3, 1e9, 1e13])
def test_is_as_exact_at_any_scale(scale: float) -> None:
    data = draw(3000, 20, temperature=2.0)
    scaled = CalibrationSet((data.logits * scale).astype(np.float32), data.labels)
    exact = TemperatureScaling().fit(CalibrationSet(data.logits.astype(np.float64), data.labels))
    fitted = TemperatureScaling().fit(scaled)
    assert fitted.temperature / scale == pytest.approx(exact.temperature, rel=3e-7)


def test_reaches_the_optimum_from_a_subsample() -> None:
    data = draw(60_000, 80, temperature=3.0)
    fitted = TemperatureScaling().fit(data)
    assert fitted.fit_info["evaluations"] <= 2
    assert mean_nll(data, 1 / fitted.temperature) - best_nll(data) < 1e-10


class Given(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A scikit-learn classifier whose features are its logits."""

    def fit(self, x: np.ndarray, y: np.ndarray) -> Given:
        self.classes_ = np.unique(y)
        return self

    def decision_function(self, x: np.ndarray) -> np.ndarray:
        return x

    def predict(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(self.classes_[x.argmax(axis=1)])


def test_agrees_with_scikit_learn() -> None:
    data = sample("cal")
    z = data.logits.astype(np.float64)
    model = FrozenEstimator(Given().fit(z, data.labels))
    theirs = CalibratedClassifierCV(model, method="temperature").fit(z, data.labels)
    ours = TemperatureScaling().fit(CalibrationSet(z, data.labels))
    np.testing.assert_allclose(ours.apply(z), theirs.predict_proba(z), atol=1e-4)
    assert nll(ours.apply(z), data.labels) <= nll(theirs.predict_proba(z), data.labels)


def test_theorems_on_the_real_sample() -> None:
    cal, test = sample("cal"), sample("test")
    fitted = TemperatureScaling().fit(cal)
    assert fitted.temperature == pytest.approx(2.764, abs=5e-4)
    before, after = softmax(test.logits, axis=1), fitted.apply(test.logits)
    assert accuracy(after, test.labels) == accuracy(before, test.labels)
    assert nll(after, test.labels) == pytest.approx(0.2821, abs=1e-4)
    assert ece(after, test.labels) == pytest.approx(0.0054, abs=1e-4)
    assert nll(fitted.apply(cal.logits), cal.labels) <= nll(softmax(cal.logits, 1), cal.labels)


@pytest.mark.parametrize(
    "objective", ["mse", "brier", "soft_ece", "charbonnier", "charbonnier_per_sample", "ece"]
)
@pytest.mark.parametrize("k", [4, 150])
def test_other_objectives_are_minimised(objective: str, k: int) -> None:
    data = draw(3000, k, temperature=2.5)

    def value(temperature: float) -> float:
        p = softmax(data.logits.astype(np.float64) / temperature, axis=1)
        confidence, correct = p.max(axis=1), p.argmax(axis=1) == data.labels
        match objective:
            case "mse":
                return float(((confidence - correct) ** 2).mean())
            case "brier":
                return brier(p, data.labels)
            case "ece":
                return ece(p, data.labels)
        centres = (np.arange(15) + 0.5) / 15
        w = np.exp(-200 * (confidence[:, None] - centres) ** 2)
        w /= w.sum(axis=1, keepdims=True)
        if objective == "charbonnier_per_sample":
            residual = np.hypot(correct[:, None] - centres, 1e-3)
            return float((w * residual).sum(axis=1).mean())
        delta = 1e-3 if objective == "charbonnier" else 0.0
        gap = ((correct - confidence)[:, None] * w).sum(axis=0)
        return float(np.sqrt(gap**2 + (delta * w.sum(axis=0)) ** 2).sum() / data.n)

    fitted = TemperatureScaling(objective=objective).fit(data)
    grid = fitted.temperature * 2.0 ** np.linspace(-3, 3, 97)
    slack = 2e-4 if objective == "ece" else 2e-5
    assert value(fitted.temperature) <= min(map(value, grid)) + slack


def equal_mass_ece(temperature: float, data: CalibrationSet) -> float:
    """Return the ECE-EM of distinct confidences, with 15 bins of equally many rows."""
    p = softmax(data.logits.astype(np.float64) / temperature, axis=1)
    order = np.argsort(p.max(axis=1))
    gap = (p.max(axis=1) - (p.argmax(axis=1) == data.labels))[order]
    edges = np.arange(16) * data.n // 15
    return float(np.abs(np.add.reduceat(gap, edges[:-1])).sum() / data.n)


def test_ece_em_on_tenths_is_the_selection_of_the_adafocal_paper() -> None:
    """The paper selects T in (0, 10] in steps of 0.1 by the lowest equal-mass ECE."""
    for k in (4, 150):
        data = draw(1500, k, temperature=2.5, dtype=np.float64)
        fitted = TemperatureScaling(objective="ada_ece", grid="tenths").fit(data)
        grid = np.arange(1, 101) / 10
        values = [equal_mass_ece(one, data) for one in grid]
        assert fitted.temperature == pytest.approx(grid[int(np.argmin(values))])
        assert np.argsort(values)[1] != int(np.argmin(values))
        refined = TemperatureScaling(objective="ada_ece").fit(data)
        # the ECE is not smooth: the refined grid may miss a minimum between its points
        assert equal_mass_ece(refined.temperature, data) <= min(values) + 2e-3


def test_tenths_find_the_nll_optimum_to_one_decimal() -> None:
    for objective in ("nll", "label_smoothing"):
        data = draw(3000, 5, temperature=2.5)
        exact = TemperatureScaling(objective=objective).fit(data).temperature
        tenths = TemperatureScaling(objective=objective, grid="tenths").fit(data)
        assert abs(tenths.temperature - exact) < 0.1
        assert round(tenths.temperature, 1) == pytest.approx(tenths.temperature)


def test_the_end_of_the_tenths_is_flagged() -> None:
    data = draw(600, 4)
    small = CalibrationSet(data.logits / 1000, data.labels)
    with pytest.warns(BoundarySolution, match="lowest at the end of the grid from 0.1 to 10"):
        fitted = TemperatureScaling(grid="tenths", objective="ada_ece").fit(small)
    assert fitted.temperature == pytest.approx(0.1)


def test_label_smoothing_is_softer() -> None:
    data = draw(4000, 5, temperature=2.0)
    plain, smooth = (TemperatureScaling(objective=o).fit(data) for o in ("nll", "label_smoothing"))
    assert smooth.temperature > plain.temperature
    z = data.logits.astype(np.float64)

    def loss(log: float) -> float:
        p = z * np.exp(log) - logsumexp(z * np.exp(log), axis=1, keepdims=True)
        own = p[np.arange(data.n), data.labels]
        return float(-(0.95 * own + 0.05 * p.mean(axis=1)).mean())

    best = minimize_scalar(loss, bounds=(-5, 5), options={"xatol": 1e-9}).x
    assert smooth.temperature == pytest.approx(np.exp(-best), rel=1e-4)


def test_all_right_stops_at_the_lower_bound() -> None:
    data = draw(500, 4)
    right = CalibrationSet(data.logits, data.logits.argmax(axis=1))
    with pytest.warns(BoundarySolution, match="every prediction on the fit set is correct"):
        fitted = TemperatureScaling().fit(right)
    assert fitted.fit_info["at_bound"]
    assert fitted.fit_info["warnings"][0]["code"] == "boundary_solution"
    margin = np.sort(data.logits, axis=1)
    assert fitted.temperature < 1e-3 * (margin[:, -1] - margin[:, -2]).mean()


def test_worse_than_chance_stops_at_the_upper_bound() -> None:
    data = draw(500, 4)
    wrong = CalibrationSet(data.logits, data.logits.argmin(axis=1))
    with pytest.warns(BoundarySolution, match="no better than chance"):
        fitted = TemperatureScaling().fit(wrong)
    np.testing.assert_allclose(fitted.apply(data.logits), 0.25, atol=1e-3)


def test_a_row_that_outweighs_all_others_is_named() -> None:
    data = draw(500, 4)
    logits, labels = data.logits.copy(), data.labels.copy()
    logits[7], labels[7] = [1e8, 0, 0, 0], 2
    with pytest.warns(
        BoundarySolution, match=r"row 7 outweighs all others combined \(check it: .* 1e\+08 below"
    ):
        TemperatureScaling().fit(CalibrationSet(logits, labels))


@pytest.mark.parametrize("pulls", [[10, 4, 4], [5, 4], [3]])
def test_no_row_is_named_if_all_are_wrong(pulls: list[float]) -> None:
    wrong = CalibrationSet([[pull, 0.0] for pull in pulls], [1] * len(pulls))
    with pytest.warns(BoundarySolution, match="no better than chance"):
        TemperatureScaling().fit(wrong)


def test_flat_logits_give_one() -> None:
    with pytest.warns(FlatLogits, match="T stays 1"):
        fitted = TemperatureScaling().fit(CalibrationSet(np.full((50, 3), 2.0), [0, 1] * 25))
    assert fitted.temperature == 1


def test_huge_masked_logits_do_not_move_the_bounds() -> None:
    data = draw(2000, 5, temperature=2.0)
    padded = np.concatenate([data.logits, np.full((2000, 3), -1e9, dtype=np.float32)], axis=1)
    expected = TemperatureScaling().fit(data).temperature
    fitted = TemperatureScaling().fit(CalibrationSet(padded, data.labels))
    assert fitted.temperature == pytest.approx(expected, rel=1e-5)


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(2, 60),
    k=st.integers(2, 6),
    scale=st.floats(-6, 6),
    seed=st.integers(0, 2**31),
)
def test_any_set_gives_its_optimum(n: int, k: int, scale: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, k)) * 10**scale
    data = CalibrationSet(logits, rng.integers(k, size=n))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BoundarySolution)
        fitted = TemperatureScaling().fit(data)
    below, there, above = (mean_nll(data, factor / fitted.temperature) for factor in (0.9, 1, 1.1))
    if fitted.fit_info["at_bound"]:
        assert below <= there + 1e-9 <= above + 2e-9 or below >= there - 1e-9 >= above - 2e-9
    else:
        assert there <= min(below, above) + 1e-9


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("inf"), float("nan")])
def test_map_refuses_impossible_temperatures(temperature: float) -> None:
    with pytest.raises(ParameterError, match="must lie between"):
        TemperatureMap(k=2, temperature=temperature)


def test_an_objective_that_falls_to_the_end_of_its_grid_is_flagged() -> None:
    """Fewer than one in three rows are correct but none is far off: the MSE prefers a larger T."""
    logits = np.tile([2.0, 1.9, -5.0], (400, 1))
    labels = np.repeat([0, 1, 2], [120, 250, 30])
    assert not TemperatureScaling().fit(CalibrationSet(logits, labels)).fit_info["at_bound"]
    with pytest.warns(BoundarySolution, match="mse objective is still decreasing"):
        fitted = TemperatureScaling(objective="mse").fit(CalibrationSet(logits, labels))
    assert fitted.fit_info["at_bound"]


@pytest.mark.parametrize("mask", [-1e6, -1e9, float(np.finfo(np.float32).min)])
def test_finite_masks_are_as_good_as_minus_infinity(mask: float) -> None:
    data = draw(2000, 4)
    kept = np.random.default_rng(3).random(data.logits.shape) < 0.5
    kept[np.arange(data.n), data.labels] = True
    expected, found = (
        TemperatureScaling().fit(
            CalibrationSet(np.where(kept, data.logits, np.float32(value)), data.labels)
        )
        for value in (-np.inf, mask)
    )
    assert found.temperature == pytest.approx(expected.temperature, rel=1e-4)
    assert not found.fit_info["warnings"]


@pytest.mark.parametrize(("dtype", "factor"), [("f4", 1e19), ("f4", 1e-36), ("f8", 1e300)])
def test_scales_beyond_the_type_are_refused(dtype: str, factor: float) -> None:
    data = draw(300, 4, dtype=np.float64)
    with pytest.raises(FitError, match="rescale them"):
        TemperatureScaling().fit(CalibrationSet((data.logits * factor).astype(dtype), data.labels))
