"""Grouping calibration compared with a short implementation of its formula."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import approx_fprime
from scipy.special import log_softmax, logsumexp, softmax

from calibrators import CalibrationSet, ExportError, ParameterError
from calibrators.export import onnx
from calibrators.methods.grouping import Grouping, GroupingMap, _Likelihoods
from calibrators.methods.temperature import TemperatureScaling
from calibrators.numerics.lbfgs import minimise_together

Array = NDArray[Any]
PLANE = np.array([1.0, -1, 0, 0, 0.5, 2])


def sided(
    n: int, k: int = 4, *, seed: int = 0, dtype: type = np.float64
) -> tuple[CalibrationSet, Array]:
    """Return rows with temperature 4 on one side of a plane of the features and 1 on the other."""
    rng = np.random.default_rng(seed)
    h = rng.normal(size=(n, 6)).astype(dtype)
    z = rng.normal(size=(n, k)) * 2.5
    temperature = np.where(h @ PLANE > 0, 4.0, 1.0)
    labels = (z / temperature[:, np.newaxis] + rng.gumbel(size=z.shape)).argmax(axis=1)
    return CalibrationSet(z, labels, features=h), temperature


DATA, _ = sided(2000)
OTHER, TRUTH = sided(3000, seed=4)


def features_in(data: CalibrationSet) -> Array:
    assert data.features is not None
    return np.asarray(data.features.values)


@pytest.fixture(scope="module")
def fitted() -> GroupingMap:
    found = Grouping(partitions=4).fit(DATA)
    assert isinstance(found, GroupingMap)
    return found


def test_the_map_averages_the_temperatures_of_groups(fitted: GroupingMap) -> None:
    h, expected = features_in(OTHER), np.zeros(OTHER.logits.shape)
    for partition in range(4):
        weights = fitted.weights[2 * partition : 2 * partition + 2]
        group = (h @ weights.T).argmax(axis=1)
        temperature = fitted.temperatures[partition][group]
        expected += softmax(OTHER.logits / temperature[:, np.newaxis], axis=1) / 4
    p = fitted.apply(OTHER.logits, features=h)
    np.testing.assert_allclose(p, expected, atol=1e-12)
    assert (p.argsort(axis=1) == OTHER.logits.argsort(axis=1)).all()


def test_each_group_has_the_temperature_of_its_rows(fitted: GroupingMap) -> None:
    groups = fitted.groups(features_in(DATA))
    for partition in range(4):
        for group in range(2):
            own = DATA.take(np.flatnonzero(groups[:, partition] == group))
            temperature = TemperatureScaling().fit(own).temperature
            assert fitted.temperatures[partition, group] == pytest.approx(temperature, rel=1e-6)


def test_it_finds_the_plane(fitted: GroupingMap) -> None:
    assert np.sort(fitted.temperatures, axis=1).mean(axis=0) == pytest.approx([1, 4], rel=0.2)
    truth = softmax(OTHER.logits / TRUTH[:, np.newaxis], axis=1)
    scaled = TemperatureScaling().fit(DATA)
    off = [np.abs(one.apply_set(OTHER) - truth).mean() for one in (fitted, scaled)]
    assert off[0] < 0.4 * off[1]


@pytest.mark.parametrize("k", [4, 40])
def test_the_objective_is_that_of_the_paper(k: int) -> None:
    """Value and gradient of the mixture's NLL; k = 40 uses tables of the curves."""
    data, _ = sided(300, k)
    recipe, h = Grouping(partitions=3, groups=2), features_in(data)
    likelihoods = _Likelihoods.of(data, 1.0)
    rng = np.random.default_rng(1)
    weights, log_betas = rng.normal(size=(6, 6)), rng.normal(size=(3, 2)) * 0.5

    def nll(weights: Array, log_betas: Array) -> Array:
        found = np.empty(3)
        for u in range(3):
            prior = log_softmax(h @ weights[2 * u : 2 * u + 2].T, axis=1)
            parts = [
                prior[:, g]
                + log_softmax(np.exp(log_betas[u, g]) * data.logits, axis=1)[
                    np.arange(data.n), data.labels
                ]
                for g in range(2)
            ]
            found[u] = -logsumexp(parts, axis=0).mean()
        return found

    value, of_weights, of_betas = recipe._mixtures(h, weights, log_betas, likelihoods)
    np.testing.assert_allclose(value, nll(weights, log_betas), rtol=1e-4)
    slopes = approx_fprime(weights.ravel(), lambda w: nll(w.reshape(6, 6), log_betas).sum())
    np.testing.assert_allclose(of_weights.ravel(), slopes, atol=2e-4)
    slopes = approx_fprime(log_betas.ravel(), lambda b: nll(weights, b.reshape(3, 2)).sum())
    np.testing.assert_allclose(of_betas.ravel(), slopes, atol=2e-3)


def test_more_decay_means_smaller_weights() -> None:
    sizes = [
        np.abs(Grouping(partitions=2, decay=decay).fit(DATA).weights).max() for decay in (0.01, 1.0)
    ]
    assert sizes[1] < 0.7 * sizes[0]


def test_the_seed_draws_the_starts() -> None:
    first, again, other = (Grouping(partitions=2, steps=2, seed=one).fit(DATA) for one in (0, 0, 1))
    np.testing.assert_array_equal(first.weights, again.weights)
    assert not np.allclose(first.weights, other.weights)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_narrow_features_give_nearly_the_same_map(fitted: GroupingMap, dtype: type) -> None:
    narrow, _ = sided(2000, dtype=dtype)
    assert features_in(narrow).dtype == dtype
    found = Grouping(partitions=4).fit(narrow)
    p = found.apply(OTHER.logits, features=features_in(OTHER).astype(dtype))
    expected = fitted.apply(OTHER.logits, features=features_in(OTHER))
    assert np.abs(p - expected).mean() < 0.02


def test_l_bfgs_finds_the_minima_of_several_functions() -> None:
    """Rosenbrock's function and a bowl are minimised together."""

    def functions(x: Array) -> tuple[Array, Array]:
        a, b = x[0]
        values = np.array([(1 - a) ** 2 + 100 * (b - a * a) ** 2, ((x[1] - 3) ** 2).sum()])
        valley = [-2 * (1 - a) - 400 * a * (b - a * a), 200 * (b - a * a)]
        return values, np.array([valley, 2 * (x[1] - 3)])

    start = np.array([[-1.2, 1.0], [0.0, 0.0]])
    found = minimise_together(functions, start, 200, 1e-8, 0.0, lambda step: None)
    np.testing.assert_allclose(found, [[1, 1], [3, 3]], atol=1e-5)


def test_a_graph_takes_no_features(fitted: GroupingMap) -> None:
    with pytest.raises(ExportError, match="needs the features of each row"):
        onnx.export(fitted)


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperatures": np.ones(4)},
        {"temperatures": np.zeros((2, 2))},
        {"weights": np.ones((3, 6))},
        {"weights": np.ones(4)},
    ],
)
def test_no_map_of_impossible_parameters(wrong: dict[str, Any]) -> None:
    right: dict[str, Any] = {"k": 3, "weights": np.ones((4, 6)), "temperatures": np.ones((2, 2))}
    assert GroupingMap(**right).feature_count == 6
    with pytest.raises(ParameterError):
        GroupingMap(**{**right, **wrong})
