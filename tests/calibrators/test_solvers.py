"""The one-dimensional solvers on functions with known solutions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from helpers.samples import draw
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrators import FitError
from calibrators.methods.temperature import bracketed_newton, minimise_on_grid
from calibrators.numerics.softmax import partition_sums


@settings(max_examples=200, deadline=None)
@given(st.floats(-8, 8), st.floats(-9, 9), st.floats(0.1, 4))
def test_newton_finds_the_root_of_any_start(
    log_root: float, log_start: float, power: float
) -> None:
    root = math.exp(log_root)

    def derivatives(x: float) -> tuple[float, float]:
        return (x / root) ** power - 1, power / root * (x / root) ** (power - 1)

    found = bracketed_newton(derivatives, math.exp(-9), math.exp(9), math.exp(log_start))
    assert not found.at_bound
    assert found.value == pytest.approx(root, rel=1e-6)


def test_newton_does_not_cycle_where_the_slope_is_flat() -> None:
    def derivatives(x: float) -> tuple[float, float]:
        u = 40 * (math.log(x) - 1.2345)
        return math.tanh(u), 40 / x / math.cosh(min(abs(u), 300)) ** 2

    found = bracketed_newton(derivatives, 1e-4, 1e4, 1e-3)
    assert found.value == pytest.approx(math.exp(1.2345), rel=1e-6)
    assert found.evaluations < 60


@pytest.mark.parametrize(("sign", "bound"), [(1.0, 1e-3), (-1.0, 1e3)])
def test_newton_reports_the_bound(sign: float, bound: float) -> None:
    found = bracketed_newton(lambda x: (sign, 0.0), 1e-3, 1e3, 1.0)
    assert (found.value, found.at_bound) == (bound, True)


def test_newton_reports_a_function_that_is_not_convex() -> None:
    signs = iter([1.0, -1.0] * 100)
    with pytest.raises(FitError, match="convex"):
        bracketed_newton(lambda x: (next(signs), math.nan), 1e-3, 1e3, 1.0, accuracy=0.0)


@settings(max_examples=50, deadline=None)
@given(st.floats(-2.7, 2.7))
def test_grid_finds_the_lowest_of_two_valleys(log_place: float) -> None:
    def function(x: float) -> float:
        u = math.log(x)
        return min((u - log_place) ** 2, 0.3 + (u + log_place) ** 2)

    assert minimise_on_grid(function, 1.0)[0] == pytest.approx(math.exp(log_place), rel=1e-4)


@pytest.mark.parametrize("k", [3, 60])
def test_partition_sums_are_those_of_the_definition(k: int) -> None:
    data = draw(700, k, dtype=np.float64)
    logits = data.logits.copy()
    logits[5, (data.labels[5] + 1) % k] = -np.inf
    gaps = data.row_max[:, None] - logits
    gaps = np.where(np.isinf(gaps), 1e30, gaps)

    def value(beta: float) -> float:
        return float(np.log(np.exp(-beta * gaps).sum(axis=1)).sum())

    total, first, second, third = partition_sums(logits, data.row_max, 0.7)
    h = 1e-4
    assert total == pytest.approx(value(0.7), rel=1e-12)
    assert first == pytest.approx((value(0.7 + h) - value(0.7 - h)) / (2 * h), rel=1e-6)
    assert second == pytest.approx(
        (value(0.7 + h) - 2 * value(0.7) + value(0.7 - h)) / h**2, rel=1e-3
    )
    bends = [partition_sums(logits, data.row_max, 0.7 + side).second for side in (h, -h)]
    assert third == pytest.approx((bends[0] - bends[1]) / (2 * h), rel=1e-6)


@pytest.mark.parametrize("power", [0.3, 0.5, 2.0, 3.0])
def test_a_third_derivative_saves_steps(power: float) -> None:
    def derivatives(x: float) -> tuple[float, float, float]:
        bend = power * x ** (power - 1)
        return x**power - 1, bend, bend * (power - 1) / x

    steps = {2: 0, 3: 0}
    for log_start in np.linspace(-2, 2, 9):
        for known in steps:
            found = bracketed_newton(
                lambda x, known=known: derivatives(x)[:known], 1e-3, 1e3, math.exp(log_start)
            )
            assert found.value == pytest.approx(1, abs=1e-7)
            steps[known] += found.evaluations
    assert steps[3] < 0.8 * steps[2]
