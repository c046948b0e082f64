"""Rows that are equal up to rounding: rounded logits, permuted classes, other types."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrators import CalibrationMap, CalibrationSet, archive
from calibrators.export import onnx
from calibrators.methods._isotonic_fit import tally
from calibrators.methods._ties import log_odds_reach, share_reach, tie_starts
from calibrators.registry import make_recipe

TOP_LABEL = ["bbq", "histogram", "isotonic", "spline"]
METHODS = [*TOP_LABEL, "histogram_one_vs_rest", "isotonic_one_vs_rest"]
TURN = np.array([2, 0, 3, 1])
BACK = np.argsort(TURN)

every = pytest.mark.parametrize("name", METHODS)
sizes = pytest.mark.parametrize("n", [400, 3000])
steps = pytest.mark.parametrize("step", [1.0, 0.5])


@cache
def rounded_set(n: int, step: float) -> CalibrationSet:
    rng = np.random.default_rng(0)
    z = (rng.normal(size=(n, 4)) * 2).astype(np.float32)
    labels = (z / 1.5 + rng.gumbel(size=z.shape)).argmax(axis=1)
    return CalibrationSet(np.round(z / np.float32(step)) * np.float32(step), labels)


@cache
def without_tied_tops(n: int, step: float) -> CalibrationSet:
    """Remove rows with two largest logits, whose prediction depends on the order of the classes."""
    data = rounded_set(n, step)
    top = np.sort(data.logits, axis=1)
    return data.take(np.flatnonzero(top[:, -1] > top[:, -2]))


def fit(name: str, data: CalibrationSet) -> CalibrationMap:
    return make_recipe(name, {}).fit(data)


@pytest.mark.parametrize("name", TOP_LABEL)
@steps
@sizes
def test_equal_rows_get_equal_probabilities(name: str, n: int, step: float) -> None:
    fitted, z = fit(name, rounded_set(n, step)), without_tied_tops(n, step).logits
    np.testing.assert_allclose(fitted.apply(z[:, TURN])[:, BACK], fitted.apply(z), atol=1e-6)
    pair = fitted.apply(np.array([[5, -1, 2, -2], [-2, -1, 5, 2]], np.float32)).max(axis=1)
    assert pair[0] == pytest.approx(pair[1], abs=1e-6)


@every
@steps
@sizes
def test_the_order_of_the_classes_does_not_matter(name: str, n: int, step: float) -> None:
    data = without_tied_tops(n, step)
    turned = CalibrationSet(data.logits[:, TURN], BACK[data.labels])
    given = fit(name, turned).apply(turned.logits)[:, BACK]
    np.testing.assert_allclose(given, fit(name, data).apply(data.logits), atol=1e-5)


@every
@steps
@sizes
def test_the_type_of_the_logits_does_not_matter(name: str, n: int, step: float) -> None:
    data = rounded_set(n, step)
    wide = CalibrationSet(data.logits.astype(np.float64), data.labels)
    fitted = fit(name, data)
    expected = fitted.apply(data.logits)
    np.testing.assert_allclose(fitted.apply(wide.logits), expected, atol=1e-5)
    np.testing.assert_allclose(fit(name, wide).apply(wide.logits), expected, atol=1e-5)


@every
@steps
@sizes
def test_onnx_and_the_archive_agree_on_the_rows_of_the_fit(name: str, n: int, step: float) -> None:
    data = rounded_set(n, step)
    fitted = fit(name, data)
    expected = fitted.apply(data.logits)
    session = onnxruntime.InferenceSession(onnx.export(fitted))
    assert np.abs(session.run(None, {"logits": data.logits})[0] - expected).max() <= 1e-6
    np.testing.assert_array_equal(archive.load(archive.dump(fitted)).apply(data.logits), expected)


@pytest.mark.parametrize("k", [3, 5])
@pytest.mark.parametrize("name", ["histogram", "histogram_one_vs_rest"])
def test_a_confidence_on_an_edge_of_equal_width(name: str, k: int) -> None:
    """Rows without information lie on an edge of 15 bins of equal width, at 1/3 or 1/5."""
    rng = np.random.default_rng(0)
    z = np.round(rng.normal(size=(600, k)) * 2)
    labels = (z / 1.5 + rng.gumbel(size=z.shape)).argmax(axis=1)
    z[:100] = 0
    fitted = make_recipe(name, {"binning": "width"}).fit(CalibrationSet(z, labels))
    near = np.zeros((200, k)) + rng.normal(size=(200, k)) * 1e-7
    near[:, 0] = 1e-6
    flat = fitted.apply(np.zeros((1, k)))
    np.testing.assert_allclose(fitted.apply(near), np.tile(flat, (200, 1)), atol=1e-5)


@settings(deadline=None)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=60), st.integers(0, 7))
def test_groups_hold_what_their_first_score_reaches(values: list[int], width: int) -> None:
    ordered = np.sort(np.array(values, dtype=np.float64))
    starts = [0]
    for place, value in enumerate(ordered):
        if value > ordered[starts[-1]] + width:
            starts.append(place)
    assert tie_starts(ordered, ordered + width).tolist() == starts


def test_scores_that_lie_close_all_along_stay_apart() -> None:
    odds = np.linspace(-5.0, 5.0, 1_000_001)
    found = tie_starts(odds, log_odds_reach(odds))
    assert found.size > 400_000
    shares = np.sort(np.random.default_rng(0).random(500_000))
    lowest, highest, _, rows = tally(shares, np.zeros(500_000))
    assert lowest.size > 100_000
    assert rows.sum() == 500_000
    assert (lowest[1:] > share_reach(highest[:-1])).all()
    assert (highest >= lowest).all()
    assert tie_starts(np.zeros(0), np.zeros(0)).size == 0
