"""Vector scaling, matrix scaling and Dirichlet calibration: their optima and theorems."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.samples import distorted, draw, sample
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import gammaln, log_softmax, softmax
from sklearn.linear_model import LogisticRegression

from calibrators import CalibrationSet, CalibrationWarning, archive
from calibrators.base import CalibrationMap
from calibrators.errors import BoundarySolution, FellBack, NotConverged, ParameterError
from calibrators.export import onnx
from calibrators.methods._linear import LinearMap
from calibrators.methods.dirichlet import Dirichlet, DirichletMap
from calibrators.methods.matrix import MatrixMap, MatrixScaling
from calibrators.methods.temperature import TemperatureMap, TemperatureScaling
from calibrators.methods.vector import VectorMap, VectorScaling
from calibrators.metrics import nll

Array = NDArray[np.float64]
RECIPES = (VectorScaling, MatrixScaling, Dirichlet)
every_method = pytest.mark.parametrize("recipe", RECIPES)


def features(recipe: type, data: CalibrationSet) -> Array:
    """Return the features of each method as its docstring defines them."""
    z = data.logits / TemperatureScaling().fit(data).temperature
    return log_softmax(z, axis=1) if recipe is Dirichlet else z - z.mean(axis=1, keepdims=True)


def objective(recipe: Any, x: Array, labels: NDArray[np.int64], W: Array, b: Array) -> float:
    """Return the mean NLL plus penalty, implemented independently."""
    n = len(x)
    log_p = log_softmax(x @ W.T + b, axis=1)
    own = np.diag(W)
    penalty = recipe.diagonal * np.sum((own - 1) ** 2) + recipe.intercept * np.sum(b**2)
    if not isinstance(recipe, VectorScaling):
        penalty += recipe.off_diagonal * (np.sum(W**2) - np.sum(own**2))
    return float(-log_p[np.arange(n), labels].mean() + penalty / (2 * n))


def square(fitted: LinearMap) -> Array:
    return np.diag(fitted.weights) if fitted.weights.ndim == 1 else fitted.weights


def fit_by_scipy(recipe: Any, x: Array, labels: NDArray[np.int64]) -> tuple[float, Array]:
    """Return the smallest objective and its probabilities, by L-BFGS on W and b."""
    n, k = x.shape
    happened = np.eye(k)[labels]
    vector = isinstance(recipe, VectorScaling)

    def unpack(theta: Array) -> tuple[Array, Array]:
        return (np.diag(theta[:k]) if vector else theta[:-k].reshape(k, k)), theta[-k:]

    def value_and_gradient(theta: Array) -> tuple[float, Array]:
        W, b = unpack(theta)
        residual = (softmax(x @ W.T + b, axis=1) - happened) / n
        by_W, by_b = residual.T @ x, residual.sum(axis=0)
        precision = np.full((k, k), 0.0 if vector else recipe.off_diagonal)
        np.fill_diagonal(precision, recipe.diagonal)
        by_W += precision * (W - np.eye(k)) / n
        by_b += recipe.intercept * b / n
        by_W = np.diag(by_W) if vector else by_W.ravel()
        return objective(recipe, x, labels, W, b), np.concatenate([by_W, by_b])

    start = np.concatenate([np.ones(k) if vector else np.eye(k).ravel(), np.zeros(k)])
    options = {"maxiter": 20_000, "maxfun": 50_000, "ftol": 1e-15, "gtol": 1e-9, "maxcor": 50}
    found = minimize(value_and_gradient, start, jac=True, method="L-BFGS-B", options=options)
    W, b = unpack(found.x)
    return float(found.fun), softmax(x @ W.T + b, axis=1)


@every_method
@pytest.mark.parametrize("k", [2, 3, 10])
def test_is_the_optimum_that_scipy_finds(recipe: type, k: int) -> None:
    data = distorted(1500, k)
    x = features(recipe, data)
    made = recipe()
    fitted = made.fit(data)
    value = objective(made, x, data.labels, square(fitted), fitted.bias)
    best, p = fit_by_scipy(made, x, data.labels)
    assert fitted.fit_info["gradient_norm"] <= made.tolerance
    assert fitted.fit_info["value"] == pytest.approx(value, abs=1e-9)
    assert value == pytest.approx(best, abs=1e-8)
    np.testing.assert_allclose(fitted.apply(data.logits), p, atol=1e-4)


@every_method
def test_a_smaller_tolerance_gets_closer_to_the_optimum(recipe: type) -> None:
    data = distorted(1500, 5)
    made = recipe(tolerance=1e-10)
    best, p = fit_by_scipy(made, features(recipe, data), data.labels)
    fitted = made.fit(CalibrationSet(data.logits.astype(np.float64), data.labels))
    assert fitted.fit_info["gradient_norm"] <= 1e-10
    assert fitted.fit_info["value"] == pytest.approx(best, abs=1e-11)
    np.testing.assert_allclose(fitted.apply(data.logits), p, atol=2e-6)


@pytest.mark.parametrize("recipe", [MatrixScaling, Dirichlet])
def test_without_a_penalty_it_is_multinomial_logistic_regression(recipe: type) -> None:
    data = distorted(4000, 3)
    made = recipe(off_diagonal=1e-6, diagonal=1e-6, intercept=1e-6)
    x = features(recipe, data)
    rival = LogisticRegression(C=np.inf, tol=1e-10, max_iter=10_000).fit(x, data.labels)
    p = made.fit(data).apply(data.logits)
    np.testing.assert_allclose(p, rival.predict_proba(x), atol=1e-4)


@every_method
def test_a_calibrated_model_is_changed_little(recipe: type) -> None:
    data = draw(20_000, 4, temperature=1.0)
    fitted = recipe().fit(data)
    np.testing.assert_allclose(square(fitted), np.eye(4), atol=0.12)
    np.testing.assert_allclose(fitted.bias, 0, atol=0.12)
    true = softmax(data.logits.astype(np.float64), axis=1)
    assert np.abs(fitted.apply(data.logits) - true).mean() < 0.005


def centred(parameters: Array) -> Array:
    """Subtract the part shared by all classes, which does not affect the probabilities."""
    return parameters - parameters.mean(axis=0)


W_TRUE = np.array([[1.2, 0.2, -0.1], [0.0, 0.7, 0.3], [-0.3, 0.1, 1.0]])
B_TRUE = np.array([0.5, -0.2, -0.3])


def test_matrix_scaling_finds_the_true_weights_and_bias() -> None:
    rng = np.random.default_rng(5)
    z = rng.normal(size=(60_000, 3)) * 2
    x = z - z.mean(axis=1, keepdims=True)
    labels = (x @ W_TRUE.T + B_TRUE + rng.gumbel(size=x.shape)).argmax(axis=1)
    made = MatrixScaling(off_diagonal=1e-3, diagonal=1e-3, intercept=1e-3)
    fitted = made.fit(CalibrationSet(z, labels))
    found = fitted.weights / fitted.base_temperature
    # centred features add up to 0: W is known up to a number added to each of its rows
    np.testing.assert_allclose(centred(centred(found).T), centred(centred(W_TRUE).T), atol=0.05)
    np.testing.assert_allclose(centred(fitted.bias), centred(B_TRUE), atol=0.05)
    true = softmax(x @ W_TRUE.T + B_TRUE, axis=1)
    assert np.abs(fitted.apply(z) - true).max() < 0.02


def test_dirichlet_finds_the_weights_of_dirichlet_distributions() -> None:
    """Kull et al.: Dirichlet(alpha_j) for class j gives W = alpha - 1, b = -log B(alpha)."""
    rng = np.random.default_rng(5)
    alpha = np.array([[3.0, 1.5, 1.0], [1.0, 2.5, 2.0], [1.5, 1.0, 3.0]])
    labels = rng.integers(3, size=60_000)
    q = rng.gamma(alpha[labels])
    q /= q.sum(axis=1, keepdims=True)
    bias = -gammaln(alpha).sum(axis=1)
    made = Dirichlet(off_diagonal=1e-3, diagonal=1e-3, intercept=1e-3)
    fitted = made.fit(CalibrationSet.from_probabilities(q, labels))
    # the rows of alpha have equal sums, so the temperature's own normalisation cancels
    found = fitted.weights / fitted.base_temperature
    np.testing.assert_allclose(centred(found), centred(alpha - 1), atol=0.05)
    np.testing.assert_allclose(centred(fitted.bias), centred(bias), atol=0.1)
    true = softmax(np.log(q) @ (alpha - 1).T + bias, axis=1)
    assert np.abs(fitted.apply(q) - true).mean() < 0.003


def test_vector_scaling_finds_the_true_weights_and_bias() -> None:
    rng = np.random.default_rng(6)
    z = rng.normal(size=(60_000, 4)) * 2
    w, b = np.array([1.5, 1.0, 0.8, 0.6]), np.array([0.5, 0.0, -0.2, -0.3])
    x = z - z.mean(axis=1, keepdims=True)
    labels = (w * x + b + rng.gumbel(size=x.shape)).argmax(axis=1)
    fitted = VectorScaling().fit(CalibrationSet(z, labels))
    np.testing.assert_allclose(fitted.weights / fitted.base_temperature, w, atol=0.05)
    np.testing.assert_allclose(centred(fitted.bias), centred(b), atol=0.05)


@every_method
def test_a_tolerance_that_requires_no_work_is_refused(recipe: type) -> None:
    with pytest.raises(ParameterError, match=r"tolerance must be at most 0\.01, got 10"):
        recipe(tolerance=10)


@every_method
def test_an_unreachable_tolerance_causes_a_warning(recipe: type) -> None:
    with pytest.warns(NotConverged, match="above the tolerance of 1e-30"):
        fitted = recipe(tolerance=1e-30).fit(distorted(300, 3))
    assert fitted.fit_info["warnings"][0]["code"] == "not_converged"
    assert fitted.fit_info["gradient_norm"] < 1e-10


def test_a_huge_penalty_on_the_off_diagonals_gives_vector_scaling() -> None:
    data = distorted(2000, 5)
    fitted = MatrixScaling(off_diagonal=1e9).fit(data)
    off = fitted.weights - np.diag(np.diag(fitted.weights))
    assert np.abs(off).max() < 1e-4
    expected = VectorScaling().fit(data).apply(data.logits)
    np.testing.assert_allclose(fitted.apply(data.logits), expected, atol=1e-3)


@every_method
def test_huge_penalties_give_temperature_scaling(recipe: type) -> None:
    data = distorted(2000, 5)
    names = [name for name in vars(recipe()) if name != "tolerance"]
    fitted = recipe(**dict.fromkeys(names, 1e9)).fit(data)
    expected = TemperatureScaling().fit(data).apply(data.logits)
    np.testing.assert_allclose(fitted.apply(data.logits), expected, atol=1e-5)


@every_method
@pytest.mark.parametrize("seed", range(4))
def test_the_likelihood_of_the_fit_set_never_falls(recipe: type, seed: int) -> None:
    data = distorted(60 + 200 * seed, 3 + 4 * seed, seed=seed)
    before = nll(TemperatureScaling().fit(data).apply(data.logits), data.labels)
    assert nll(recipe().fit(data).apply(data.logits), data.labels) <= before


@every_method
def test_helps_where_classes_need_different_corrections(recipe: type) -> None:
    """Measured on held-out rows, here and on the bundled sample."""
    fit, test = distorted(6000, 6, spread=0.5).split(0.5)
    for cal, held in ((fit, test), (sample("cal"), sample("test"))):
        before = nll(TemperatureScaling().fit(cal).apply(held.logits), held.labels)
        assert nll(recipe().fit(cal).apply(held.logits), held.labels) < before


@every_method
def test_if_every_label_is_right_it_is_temperature_scaling(recipe: type) -> None:
    logits = np.random.default_rng(0).normal(size=(200, 4))
    with pytest.warns(BoundarySolution), pytest.warns(FellBack):
        fitted = recipe().fit(CalibrationSet(logits, logits.argmax(axis=1)))
    assert isinstance(fitted, TemperatureMap)


@every_method
def test_separable_classes_and_classes_that_never_occur(recipe: type) -> None:
    """Class 0 is always correct and class 3 never occurs: without a penalty, both would diverge."""
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(400, 4))
    labels = rng.integers(1, 3, size=400)
    logits[:100, 0] += 20
    labels[:100] = 0
    fitted = recipe().fit(CalibrationSet(logits, labels))
    assert isinstance(fitted, LinearMap)
    assert np.isfinite(fitted.weights).all()
    assert np.abs(fitted.weights).max() < 10
    p = fitted.apply(logits)
    assert np.isfinite(p).all()
    assert p[:, 3].mean() < 0.02


@every_method
def test_a_number_added_to_a_row_changes_nothing(recipe: type) -> None:
    data = distorted(500, 4)
    shifts = np.random.default_rng(2).normal(size=(500, 1)) * 30
    shifted = CalibrationSet(data.logits + shifts, data.labels)
    expected = recipe().fit(data).apply(data.logits)
    np.testing.assert_allclose(recipe().fit(shifted).apply(shifted.logits), expected, atol=1e-6)
    np.testing.assert_allclose(recipe().fit(data).apply(shifted.logits), expected, atol=1e-9)


@every_method
def test_a_column_that_is_always_masked_changes_nothing(recipe: type) -> None:
    data = distorted(500, 4)
    more = np.insert(data.logits, 2, -np.inf, axis=1)
    labels = np.where(data.labels < 2, data.labels, data.labels + 1)
    fitted, wider = recipe().fit(data), recipe().fit(CalibrationSet(more, labels))
    kept = np.array([0, 1, 3, 4])
    weights = square(wider)[np.ix_(kept, kept)]
    np.testing.assert_allclose(weights, square(fitted), atol=1e-4)
    np.testing.assert_allclose(wider.bias[kept], fitted.bias, atol=1e-4)
    np.testing.assert_allclose(square(wider)[2], np.eye(5)[2], atol=1e-5)


@every_method
def test_huge_logits_stay_finite(recipe: type) -> None:
    fitted = recipe().fit(distorted(500, 4))
    rows = np.array([[1e308, -1e308, 0, 1], [-1e300, -1e300, -1e300, 1e300], [0, 1e-300, 0, 0]])
    p = fitted.apply(rows)
    assert np.isfinite(p).all()
    np.testing.assert_allclose(p.sum(axis=1), 1)


@every_method
@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_exports_to_onnx(recipe: type, kind: str) -> None:
    data = distorted(800, 7)
    made: Callable[..., CalibrationSet] = CalibrationSet
    values = data.logits
    if kind == "probabilities":
        made, values = CalibrationSet.from_probabilities, softmax(data.logits, axis=1)
    fitted = recipe().fit(made(values, data.labels))
    assert fitted.kind == kind
    assert onnx.export(fitted)


@pytest.mark.parametrize("kind", [VectorMap, MatrixMap, DirichletMap])
def test_maps_refuse_arrays_that_do_not_fit(kind: type[LinearMap]) -> None:
    good = {"k": 3, "base_temperature": 1.0, "weights": np.eye(3), "bias": np.zeros(3)}
    assert isinstance(archive.load(archive.dump(kind(**good))), kind)
    for wrong in ({"weights": np.eye(2)}, {"bias": np.zeros(2)}, {"base_temperature": 0.0}):
        with pytest.raises(ParameterError):
            kind(**{**good, **wrong})


@every_method
def test_tiny_sets_stay_near_temperature_scaling(recipe: type) -> None:
    """Three rows carry little information, so the penalty keeps the weights at their start."""
    data = draw(3, 3, seed=8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        fitted: CalibrationMap = recipe().fit(data)
    if isinstance(fitted, LinearMap):
        assert np.abs(square(fitted) - np.eye(3)).max() < 5
