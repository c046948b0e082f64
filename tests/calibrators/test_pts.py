"""PTS: the Jacobian, the least-squares solution compared with scipy and training, the inputs."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch
from helpers.memory_peak import peak_of
from helpers.samples import draw, sample, two_regimes
from scipy.optimize import check_grad, least_squares, minimize

from calibrators import CalibrationSet, ParameterError
from calibrators.export import onnx
from calibrators.fitting.context import FitContext
from calibrators.methods._pts_network import Network, PtsDescent, PtsProblem
from calibrators.methods._smart_features import sorted_gaps
from calibrators.methods.pts import ParametrizedTemperature, ParametrizedTemperatureMap
from calibrators.methods.temperature import TemperatureScaling
from calibrators.metrics import ece
from calibrators.numerics.confidence_curves import observe
from calibrators.numerics.objectives import ObjectiveName, make_objective
from calibrators.numerics.softmax import softmax


def problem(data: CalibrationSet, pull: float) -> PtsProblem:
    inputs = sorted_gaps(data.logits, min(10, data.k) - 1, 1.0)
    standard = (inputs - inputs.mean(axis=0)) / inputs.std(axis=0)
    return PtsProblem(observe(data), standard, pull)


def flat(network: Network) -> np.ndarray:
    return np.concatenate([one.ravel() for one in network.parts])


@pytest.mark.parametrize("k", [5, 200])
def test_jacobian_is_the_derivative(k: int) -> None:
    data = draw(40, k, dtype=np.float64)
    one = problem(data, 0.0)
    rng = np.random.default_rng(2)
    start = Network.start(one.inputs.shape[1], 5, seed=1)
    network = start.moved(0.3 * rng.normal(size=flat(start).size))
    run, _, slope = one._evaluate(network)
    jacobian = network.jacobian(run) * slope
    step = 1e-5 if k == 5 else 1e-3  # the tables of many classes are float32
    for place in range(len(jacobian)):
        move = np.zeros(len(jacobian))
        move[place] = step
        up, down = (one._evaluate(network.moved(sign * move))[1] for sign in (1, -1))
        np.testing.assert_allclose(jacobian[place], (up - down) / (2 * step), atol=2e-3)


def test_reaches_the_objective_of_scipy() -> None:
    data = draw(800, 6, dtype=np.float64)
    one = problem(data, 1 / 800)
    start = Network.start(5, 5, seed=0)
    ours, mse, _ = one.solve(start, 1e-9, FitContext())
    moved = flat(ours) - flat(start)

    def residuals(move: np.ndarray) -> np.ndarray:
        miss = one._evaluate(start.moved(move))[1]
        return np.concatenate([miss, np.sqrt(one.pull * data.n) * move])

    theirs = least_squares(residuals, np.zeros(len(moved)), method="lm", max_nfev=20_000)
    reached = mse + one.pull * (moved**2).sum()
    assert reached <= 2 * theirs.cost / data.n * (1 + 2e-3)


def test_reaches_the_objective_of_training() -> None:
    """The reference is Adam by autograd on the squared error, as in the paper."""
    data = draw(1000, 12, dtype=np.float64)
    one = problem(data, 1 / data.n)
    start = Network.start(9, 5, seed=0)
    parts = [torch.tensor(part, requires_grad=True) for part in start.parts]
    logits = torch.tensor(data.logits)
    correct, inputs = torch.tensor(one.samples.correct), torch.tensor(one.inputs)
    begun = [part.detach().clone() for part in parts]
    optimiser = torch.optim.Adam(parts, lr=1e-2)
    for _ in range(1000):
        w1, b1, w2, b2, w3, b3 = parts
        hidden = torch.relu(torch.relu(inputs @ w1 + b1) @ w2 + b2)
        log_temperature = (hidden @ w3 + b3).clip(-3, 3)
        confidence = torch.softmax(logits / log_temperature.exp()[:, None], 1).amax(1)
        moved = sum(((a - b) ** 2).sum() for a, b in zip(parts, begun, strict=True))
        loss = ((confidence - correct) ** 2).mean() + one.pull * moved
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    found, mse, _ = one.solve(start, 1e-9, FitContext())
    assert mse + one.pull * ((flat(found) - flat(start)) ** 2).sum() <= 1.01 * float(loss.detach())


def test_never_worse_than_ts_on_its_own_objective() -> None:
    data = draw(1500, 7, seed=5)
    fitted = ParametrizedTemperature().fit(data)
    scaled = TemperatureScaling().fit(data).apply(data.logits)
    correct = data.logits.argmax(axis=1) == data.labels
    own = np.mean((fitted.apply(data.logits).max(axis=1) - correct) ** 2)
    assert fitted.fit_info["value"] == pytest.approx(own, rel=1e-4)
    assert own <= np.mean((scaled.max(axis=1) - correct) ** 2)


def descent(name: str, data: CalibrationSet) -> PtsDescent:
    inputs = sorted_gaps(data.logits, data.k - 1, 1.0)
    standard = (inputs - inputs.mean(axis=0)) / inputs.std(axis=0)
    objective = make_objective(name, observe(data, with_mean_gaps=True))
    return PtsDescent(objective, standard, 1 / data.n)


@pytest.mark.parametrize("name", ["nll", "brier", "charbonnier"])
def test_the_gradient_of_other_objectives_is_the_derivative(name: str) -> None:
    one = descent(name, draw(60, 5, dtype=np.float64))
    start = Network.start(4, 3, seed=1)
    at = 0.3 * np.random.default_rng(2).normal(size=flat(start).size)
    error = check_grad(
        lambda move: one._evaluate(start, move)[0], lambda move: one._evaluate(start, move)[1], at
    )
    assert error < 2e-4 * np.linalg.norm(one._evaluate(start, at)[1])


@pytest.mark.parametrize("name", ["nll", "label_smoothing", "brier", "charbonnier"])
def test_other_objectives_reach_the_values_of_scipy(name: str) -> None:
    one = descent(name, draw(800, 6, temperature=1.5, dtype=np.float64))
    start = Network.start(5, 5, seed=0)
    found, value, _ = one.solve(start, 1e-7, FitContext())
    moved = flat(found) - flat(start)
    theirs = minimize(
        lambda move: one._evaluate(start, move), np.zeros(moved.size), jac=True, method="BFGS"
    )
    begun = one._evaluate(start, np.zeros(moved.size))[0]
    reached = value + one.pull * moved @ moved
    assert reached <= theirs.fun + 0.05 * (begun - theirs.fun)
    assert reached < begun


@pytest.mark.parametrize("name", get_args(ObjectiveName))
def test_each_objective_is_lower_than_with_one_temperature(name: str) -> None:
    data, _ = two_regimes(1500, 0)
    fitted = ParametrizedTemperature(objective=name).fit(data)
    assert fitted.fit_info["objective"] == name

    def value(temperatures: np.ndarray | float) -> float:
        objective = make_objective(name, observe(data, with_mean_gaps=True))
        return objective(np.broadcast_to(1 / temperatures, data.n))[0]

    own = value(fitted.temperatures(data.logits))
    assert own == pytest.approx(fitted.fit_info["value"], rel=1e-3)
    assert own < 0.99 * value(TemperatureScaling().fit(data).temperature)


def test_calibrates_real_logits_and_is_exported() -> None:
    fit, test = sample("cal"), sample("test")
    fitted = ParametrizedTemperature().fit(fit)
    assert ece(fitted.apply_set(test), test.labels) < 0.012
    assert ece(softmax(test.logits), test.labels) > 0.06
    assert onnx.export(fitted)


def test_takes_no_more_logits_than_there_are() -> None:
    fitted = ParametrizedTemperature(logits=50).fit(draw(300, 4))
    assert fitted.centre.shape == (3,)
    with pytest.raises(ParameterError, match=r"logits must be "):
        ParametrizedTemperature(logits=1)


def test_gaps_to_minus_infinity_count_as_the_largest_finite_one() -> None:
    rows = np.array([[1.0, 5.0, -np.inf, 2.0], [0.0, -np.inf, -np.inf, -np.inf]])
    assert sorted_gaps(rows, 3, 2.0).tolist() == [[1.5, 2.0, 2.0], [0.0, 0.0, 0.0]]


def test_more_parameters_than_can_be_solved_for_are_refused() -> None:
    with pytest.raises(ParameterError, match=r"at most 1,000 parameters, .* got 4,225"):
        ParametrizedTemperature(logits=150, hidden=24)
    assert ParametrizedTemperature(logits=30, hidden=16).hidden == 16


def test_a_map_counts_all_of_its_parameters() -> None:
    inputs, hidden = 15, 24
    with pytest.raises(ParameterError, match=r"at most 1,000 parameters, got 1,009"):
        ParametrizedTemperatureMap(
            k=16,
            base_temperature=1.0,
            centre=np.zeros(inputs),
            spread=np.ones(inputs),
            w1=np.zeros((inputs, hidden)),
            b1=np.zeros(hidden),
            w2=np.zeros((hidden, hidden)),
            b2=np.zeros(hidden),
            w3=np.zeros(hidden),
            b3=0.0,
        )


def test_the_scratch_of_wide_maps_is_bounded() -> None:
    hidden = 29
    fitted = ParametrizedTemperatureMap(
        k=2,
        base_temperature=1.0,
        centre=np.zeros(1),
        spread=np.ones(1),
        w1=np.ones((1, hidden)),
        b1=np.zeros(hidden),
        w2=np.eye(hidden),
        b2=np.zeros(hidden),
        w3=np.zeros(hidden),
        b3=0.0,
    )
    logits = np.random.default_rng(0).normal(size=(250_000, 2)).astype(np.float32)
    assert peak_of(lambda: fitted.apply(logits)) < 50e6
