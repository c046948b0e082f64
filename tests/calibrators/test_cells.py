"""Cells: rows merged by the effect of a temperature on them."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from helpers.samples import draw

from calibrators import CalibrationSet
from calibrators.numerics.cells import MAX_CELLS, NODES, cells
from calibrators.numerics.cells import observe_cells as observe_table
from calibrators.numerics.confidence_curves import Samples, correctness, observe
from calibrators.numerics.curve_tables import tabulate
from calibrators.numerics.objectives import ObjectiveName, make_objective
from calibrators.numerics.softmax import margins

MERGED = sorted(set(get_args(ObjectiveName)) - {"brier"})


def standard(data: CalibrationSet) -> np.ndarray:
    margin = margins(data.logits).astype(np.float64)
    return (margin - margin.mean()) / margin.std()


def observe_cells(
    data: CalibrationSet, scale: float, signal: np.ndarray, **options: bool
) -> tuple[Samples, np.ndarray]:
    return observe_table(data, scale, tabulate(data, scale, NODES), signal, **options)


def test_cells_hold_all_rows_and_keep_their_means() -> None:
    data = draw(20_000, 30)
    signal = standard(data)
    samples, means = observe_cells(data, 0.7, signal)
    assert MAX_CELLS / 2 < len(means) <= MAX_CELLS
    assert samples.n == samples.weight.sum() == data.n
    rows = observe(data, 0.7)
    for name in ("correct", "label_gap"):
        assert samples.mean(getattr(samples, name)) == pytest.approx(
            float(getattr(rows, name).mean())
        )
    assert samples.mean(means) == pytest.approx(0, abs=1e-9)
    assert set(samples.correct) == {0.0, 1.0}


def test_rows_of_a_cell_agree() -> None:
    rng = np.random.default_rng(0)
    signal, confidence = rng.normal(size=30_000), rng.uniform(0.1, 0.999, size=30_000)
    correct = (rng.random(30_000) < confidence).astype(np.float64)
    cell = cells(signal, np.log(confidence / (1 - confidence)), correct)
    assert set(cell) == set(range(cell.max() + 1))
    for values, most in ((signal, 0.5), (confidence, 0.12), (correct, 0.0)):
        lowest, highest = np.full(cell.max() + 1, np.inf), np.full(cell.max() + 1, -np.inf)
        np.minimum.at(lowest, cell, values)
        np.maximum.at(highest, cell, values)
        assert np.quantile(highest - lowest, 0.99) <= most


@pytest.mark.parametrize("name", MERGED)
@pytest.mark.parametrize("k", [3, 60])
def test_the_objective_on_cells_is_that_on_rows(name: str, k: int) -> None:
    data = draw(20_000, k, temperature=2.0)
    signal = standard(data)
    samples, means = observe_cells(data, 0.6, signal, with_mean_gaps=True)
    rows = observe(data, 0.6, with_mean_gaps=True)

    def temperature(s: np.ndarray) -> np.ndarray:
        return 1 + 0.5 * np.tanh(s)

    value, gradient = make_objective(name, samples)(1 / temperature(means))
    expected, parts = make_objective(name, rows)(1 / temperature(signal))
    assert value == pytest.approx(expected, rel=0.01)
    for direction in (np.ones_like, np.tanh):
        assert float(gradient @ direction(means)) == pytest.approx(
            float(parts @ direction(signal)), rel=0.04, abs=1e-3
        )


def test_the_order_of_the_rows_does_not_matter() -> None:
    data = draw(6000, 5)
    order = np.random.default_rng(1).permutation(data.n)
    first, means = observe_cells(data, 0.7, standard(data))
    second, others = observe_cells(data.take(order), 0.7, standard(data)[order])
    np.testing.assert_allclose(means, others, atol=1e-12)
    np.testing.assert_array_equal(first.weight, second.weight)
    beta = np.linspace(0.3, 3, len(means))
    for one, other in zip(first.curve.confidence(beta), second.curve.confidence(beta), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_a_constant_signal_is_merged_by_confidence_alone() -> None:
    data = draw(5000, 4)
    samples, means = observe_cells(data, 1.0, np.zeros(data.n))
    assert (means == 0).all()
    assert samples.weight.sum() == data.n
    assert samples.mean(samples.correct) == pytest.approx(correctness(data).mean())
