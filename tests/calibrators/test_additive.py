"""Additive: its posterior compared with independent solvers, its band with known truths."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.memory_peak import peak_of
from helpers.samples import draw, two_regimes
from scipy.optimize import minimize, minimize_scalar
from scipy.special import expit, logsumexp

from calibrators import CalibrationSet, DataError, ParameterError, archive
from calibrators.errors import FellBack
from calibrators.methods import _additive_posterior as posterior
from calibrators.methods._rest_temperature import fit_rest_temperature
from calibrators.methods.additive import Additive, AdditiveMap
from calibrators.methods.auto import Auto
from calibrators.methods.temperature import TemperatureScaling
from calibrators.metrics import ece, noise_floor

sys.path.insert(0, str(Path(__file__).parents[2] / "studies"))
from band_coverage import coverage


def rows(n: int, seed: int = 0) -> posterior.DesignRows:
    """Return rows whose truth is a nonlinear function of their offset."""
    rng = np.random.default_rng(seed)
    x, u = rng.normal(1, 2, n), rng.normal(size=n)
    hits = rng.random(n) < expit(0.6 * x + 0.5 * np.sin(x) + 0.3 * u)
    return posterior.DesignRows.gathered(np.stack([x, u]), x, hits.astype(float))


def test_the_mode_is_that_of_another_solver() -> None:
    data = rows(400)
    design = data.design
    precision = 3.0 * np.eye(design.shape[1])
    mode, factor, density = posterior._mode(data, design, precision, np.zeros(design.shape[1]))

    def negative(heights: np.ndarray) -> float:
        log_odds = data.offset + design @ heights
        likelihood = data.hits @ log_odds - np.logaddexp(0, log_odds).sum()
        return float(0.5 * heights @ precision @ heights - likelihood)

    found = minimize(negative, np.zeros(len(mode)), method="BFGS", options={"gtol": 1e-6})
    np.testing.assert_allclose(mode, found.x, atol=2e-4)
    assert -density == pytest.approx(found.fun, abs=1e-6)
    share = expit(data.offset + design @ found.x)
    hessian = (design.T * (share * (1 - share))) @ design + precision
    np.testing.assert_allclose(factor @ factor.T, hessian, rtol=1e-2, atol=1e-2)


def test_the_evidence_is_the_integral_of_the_joint_density() -> None:
    """Laplace's approximation is compared with a sum over a grid for a model with one height."""
    rng = np.random.default_rng(1)
    offset = rng.normal(size=60)
    hits = (rng.random(60) < expit(offset + 0.5)).astype(float)
    design, precision = np.ones((60, 1)), np.array([[2.0]])
    data = posterior.DesignRows(np.zeros((1, 1)), design, offset, hits, np.ones(60))
    _, factor, density = posterior._mode(data, design, precision, np.zeros(1))
    laplace = density + 0.5 * np.log(2.0) - float(np.log(factor[0, 0]))
    grid = np.linspace(-4, 4, 4001)
    log_odds = offset[:, None] + grid
    joint = hits @ log_odds - np.logaddexp(0, log_odds).sum(axis=0) - grid**2
    integral = logsumexp(joint) + np.log(grid[1] - grid[0]) + 0.5 * np.log(2.0 / (2 * np.pi))
    assert laplace == pytest.approx(integral, abs=0.02)


def test_terms_without_information_get_little_weight() -> None:
    def fitted(effect: float) -> posterior.Posterior:
        rng = np.random.default_rng(0)
        x, u = rng.normal(1, 2, 3000), rng.normal(size=3000)
        hits = rng.random(3000) < expit(0.6 * x + effect * u)
        given = posterior.DesignRows.gathered(np.stack([x, u]), x, hits.astype(float))
        return posterior.fit_posterior(given, lambda done, total: None)

    with_effect, without = fitted(0.5), fitted(0.0)
    assert with_effect.shares[1] > 0.99
    assert np.ptp(without.heights[1]) < 0.2 * np.ptp(with_effect.heights[1])


def test_cells_give_what_all_rows_give(monkeypatch: pytest.MonkeyPatch) -> None:
    data = two_regimes(12_000, 0)[0]
    cells = Additive().fit(data)
    monkeypatch.setattr(posterior, "CELLS", (12_000, 1, 1))
    all_rows = Additive().fit(data)
    assert isinstance(cells, AdditiveMap)
    difference = cells.apply(data.logits).max(axis=1) - all_rows.apply(data.logits).max(axis=1)
    assert np.abs(difference).mean() < 4e-3  # a jump in the margin; 3e-4 on smooth truths
    assert np.abs(difference).max() < 0.03


def test_corrects_errors_that_one_temperature_cannot() -> None:
    fit, test = two_regimes(6000, 0)[0], two_regimes(20_000, 1)[0]
    p = Additive().fit(fit).apply(test.logits)
    floor = noise_floor(p.max(axis=1), draws=50).mean
    assert ece(p, test.labels) < 3 * floor
    scaled = TemperatureScaling().fit(fit).apply(test.logits)
    assert ece(scaled, test.labels) > 2 * ece(p, test.labels)


def test_the_order_of_rows_does_not_matter() -> None:
    data = draw(3000, 4)
    order = np.random.default_rng(0).permutation(data.n)
    one, other = Additive().fit(data), Additive().fit(data.take(order))
    np.testing.assert_allclose(one.apply(data.logits), other.apply(data.logits), atol=1e-5)


def test_the_other_classes_have_their_own_temperature() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(8000, 6)) * 3
    top = logits.argmax(axis=1)
    others = logits / 2.5 + rng.gumbel(size=logits.shape)
    others[np.arange(8000), top] = -np.inf
    labels = np.where(rng.random(8000) < 0.5, top, others.argmax(axis=1))
    fitted = Additive().fit(CalibrationSet(logits, labels))
    assert isinstance(fitted, AdditiveMap)
    assert fitted.rest_temperature == pytest.approx(2.5, rel=0.06)
    data = CalibrationSet(logits, labels)

    def penalised(log_beta: float) -> float:
        wrong = top != labels
        rest = logits[wrong] * np.exp(log_beta)
        rest[np.arange(wrong.sum()), top[wrong]] = -np.inf
        chosen = rest[np.arange(wrong.sum()), labels[wrong]]
        return float((logsumexp(rest, axis=1) - chosen).sum() + 2 * log_beta**2)

    best = minimize_scalar(penalised, bounds=(-3, 3), method="bounded").x
    found = fit_rest_temperature(data, 1.0, top != labels)
    assert found == pytest.approx(np.exp(-best), rel=1e-3)


def test_the_band_covers_the_truth() -> None:
    """Coverage is averaged over truths and bins; docs/studies/auto.md has 200 truths."""
    found = coverage(1000, truths=12, level=0.9)
    assert 0.8 < np.nanmean(found) < 0.97
    assert np.nanmean(coverage(1000, truths=12, level=0.5)) == pytest.approx(0.5, abs=0.15)


def test_the_band_holds_the_confidence_and_widens_with_its_level() -> None:
    data = draw(500, 5, temperature=3.0)
    fitted = Additive().fit(data)
    rows = np.vstack([data.logits, [[0, 0, 0, 0, 0], [1, -np.inf, -np.inf, -np.inf, -np.inf]]])
    confidence = fitted.apply(rows).max(axis=1)
    low, high = fitted.interval(rows, 0.9)
    assert ((low <= confidence + 1e-6) & (confidence <= high + 1e-6)).all()
    narrow = fitted.interval(rows, 0.5)
    assert (narrow[0] >= low).all()
    assert (narrow[1] <= high).all()
    assert (low[-1], high[-1]) == (1, 1)
    many = Additive().fit(draw(20_000, 5, temperature=3.0)).interval(data.logits, 0.9)
    assert (many[1] - many[0]).mean() < 0.5 * (high - low).mean()
    again = archive.load(archive.dump(fitted)).interval(rows, 0.9)
    np.testing.assert_array_equal(again, (low, high))


def test_only_some_maps_have_a_band() -> None:
    data = draw(500, 3)
    with pytest.raises(
        DataError, match="'temperature' map has no credible interval: fit 'additive'"
    ):
        TemperatureScaling().fit(data).interval(data.logits)
    fitted = Additive().fit(data)
    for level in (0, 1, -0.5, float("nan"), 0.99999999999999994, 1 - 1e-12):
        with pytest.raises(ParameterError, match="level must be above 0 and at most"):
            fitted.interval(data.logits, level)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("nodes", np.zeros((3, 4)), "nodes must be increasing"),
        ("heights", np.full((3, 4), np.nan), r"heights must lie in \[-1e6, 1e6\]"),
        ("covariance", np.zeros((3, 3)), r"shape \(3, p\) and covariance shape \(3p, 3p\)"),
        ("rest_temperature", 0.0, "temperature"),
    ],
)
def test_impossible_maps_are_refused(name: str, value: object, message: str) -> None:
    given = {
        "k": 4,
        "base_temperature": 1.0,
        "rest_temperature": 1.0,
        "nodes": np.tile(np.arange(4.0), (3, 1)),
        "heights": np.zeros((3, 4)),
        "covariance": np.zeros((12, 12)),
    }
    AdditiveMap(**given)
    with pytest.raises(ParameterError, match=message):
        AdditiveMap(**{**given, name: value})


def wide_map(p: int) -> AdditiveMap:
    """Return a map with p nodes per term, whose heights are correlated."""
    half = np.random.default_rng(0).normal(size=(3 * p, 3 * p)) / p
    nodes = np.tile(np.linspace(-10, 10, p), (3, 1))
    return AdditiveMap(
        k=3,
        base_temperature=1.0,
        rest_temperature=1.0,
        nodes=nodes,
        heights=np.zeros((3, p)),
        covariance=half @ half.T,
    )


def test_the_variance_is_that_of_the_dense_basis() -> None:
    fitted = wide_map(9)
    terms = np.random.default_rng(1).normal(size=(3, 200)) * 6
    dense = posterior.basis(terms, fitted.nodes)
    expected = np.vecdot(dense @ fitted.covariance, dense)
    found = posterior.variances(terms, fitted.nodes, fitted.covariance)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_the_band_of_many_rows_takes_little_memory() -> None:
    fitted, logits = wide_map(64), np.random.default_rng(0).normal(size=(150_000, 3))
    assert peak_of(lambda: fitted.interval(logits)) < 60e6


def test_maps_of_many_nodes_are_refused() -> None:
    with pytest.raises(ParameterError, match="at most 64 nodes per term, got 65"):
        wide_map(65)


@pytest.mark.parametrize("k", [2, 4])
def test_rows_of_one_confidence_fall_back(k: int) -> None:
    rng = np.random.default_rng(0)
    top = rng.integers(k, size=300)
    logits = 2.0 * np.eye(k)[top]
    labels = np.where(rng.random(300) < 0.7, top, (top + 1) % k)
    for recipe in (Additive(), Auto()):
        with pytest.warns(FellBack, match="every row has the same confidence"):
            fitted = recipe.fit(CalibrationSet(logits, labels))
        assert fitted.apply(logits).max(axis=1) == pytest.approx(0.7, abs=0.05)


def test_one_extreme_row_changes_little() -> None:
    data = draw(3000, 4, temperature=2.0)
    logits = data.logits.astype(np.float64)
    logits[0] = [1e6, 0, 0, 0]
    labels = np.array(data.labels)
    labels[0] = 0
    one = Additive().fit(data).apply(data.logits)
    other = Additive().fit(CalibrationSet(logits, labels)).apply(data.logits)
    assert np.abs(one - other).max() < 0.02
