"""Features of a set: checked once, kept with every part, and used by maps that need them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.samples import draw, features_of, head_of, with_features

from calibrators import CalibrationSet, DataError, FitError, ParameterError, fit_and_judge
from calibrators.features import MAX_FEATURES, Features, Head
from calibrators.fitting.evaluation import memory_bytes
from calibrators.methods.auto import Auto
from calibrators.methods.feature_clipping import FeatureClipping
from calibrators.methods.segmented import Segmented
from calibrators.methods.temperature import TemperatureScaling

DATA = draw(300, 4)
HEAD = head_of(4)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_features_keep_their_type_and_are_not_copied(dtype: type) -> None:
    given = np.ones((300, 7), dtype)
    data = CalibrationSet(DATA.logits, DATA.labels, features=given)
    assert data.features is not None
    assert data.features.values.dtype == dtype
    assert np.shares_memory(data.features.values, given)
    assert not data.features.values.flags.writeable
    assert given.flags.writeable


def test_parts_carry_the_features_of_their_rows() -> None:
    given = np.arange(600.0).reshape(300, 2)
    data = DATA.with_features(given).with_segments(["a", "b"] * 150)
    rows = np.array([5, 17, 2])
    taken = data.take(rows)
    assert taken.features is not None
    np.testing.assert_array_equal(taken.features.values, given[rows])
    first, second = data.split(0.3)
    assert first.features is not None
    assert second.features is not None
    together = np.concatenate([first.features.values, second.features.values])
    np.testing.assert_array_equal(np.sort(together[:, 0]), given[:, 0])
    assert data.with_features(None).features is None
    assert data.with_features(None).segments is data.segments


def test_probabilities_have_features_too() -> None:
    p = np.array([[0.7, 0.3], [0.2, 0.8]])
    data = CalibrationSet.from_probabilities(
        p, [0, 1], features=[[1.0], [2.0]], head=([[1.0]], [0])
    )
    assert data.features is not None
    assert data.features.head is not None
    assert data.features.head.weight.tolist() == [[0], [1]]
    assert data.take(np.array([1])).features.values.tolist() == [[2.0]]


@pytest.mark.parametrize(
    ("features", "code", "rule"),
    [
        (np.ones(300), "bad_features", r"shape \(n, d\), got \(300,\)"),
        (np.ones((300, 2, 2)), "bad_features", r"got \(300, 2, 2\)"),
        (np.ones((300, 2), int), "bad_features", "must be float16, float32 or float64, got int64"),
        (np.ones((300, 0)), "bad_features", "must have 1 to 16,384 features, got 0"),
        (np.ones((300, MAX_FEATURES + 1), np.float16), "bad_features", "got 16,385"),
        (np.ones((299, 2)), "features_length", "300 rows but features for 299 rows"),
        (np.ma.masked_equal(np.eye(300), 1), "masked", "features must not be masked"),
        ([[1.0], [1.0, 2.0]], "not_an_array", "features cannot be read"),
    ],
)
def test_features_that_break_a_rule_are_refused(features: Any, code: str, rule: str) -> None:
    with pytest.raises(DataError, match=rule) as caught:
        DATA.with_features(features)
    assert caught.value.code == code


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_features_that_are_not_finite_are_counted(value: float) -> None:
    features = np.ones((300, 4000), np.float16)  # several blocks
    features[[150, 280], [7, 3999]] = value
    with pytest.raises(DataError, match=r"finite \(2 invalid rows, first row 150\)") as caught:
        DATA.with_features(features)
    assert caught.value.code == "features_not_finite"


@pytest.mark.parametrize(
    ("head", "rule"),
    [
        ((np.ones((3, 8)), np.zeros(4)), r"shape \(4, d\) .* for 4 classes, got \(3, 8\)"),
        ((np.ones((4, 8)), np.zeros(3)), r"got \(4, 8\) and \(3,\)"),
        ((np.ones((4, 7)), None), "weight for each of the 8 features, got 7"),
        ((np.full((4, 8), np.nan), None), "must be finite"),
        ((np.full((4, 8), "x"), None), "must be numbers"),
        ((np.ones((4, 8)), np.float64(1.0)), r"got \(4, 8\) and \(\)"),
        (np.ones((4, 8)), r"tuple \(weight, bias\), got ndarray"),
    ],
)
def test_a_head_that_breaks_a_rule_is_refused(head: Any, rule: str) -> None:
    with pytest.raises(DataError, match=rule) as caught:
        DATA.with_features(features_of(DATA.logits), head)
    assert caught.value.code == "bad_head"


def test_a_head_needs_features() -> None:
    with pytest.raises(DataError, match="head was passed without features") as caught:
        CalibrationSet(DATA.logits, DATA.labels, head=HEAD)
    assert caught.value.code == "missing_features"


def test_a_binary_head_of_one_output_has_two_rows() -> None:
    head = Head.of((np.array([1.0, 2.0], np.float16), [3.0]), classes=2)
    assert head.weight.tolist() == [[0, 0], [1, 2]]
    assert head.bias.tolist() == [0, 3]
    assert head.weight.dtype == np.float32


def test_a_fit_names_missing_features() -> None:
    with pytest.raises(FitError, match="'feature_clipping' needs the features") as caught:
        FeatureClipping().fit(DATA)
    assert caught.value.code == "missing_features"
    with pytest.raises(
        FitError, match="'feature_clipping' needs the classification head"
    ) as caught:
        FeatureClipping().fit(DATA.with_features(features_of(DATA.logits)))
    assert caught.value.code == "missing_head"


def test_a_map_names_missing_or_unexpected_features() -> None:
    fitted = FeatureClipping().fit(with_features(DATA))
    features = features_of(DATA.logits)
    for call in (fitted.apply, fitted.transform):
        with pytest.raises(DataError, match="needs the 8 features of each row") as caught:
            call(DATA.logits)
        assert caught.value.code == "missing_features"
        with pytest.raises(DataError, match="fitted on 8 features per row, got 7") as caught:
            call(DATA.logits, features=features[:, 1:])
        assert caught.value.code == "wrong_features"
        with pytest.raises(DataError, match="300 rows but features for 299") as caught:
            call(DATA.logits, features=features[1:])
        assert caught.value.code == "features_length"
        with pytest.raises(DataError, match="has no segments") as caught:
            call(DATA.logits, ["a"] * DATA.n, features)
        assert caught.value.code == "no_segments"
    with pytest.raises(DataError) as caught:
        fitted.apply_set(DATA)
    assert caught.value.code == "missing_features"
    scaled = TemperatureScaling().fit(with_features(DATA))
    for call in (scaled.apply, scaled.transform):
        with pytest.raises(DataError, match="takes no features") as caught:
            call(DATA.logits, features=features)
        assert caught.value.code == "no_features"


def test_fits_are_judged_with_features() -> None:
    data, other = with_features(draw(1500, 4)), with_features(draw(500, 4, seed=5))
    fitted, report = fit_and_judge(FeatureClipping(), data)
    assert report.n == 300
    _, few = fit_and_judge(FeatureClipping(), with_features(DATA))
    assert few.n == 300
    judged = fit_and_judge(FeatureClipping(), data, evaluation=other)
    expected = fitted.apply(other.logits, features=features_of(other.logits))
    nll = -np.log(expected[np.arange(other.n), other.labels]).mean()
    assert judged.report.metrics["nll"] == pytest.approx(nll, rel=1e-5)


def test_an_evaluation_set_needs_the_same_features() -> None:
    data = with_features(DATA)
    for other, got in (
        (draw(200, 4), "none"),
        (draw(200, 4).with_features(np.ones((200, 3))), "3"),
    ):
        with pytest.raises(DataError, match=f"8 features per row .* got {got}") as caught:
            fit_and_judge(FeatureClipping(), data, evaluation=other)
        assert caught.value.code == "evaluation_differs"


def test_methods_that_choose_others_do_without_features() -> None:
    with pytest.raises(ParameterError, match="needs features"):
        Auto(candidates=("feature_clipping",), allow_class_change=True)
    assert "feature_clipping" not in Auto(allow_class_change=True)._recipes()
    with pytest.raises(ParameterError, match="needs neither segments nor features"):
        Segmented(base="feature_clipping")


def test_the_memory_estimate_counts_features_where_they_are_used() -> None:
    def needed(recipe: Any, **more: Any) -> int:
        return memory_bytes(recipe, 1000, 10, **more)

    plain = needed(FeatureClipping())
    assert needed(FeatureClipping(), features=500, feature_size=2) > plain + 2 * 1000 * 500
    halves = [needed(FeatureClipping(), features=500, feature_size=size) for size in (2, 4)]
    assert halves[0] < halves[1]
    assert needed(TemperatureScaling(), features=500) == needed(TemperatureScaling())


def test_features_of_a_set_may_be_passed_on() -> None:
    data = with_features(DATA)
    assert data.features is not None
    again = CalibrationSet(DATA.logits, DATA.labels, features=data.features)
    assert again.features is not None
    assert again.features.head is not None
    np.testing.assert_array_equal(again.features.head.weight, HEAD[0])
    assert isinstance(again.features, Features)
