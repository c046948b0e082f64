"""The solver of vector, matrix and Dirichlet calibration: derivatives and convergence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.samples import distorted
from numpy.typing import NDArray
from scipy.optimize import approx_fprime

from calibrators.errors import FitCancelled
from calibrators.fitting.context import FitContext
from calibrators.methods._newton import minimise
from calibrators.methods._regression import Diagonal, Full, Regression, column_sums

Array = NDArray[np.float64]


def problem(kind: type[Regression], dtype: Any = np.float64, k: int = 4) -> Regression:
    data = distorted(300, k)
    x = (data.logits / 2).astype(dtype)
    rng = np.random.default_rng(2)
    masked = rng.random(x.shape) < 0.1
    masked[np.arange(data.n), data.labels] = False
    x[masked] = 0
    if kind is Full:
        x = np.hstack([x, np.ones((data.n, 1), dtype)])
    precision = rng.random((k + 1 if kind is Full else 2, k)) + 0.5
    return kind(x, data.labels, masked, precision)


@pytest.mark.parametrize("kind", [Diagonal, Full])
def test_gradient_and_curvature_are_those_of_finite_differences(kind: type[Regression]) -> None:
    function = problem(kind)
    rng = np.random.default_rng(3)
    point, direction = rng.normal(size=(2, *function.shape)) * 0.3

    def value(flat: Array) -> float:
        return function.evaluate(flat.reshape(function.shape))[0]

    numeric = approx_fprime(point.ravel(), value, 1e-6).reshape(function.shape)
    np.testing.assert_allclose(function.evaluate(point)[1], numeric, atol=1e-6)
    h = 1e-5
    ahead = function.evaluate(point + h * direction)[1]
    behind = function.evaluate(point - h * direction)[1]
    function.evaluate(point)
    np.testing.assert_allclose(function.curve(direction), (ahead - behind) / (2 * h), atol=1e-8)


@pytest.mark.parametrize("kind", [Diagonal, Full])
def test_preconditioners_are_positive(kind: type[Regression]) -> None:
    function = problem(kind)
    function.evaluate(np.zeros(function.shape))
    apply = function.preconditioner()
    for direction in np.random.default_rng(4).normal(size=(20, *function.shape)):
        assert (direction * apply(direction)).sum() > 0


@pytest.mark.parametrize("kind", [Diagonal, Full])
def test_continues_in_float64_when_float32_is_exhausted(kind: type[Regression]) -> None:
    function, context = problem(kind, np.float32), FitContext()
    found = minimise(function, 1e-11, context)
    assert function.x.dtype == np.float64
    assert found.gradient <= 1e-11
    assert not context.warned


@pytest.mark.parametrize("kind", [Diagonal, Full])
@pytest.mark.parametrize("strength", [1e-3, 1.0, 1e6])
def test_ends_at_the_tolerance_from_any_start(kind: type[Regression], strength: float) -> None:
    """Steps that go too far are shortened, so the value never rises."""
    function, values = problem(kind), []
    function.penalty *= strength
    context = FitContext(progress=lambda step, total, loss: values.append(loss))
    found = minimise(function, 1e-9, context)
    assert found.gradient <= 1e-9
    assert np.abs(function.evaluate(found.point)[1]).max() == found.gradient
    assert values == sorted(values, reverse=True)


def test_can_be_cancelled_between_two_products() -> None:
    calls = iter(range(10**6))
    asked = []

    def cancel() -> bool:
        asked.append(next(calls))
        return False

    minimise(problem(Full), 1e-9, FitContext(cancel=cancel))
    for share in (0.0, 0.3, 0.6, 0.99):
        calls = iter(range(10**6))
        limit = int(share * len(asked))
        context = FitContext(cancel=lambda at=limit, count=calls: next(count) >= at)
        with pytest.raises(FitCancelled):
            minimise(problem(Full), 1e-9, context)


@pytest.mark.parametrize("rows", [1, 127, 128, 10_000])
def test_column_sums_keep_what_float32_would_lose(rows: int) -> None:
    rng = np.random.default_rng(0)
    values, factors = rng.normal(size=(2, rows, 7)).astype(np.float32) + np.float32(100)
    exact = values.astype(np.float64)
    np.testing.assert_allclose(column_sums(values), exact.sum(axis=0), rtol=5e-7)
    np.testing.assert_allclose(
        column_sums(values, factors), (exact * factors).sum(axis=0), rtol=5e-7
    )
