"""ProCal compared with a short implementation of its formulas."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.samples import confidence_and_hits
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from scipy.special import softmax

from calibrators import CalibrationSet, ExportError, ParameterError, archive
from calibrators.export import onnx
from calibrators.methods._proximity import proximities, unit_rows
from calibrators.methods.procal import ProCal, ProCalMap
from calibrators.methods.temperature import TemperatureScaling

Array = NDArray[Any]


def unusual(n: int, *, seed: int = 0, dtype: type = np.float32) -> tuple[CalibrationSet, Array]:
    """Return rows whose temperature is four times higher where the features are unusual."""
    rng = np.random.default_rng(seed)
    is_unusual = rng.random(n) < 0.5
    h = 1 + 0.1 * rng.normal(size=(n, 8))
    h[is_unusual] = 5 * rng.normal(size=(int(is_unusual.sum()), 8))
    z = rng.normal(size=(n, 3)) * 2.5
    temperature = np.where(is_unusual, 4.0, 1.0)
    labels = (z / temperature[:, np.newaxis] + rng.gumbel(size=z.shape)).argmax(axis=1)
    return CalibrationSet(z, labels, features=h.astype(dtype)), temperature


DATA, _ = unusual(2500)
OTHER, TRUE_TEMPERATURE = unusual(4000, seed=5)


def features_in(data: CalibrationSet) -> Array:
    assert data.features is not None
    return np.asarray(data.features.values)


def plain_proximity(rows: Array, references: Array, neighbours: int, *, skip: int) -> Array:
    """Return exp(-mean distance) between unit vectors; ``skip`` leaves out the row itself."""
    wide = [one.astype(np.float64) for one in (rows, references)]
    units = [one / np.linalg.norm(one, axis=1, keepdims=True) for one in wide]
    distance = np.sort(cdist(*units), axis=1)
    return np.exp(-distance[:, skip : skip + neighbours].mean(axis=1))


def plain_density(x: Array, y: Array, at_x: Array, at_y: Array) -> Array:
    """Return product Gaussian kernels with the normal reference rule, as in statsmodels."""
    width = [1.06 * one.std() * len(one) ** (-1 / 6) for one in (x, y)]
    kernels = [
        np.exp(-0.5 * ((at[:, np.newaxis] - one) / h) ** 2) / (h * np.sqrt(2 * np.pi))
        for at, one, h in ((at_x, x, width[0]), (at_y, y, width[1]))
    ]
    return np.asarray((kernels[0] * kernels[1]).mean(axis=1))


def with_confidence(data: CalibrationSet, temperature: float, confidence: Array) -> Array:
    """Return the rows' probabilities with another confidence for the top class."""
    p = softmax(data.logits.astype(np.float64) / temperature, axis=1)
    rows, top = np.arange(data.n), p.argmax(axis=1)
    p[rows, top] = 0
    p *= ((1 - confidence) / p.sum(axis=1))[:, np.newaxis]
    p[rows, top] = confidence
    return np.asarray(p)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("neighbours", [1, 10])
def test_proximity_is_that_of_the_formula(dtype: type, neighbours: int) -> None:
    h, others = features_in(DATA)[:400].astype(dtype), features_in(OTHER)[:50].astype(dtype)
    references = unit_rows(h)
    found = proximities(others, references, neighbours)
    expected = plain_proximity(others, h, neighbours, skip=0)
    np.testing.assert_allclose(found, expected, atol=3e-6)
    found = proximities(h, references, neighbours, np.arange(400))
    expected = plain_proximity(h, h, neighbours, skip=1)
    np.testing.assert_allclose(found, expected, atol=3e-6)


def test_many_neighbours_of_wide_rows_take_little_memory() -> None:
    rng = np.random.default_rng(0)
    references = unit_rows(rng.normal(size=(600, 8000)))
    row = rng.normal(size=(1, 8000))
    tracemalloc.start()
    found = proximities(row, references, 599)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40e6  # all at once took 95 MB
    np.testing.assert_allclose(found, plain_proximity(row, references, 599, skip=0), atol=1e-6)


def test_rows_of_any_size_have_a_proximity() -> None:
    rows = np.array([[1e-300, 2e-300], [1e300, -1e300], [0, 0]])
    found = proximities(rows, unit_rows(rows[:2]), 1)
    np.testing.assert_allclose(found, [1, 1, np.exp(-1)], atol=1e-6)


@pytest.mark.parametrize("scaled", [True, False])
def test_the_density_ratio_is_that_of_the_formula(scaled: bool) -> None:
    fitted = ProCal(scaled=scaled).fit(DATA)
    temperature = TemperatureScaling().fit(DATA).temperature if scaled else 1.0
    confidence, hits = confidence_and_hits(DATA, temperature)
    right = hits == 1
    proximity = plain_proximity(features_in(DATA), features_in(DATA), 10, skip=1)
    c, _ = confidence_and_hits(OTHER, temperature)
    d = plain_proximity(features_in(OTHER), features_in(DATA), 10, skip=0)
    inside = (c >= confidence.min()) & (c <= confidence.max())
    inside &= (d >= proximity.min()) & (d <= proximity.max())
    f1 = plain_density(confidence[right], proximity[right], c, d)
    f0 = plain_density(confidence[~right], proximity[~right], c, d)
    expected = f1 * right.sum() / (f1 * right.sum() + f0 * (~right).sum())
    p = fitted.apply(OTHER.logits, features=features_in(OTHER))
    top = p[np.arange(OTHER.n), OTHER.logits.argmax(axis=1)]
    second = with_confidence(OTHER, temperature, expected)
    keeps = (second.argmax(axis=1) == OTHER.logits.argmax(axis=1)) & inside
    assert keeps.mean() > 0.8
    np.testing.assert_allclose(top[keeps], expected[keeps], atol=2e-3)
    np.testing.assert_allclose(p[keeps], second[keeps], atol=2e-3)


def test_the_shifts_of_bins_are_those_of_the_formula() -> None:
    recipe = ProCal(form="bin_mean_shift", proximity_bins=4, confidence_bins=6, shrinkage=0.7)
    fitted = recipe.fit(DATA)
    temperature = TemperatureScaling().fit(DATA).temperature
    confidence, hits = confidence_and_hits(DATA, temperature)
    proximity = plain_proximity(features_in(DATA), features_in(DATA), 10, skip=1)
    groups = np.digitize(proximity, np.quantile(proximity, [0.25, 0.5, 0.75]))
    for group in range(4):
        own = groups == group
        edges = np.quantile(confidence[own], np.arange(1, 6) / 6)
        bins = np.digitize(confidence[own], edges)
        for place in range(6):
            rows = bins == place
            gap = hits[own][rows].mean() - confidence[own][rows].mean()
            assert fitted.table[group, place] == pytest.approx(0.7 * gap, abs=0.02)
    moved = fitted.recalibrated(np.array([1.0, 2.0]), np.array([0.2, 0.9]))
    c = 1 / (1 + np.exp(-np.array([1.0, 2.0])))
    outer = np.searchsorted(fitted.proximity_edges, [0.2, 0.9], side="right")
    inner = [
        np.searchsorted(fitted.confidence_edges[i], one) for i, one in zip(outer, c, strict=True)
    ]
    expected = c + fitted.table[outer, inner]
    np.testing.assert_allclose(1 / (1 + np.exp(-moved)), expected, atol=1e-9)


@pytest.mark.parametrize("form", ["density_ratio", "bin_mean_shift"])
def test_it_corrects_errors_that_temperature_scaling_cannot(form: Any) -> None:
    fitted, scaled = ProCal(form=form).fit(DATA), TemperatureScaling().fit(DATA)
    truth = softmax(OTHER.logits / TRUE_TEMPERATURE[:, np.newaxis], axis=1).max(axis=1)
    off = [np.abs(one.apply_set(OTHER).max(axis=1) - truth).mean() for one in (fitted, scaled)]
    assert off[0] < 0.5 * off[1]
    right = OTHER.logits.argmax(axis=1) == fitted.apply_set(OTHER).argmax(axis=1)
    assert right.all()


def test_few_references_are_drawn_by_seed() -> None:
    few = ProCal(references=300).fit(DATA)
    assert few.references.shape == (300, 8)
    assert archive.dump(few) == archive.dump(ProCal(references=300).fit(DATA))
    other = ProCal(references=300, seed=1).fit(DATA)
    assert not np.array_equal(few.references, other.references)
    truth = softmax(OTHER.logits / TRUE_TEMPERATURE[:, np.newaxis], axis=1).max(axis=1)
    assert np.abs(few.apply_set(OTHER).max(axis=1) - truth).mean() < 0.06


@pytest.mark.parametrize("labels", ["right", "wrong"])
def test_without_right_and_wrong_rows_it_is_temperature_scaling(labels: str) -> None:
    z = DATA.logits
    made = z.argmax(axis=1) if labels == "right" else z.argmin(axis=1)
    data = CalibrationSet(z, made, features=features_in(DATA))
    with pytest.warns(match="T stops at its bound"):
        fitted = ProCal().fit(data)
    with pytest.warns(match="T stops at its bound"):
        scaled = TemperatureScaling().fit(data)
    np.testing.assert_allclose(
        fitted.apply(z, features=features_in(DATA)), scaled.apply(z), atol=2e-4
    )
    assert fitted.fit_info["not_fitted"]


def test_a_graph_takes_no_features() -> None:
    with pytest.raises(ExportError, match="needs the features of each row"):
        onnx.export(ProCal().fit(DATA))


@pytest.mark.parametrize(
    "wrong",
    [
        {"form": "other"},
        {"neighbours": 0},
        {"references": np.ones((4, 8))},
        {"references": np.zeros((0, 8))},
        {"table": np.zeros((3, 3))},
        {"base_temperature": -1.0},
    ],
)
def test_no_map_of_impossible_parameters(wrong: dict[str, Any]) -> None:
    fitted = ProCal().fit(DATA)
    assert isinstance(fitted, ProCalMap)
    with pytest.raises(ParameterError):
        replace(fitted, **wrong)
