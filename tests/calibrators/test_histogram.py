"""Histogram binning compared with scipy; its theorem and edge cases."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
from helpers.samples import confidence_and_hits, draw, draw_apart, sample
from scipy.special import logit, softmax
from scipy.stats import binned_statistic

from calibrators import CalibrationSet, ParameterError
from calibrators.export import onnx
from calibrators.methods._bins import bins_of, even_edges
from calibrators.methods._ties import share_reach
from calibrators.methods.histogram import (
    Histogram,
    HistogramMap,
    HistogramOneVsRest,
    HistogramOneVsRestMap,
)


@pytest.mark.parametrize("binning", ["mass", "width"])
def test_bins_agree_with_scipy(binning: str) -> None:
    data = draw(4000, 3, dtype=np.float64)
    fitted = Histogram(binning=binning, smoothing=0.0).fit(data)
    confidence, hits = confidence_and_hits(data, fitted.base_temperature)
    edges = (
        np.quantile(confidence, np.arange(16) / 15)
        if binning == "mass"
        else np.append(np.arange(15) / 15, 1.0 + 1e-12)
    )
    expected, _, place = binned_statistic(confidence, hits, bins=edges)
    given = fitted.accuracy[np.searchsorted(fitted.edges, logit(confidence))]
    # a row on a quantile may fall into either bin
    assert (np.abs(given - expected[place - 1]) > 0.01).mean() < 0.005
    if binning == "width":
        np.testing.assert_allclose(given, expected[place - 1], atol=1e-12)


@pytest.mark.parametrize("binning", ["mass", "width"])
@pytest.mark.parametrize("k", [2, 4])
def test_no_calibration_error_is_left_in_its_own_bins(binning: str, k: int) -> None:
    data = draw(3000, k, dtype=np.float64)
    fitted = Histogram(binning=binning, smoothing=0.0).fit(data)
    confidence, hits = confidence_and_hits(data, fitted.base_temperature)
    place = np.searchsorted(fitted.edges, logit(confidence))
    new = fitted.apply(data.logits).max(axis=1)
    second = np.sort(fitted.apply(data.logits), axis=1)[:, -2]
    for one in np.unique(place):
        rows = place == one
        if (new[rows] > 1.01 * second[rows]).all():
            assert np.ptp(new[rows]) < 1e-12
            assert new[rows].mean() == pytest.approx(hits[rows].mean(), abs=1e-12)
    sizes = np.bincount(place)
    assert sizes.sum() == data.n
    if binning == "mass":
        assert set(sizes) == {200}


def test_one_vs_rest_is_each_class_by_itself() -> None:
    data, fresh = draw(3000, 4, dtype=np.float64), draw(500, 4, seed=1, dtype=np.float64)
    fitted = HistogramOneVsRest(binning="width", smoothing=0.0).fit(data)
    p = softmax(data.logits / fitted.base_temperature, axis=1)
    at = softmax(fresh.logits / fitted.base_temperature, axis=1)
    expected = np.empty_like(at)
    for j in range(4):
        share, _, _ = binned_statistic(p[:, j], data.labels == j, bins=15, range=(0, 1))
        expected[:, j] = share[np.clip((at[:, j] * 15).astype(int), 0, 14)]
    expected /= expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(fitted.apply(fresh.logits), expected, atol=1e-9)


def test_smoothing_acts_like_additional_rows() -> None:
    data = draw_apart(3000, 5)
    plain, smooth = (Histogram(smoothing=s).fit(data) for s in (0.0, 4.0))
    np.testing.assert_allclose(smooth.accuracy, (plain.accuracy * 200 + 2) / 204)
    plain, smooth = (HistogramOneVsRest(smoothing=s).fit(data) for s in (0.0, 4.0))
    np.testing.assert_allclose(smooth.frequency, (plain.frequency * 200 + 4 / 5) / 204)


def test_a_bin_without_mistakes_does_not_promise_that_there_are_none() -> None:
    z = np.linspace(-4, 4, 600)
    labels = (z > 0).astype(int)
    labels[250:350] = np.tile([0, 1], 50)
    data = CalibrationSet(np.stack([np.zeros(600), z], axis=1), labels)
    sure = np.array([[0.0, 4.0]])
    assert Histogram(smoothing=0.0).fit(data).apply(sure).tolist() == [[0.0, 1.0]]
    assert Histogram().fit(data).apply(sure)[0, 0] == pytest.approx(0.5 / 41)


def test_an_empty_bin_gives_its_middle() -> None:
    scores = np.array([0.05, 0.95, 0.96])
    found = bins_of(scores, np.array([0.0, 1.0, 0.0]), even_edges(10), "width", share_reach)
    expected = [0.0, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.5]
    np.testing.assert_allclose(found.shares(0.0, 0.0), expected)
    assert found.squared_error(found.shares(0.0, 0.0)) == pytest.approx(0.5 / 3)


@pytest.mark.parametrize("binning", ["mass", "width"])
def test_a_score_on_an_edge_belongs_below(binning: str) -> None:
    scores = np.array([0.5, 0.5, np.nextafter(0.5, 1), 0.5 + 1e-4])
    found = bins_of(scores, np.array([1.0, 0.0, 1.0, 0.0]), even_edges(2), binning, share_reach)
    assert found.rows.tolist() == [3, 1]
    assert 0.5 + 1e-6 < found.edges[0] < 0.5 + 9e-5


@pytest.mark.parametrize(
    ("scores", "rows"),
    [
        ([1.0] * 10, [10]),
        ([1.0] * 9 + [2.0], [9, 1]),
        ([0.0] + [1.0] * 9, [10]),
        ([1.0, 2.0, 3.0], [1, 1, 1]),
        (list(range(10)), [3, 4, 3]),
    ],
)
def test_equal_scores_stay_together(scores: list[float], rows: list[int]) -> None:
    found = bins_of(
        np.array(scores, float), np.ones(len(scores)), even_edges(3), "mass", share_reach
    )
    assert found.rows.tolist() == rows


def test_one_bin_is_the_accuracy_for_all() -> None:
    data = draw(1000, 3, dtype=np.float64)
    hits = (data.logits.argmax(axis=1) == data.labels).mean()
    new = Histogram(bins=1, smoothing=0.0).fit(data).apply(data.logits)
    top = np.sort(new, axis=1)
    free = top[:, -1] > 1.01 * top[:, -2]
    np.testing.assert_allclose(top[free, -1], hits, atol=1e-12)
    new = HistogramOneVsRest(bins=1, smoothing=0.0).fit(data).apply(data.logits)
    np.testing.assert_allclose(new, np.tile(np.bincount(data.labels) / 1000, (1000, 1)))


def test_a_class_that_was_never_possible_has_even_bins() -> None:
    data = draw(500, 3, dtype=np.float64)
    logits = np.concatenate([data.logits, np.full((500, 1), -np.inf)], axis=1)
    fitted = HistogramOneVsRest(bins=4).fit(CalibrationSet(logits, data.labels))
    assert fitted.edges[3].tolist() == [0.25, 0.5, 0.75]
    assert fitted.frequency[3].tolist() == [0.125, 0.375, 0.625, 0.875]


@pytest.mark.parametrize("recipe", [Histogram(), Histogram(bins=1), HistogramOneVsRest(bins=40)])
def test_onnx_agrees_on_the_real_sample(recipe: Histogram | HistogramOneVsRest) -> None:
    fitted = recipe.fit(sample("cal"))
    rows = sample("test").logits
    session = onnxruntime.InferenceSession(onnx.export(fitted))
    (given,) = session.run(None, {"logits": rows})
    off = np.abs(given - fitted.apply(rows)).max(axis=1)
    assert (off > 1e-6).sum() <= 1  # a row within rounding of an edge may fall on either side


def test_invalid_maps() -> None:
    good = HistogramMap(k=3, base_temperature=1.0, edges=np.zeros(1), accuracy=np.array([0.3, 0.6]))
    rule = r"edges must be one element shorter than accuracy, got shapes \(2,\) and \(2,\)"
    with pytest.raises(ParameterError, match=rule):
        replace(good, edges=np.zeros(2))
    with pytest.raises(ParameterError, match="be finite and non-decreasing, got nan at"):
        replace(good, edges=np.array([np.nan]))
    with pytest.raises(ParameterError, match=r"accuracy must lie in \[0, 1\], got 1.6 at \[1\]"):
        replace(good, accuracy=np.array([0.3, 1.6]))
    every = HistogramOneVsRestMap(
        k=2, base_temperature=1.0, edges=np.zeros((2, 1)), frequency=np.full((2, 2), 0.5)
    )
    with pytest.raises(ParameterError, match=r"each of 2 classes, got shape \(3, 2\)"):
        replace(every, frequency=np.full((3, 2), 0.5))
    with pytest.raises(ParameterError, match=r"one fewer column, got shapes \(2, 2\) and \(2, 2\)"):
        replace(every, edges=np.zeros((2, 2)))
    with pytest.raises(ParameterError, match="got shapes"):
        replace(every, edges=np.zeros((2, 0)), frequency=np.zeros((2, 0)))


def test_one_bin_has_no_edges_and_is_a_map() -> None:
    alone = HistogramMap(k=3, base_temperature=1.0, edges=np.zeros(0), accuracy=np.array([0.6]))
    assert alone.apply([[9.0, 0.0, 0.0]])[0, 0] == pytest.approx(0.6)
    every = HistogramOneVsRestMap(
        k=2, base_temperature=1.0, edges=np.zeros((2, 0)), frequency=np.array([[0.3], [0.6]])
    )
    np.testing.assert_allclose(every.apply([[9.0, 0.0]]), [[1 / 3, 2 / 3]])


def test_few_rows_of_many_classes_get_what_many_rows_get() -> None:
    """Few rows are looked up for all classes at once, not class by class."""
    data = draw(600, 100)
    for recipe in (HistogramOneVsRest(), HistogramOneVsRest(bins=100)):
        fitted = recipe.fit(data)
        together = fitted.apply(data.logits)
        for few in (1, 5):
            np.testing.assert_array_equal(fitted.apply(data.logits[:few]), together[:few])


def test_parameters_may_be_numbers_of_numpy() -> None:
    """A sweep over ``np.arange`` passes such numbers."""
    made = Histogram(bins=np.int64(7), smoothing=np.float32(0.5))  # type: ignore[arg-type]
    assert made == Histogram(bins=7, smoothing=0.5)
    assert (type(made.bins), type(made.smoothing)) == (int, float)
    with pytest.raises(ParameterError, match=r"bins must be an integer, got 7\.5"):
        Histogram(bins=np.float64(7.5))  # type: ignore[arg-type]
