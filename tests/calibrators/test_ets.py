"""ETS compared with scipy's solvers, the optimality conditions and limit cases."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.samples import draw, sample
from scipy.optimize import minimize
from scipy.special import log_softmax, logsumexp

from calibrators import CalibrationMap, CalibrationSet, DataError, ParameterError
from calibrators.methods._simplex import minimise_on_simplex
from calibrators.methods.ets import EnsembleTemperature, EtsMap
from calibrators.methods.temperature import TemperatureScaling
from calibrators.metrics import brier, nll


def noisy(n: int, k: int, share: float, seed: int = 0, temperature: float = 2.0) -> CalibrationSet:
    """Return logits and labels from softmax(z / temperature), a share of them random."""
    data = draw(n, k, temperature=temperature, seed=seed, dtype=np.float64)
    rng = np.random.default_rng(seed + 1)
    labels = np.where(rng.random(n) < share, rng.integers(k, size=n), data.labels)
    return CalibrationSet(data.logits, labels)


def fit(data: CalibrationSet, **parameters: str) -> EtsMap:
    fitted = EnsembleTemperature(**parameters).fit(data)
    assert isinstance(fitted, EtsMap)
    return fitted


def weights_of(fitted: EtsMap) -> np.ndarray:
    return np.array([fitted.scaled, fitted.unscaled, fitted.uniform])


def parts(data: CalibrationSet, temperature: float) -> np.ndarray:
    """Return the log probabilities of the three parts, (3, n, k), by scipy."""
    z = data.logits.astype(np.float64)
    flat = np.where(np.isfinite(z), 0.0, -np.inf)
    return np.stack([log_softmax(one, axis=1) for one in (z / temperature, z, flat)])


def objective(
    name: str, logs: np.ndarray, labels: np.ndarray, weights: np.ndarray
) -> tuple[float, np.ndarray]:
    """Return the NLL or Brier score of a mixture and its gradient, from all probabilities."""
    at_label = logs[:, np.arange(len(labels)), labels]
    if name == "nll":
        with np.errstate(divide="ignore"):
            mixed = logsumexp(at_label, axis=0, b=np.maximum(weights, 0)[:, np.newaxis])
        return -float(mixed.mean()), -np.exp(at_label - mixed).mean(axis=1)
    p = np.tensordot(weights, np.exp(logs), axes=1)
    p[np.arange(len(labels)), labels] -= 1
    gradient = 2 * (np.exp(logs) * p).sum(axis=2).mean(axis=1)
    return float((p * p).sum(axis=1).mean()), gradient


SETS = {
    "a fifth by chance": noisy(3000, 10, 0.2),
    "only a temperature off": noisy(3000, 4, 0.0, seed=3),
    "calibrated": noisy(3000, 6, 0.0, seed=4, temperature=1.0),
    "binary": noisy(2000, 2, 0.1, seed=5),
    "very sharp": noisy(2000, 5, 0.05, seed=6, temperature=40.0),
    "very flat": noisy(2000, 5, 0.05, seed=7, temperature=0.01),
    "real": sample("cal"),
}


@pytest.mark.parametrize("name", ["nll", "brier"])
@pytest.mark.parametrize("data", SETS.values(), ids=SETS)
def test_reaches_the_optimum(name: str, data: CalibrationSet) -> None:
    fitted = fit(data, objective=name)
    logs = parts(data, fitted.temperature)
    found = minimize(
        lambda w: objective(name, logs, data.labels, w),
        np.array([0.6, 0.2, 0.2]),
        jac=True,
        method="SLSQP",
        bounds=[(0, 1)] * 3,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": lambda w: np.ones(3)},
        options={"ftol": 1e-14, "maxiter": 500},
    )
    value, gradient = objective(name, logs, data.labels, weights_of(fitted))
    tolerance = 1e-10 if data.logits.dtype == np.float64 else 1e-7
    assert fitted.fit_info["value"] == pytest.approx(value, abs=tolerance)
    assert value <= found.fun + tolerance
    level = weights_of(fitted) @ gradient
    assert (gradient >= level - tolerance).all()
    np.testing.assert_allclose(gradient[weights_of(fitted) > 0], level, atol=100 * tolerance)


def test_no_point_of_a_fine_grid_is_better() -> None:
    data = SETS["a fifth by chance"]
    fitted = fit(data)
    logs = parts(data, fitted.temperature)
    steps = np.linspace(0, 1, 21)
    grid = np.array([(a, b, 1 - a - b) for a in steps for b in steps if a + b <= 1 + 1e-12])
    values = [objective("nll", logs, data.labels, w)[0] for w in np.maximum(grid, 0)]
    assert fitted.fit_info["value"] <= min(values)
    nearest = grid[int(np.argmin(values))]
    np.testing.assert_allclose(weights_of(fitted), nearest, atol=0.1)


@pytest.mark.parametrize("data", SETS.values(), ids=SETS)
def test_never_worse_than_temperature_scaling(data: CalibrationSet) -> None:
    before = TemperatureScaling().fit(data).apply(data.logits)
    for name, score in (("nll", nll), ("brier", brier)):
        after = fit(data, objective=name).apply(data.logits)
        assert score(after, data.labels) <= score(before, data.labels) + 1e-9


def test_finds_the_share_of_chance() -> None:
    """The truth, 0.7 softmax(z) + 0.3 uniform, is in the family for any T."""
    data = noisy(60_000, 10, 0.3, seed=11, temperature=1.0)
    z = data.logits
    truth = EtsMap(k=10, temperature=2.0, scaled=0.0, unscaled=0.7, uniform=0.3).apply(z)
    fitted = fit(data)
    np.testing.assert_allclose(weights_of(fitted), [0, 0.7, 0.3], atol=0.03)
    assert nll(fitted.apply(z), data.labels) <= nll(truth, data.labels)
    assert (
        nll(TemperatureScaling().fit(data).apply(z), data.labels) > nll(truth, data.labels) + 0.02
    )


def test_an_unused_weight_is_exactly_zero() -> None:
    fitted = fit(SETS["only a temperature off"])
    assert 0.0 in weights_of(fitted)


def test_masked_classes_have_no_share_of_the_uniform_part() -> None:
    fitted = EtsMap(k=4, temperature=2.0, scaled=0.5, unscaled=0.2, uniform=0.3)
    p = fitted.apply([[0.0, 0.0, -np.inf, 0.0], [1.0, -np.inf, -np.inf, -np.inf]])
    np.testing.assert_allclose(p, [[1 / 3, 1 / 3, 0, 1 / 3], [1, 0, 0, 0]], atol=1e-15)
    assert p[0, 2] == 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_top_keeps_the_largest_probability_to_the_bit(dtype: type) -> None:
    """This covers ties, near ties and rows in which all but one probability vanish."""
    rng = np.random.default_rng(0)
    base = rng.normal(size=(4000, 30)) * 10.0 ** rng.integers(-8, 5, (4000, 1))
    logits = base.astype(dtype)
    logits[::3, 1] = logits[::3].max(axis=1)
    logits[1::3, 0] = np.nextafter(logits[1::3].max(axis=1), dtype(np.inf), dtype=dtype)
    for weights in ((0.7, 0.2, 0.1), (1 / 3, 1 / 3, 1 / 3), (1e-9, 1e-9, 1 - 2e-9)):
        scaled, unscaled, uniform = weights
        fitted = EtsMap(k=30, temperature=1.7, scaled=scaled, unscaled=unscaled, uniform=uniform)
        p = fitted.apply(logits)
        assert (p[np.arange(len(p)), logits.argmax(axis=1)] == p.max(axis=1)).all()


def test_calibrated_logits_keep_what_probabilities_lose() -> None:
    fitted: CalibrationMap = EtsMap(k=2, temperature=1.0, scaled=0.5, unscaled=0.5, uniform=0.0)
    logits = np.array([[0.0, -2000.0]])
    assert fitted.apply(logits).tolist() == [[1.0, 0.0]]
    np.testing.assert_allclose(fitted.transform(logits), logits)


def test_weights_are_checked() -> None:
    nan = float("nan")
    for weights in ((0.5, 0.4, 0.2), (1.1, -0.1, 0.0), (nan, 0.5, 0.5), (0.5, 0.5, nan)):
        scaled, unscaled, uniform = weights
        with pytest.raises(ParameterError, match="at least 0 and sum to 1"):
            EtsMap(k=3, temperature=1.0, scaled=scaled, unscaled=unscaled, uniform=uniform)


def test_the_uniform_part_alone_refuses_rows_without_a_softmax() -> None:
    fitted = EtsMap(k=3, temperature=1.0, scaled=0.0, unscaled=0.0, uniform=1.0)
    np.testing.assert_allclose(fitted.apply([[5.0, 1.0, -np.inf]]), [[0.5, 0.5, 0.0]])
    for value, rule in ((np.nan, "NaN"), (np.inf, r"\+inf"), (-np.inf, "at least one finite")):
        row = np.full((1, 3), -np.inf)
        row[0, 1] = value
        for call in (fitted.apply, fitted.transform):
            with pytest.raises(DataError, match=rule):
                call(row)


@pytest.mark.parametrize("seed", range(40))
def test_the_solver_ends_at_the_minimum(seed: int) -> None:
    """Mixtures have two to six random parts, some of them zero for some rows."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(2, 7))
    rows = rng.dirichlet(np.full(size, 0.2), size=200) ** rng.choice([1, 4])
    rows[rng.random(rows.shape) < 0.2] = 0
    rows = rows[rows.max(axis=1) > 0]

    def derivatives(w: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        mixed = rows @ w
        if mixed.min() <= 0:
            return np.inf, np.zeros(size), np.zeros((size, size))
        share = rows / mixed[:, np.newaxis]
        return -float(np.log(mixed).mean()), -share.mean(axis=0), share.T @ share / len(rows)

    found = minimise_on_simplex(derivatives, size)
    assert found.weights.min() >= 0
    assert found.weights.sum() == pytest.approx(1, abs=1e-12)
    assert found.gap <= 1e-11
    # the mean share of every part is at most 1, and 1 where it has a weight (Karush, Kuhn, Tucker)
    share = (rows / (rows @ found.weights)[:, np.newaxis]).mean(axis=0)
    assert share.max() <= 1 + 1e-10
    np.testing.assert_allclose(share[found.weights > 1e-6], 1, atol=1e-5)
    for other in rng.dirichlet(np.ones(size), size=200):
        assert derivatives(other)[0] >= found.value - 1e-11
