"""CalibrationSet: errors for bad input state the rule, how many rows break it and the first row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.samples import draw

from calibrators import CalibrationSet, DataError, get_method
from calibrators.error_codes import hint_of
from calibrators.errors import ClippedProbabilities, LooksLikeProbabilities
from calibrators.methods.temperature import TemperatureScaling
from calibrators.numerics.softmax import softmax

LOGITS = np.array([[2.0, -1.0, 0.5], [0.3, 4.0, -2.0], [1.0, -1.0, 3.0], [0.0, 1.5, -3.0]])
LABELS = np.array([0, 1, 2, 1])


def changed(value: float, *places: tuple[int, int]) -> Any:
    logits = LOGITS.copy()
    for place in places:
        logits[place] = value
    return logits


BAD = [
    (changed(np.nan, (1, 0), (3, 2)), LABELS, "nan", "must not be NaN", 2, 1),
    (changed(np.inf, (2, 1)), LABELS, "infinite", r"must not be \+inf", 1, 2),
    (changed(-np.inf, (2, 2), (3, 1)), LABELS, "label_on_minus_infinity", "of the label", 2, 2),
    (
        changed(-np.inf, (1, 0), (1, 1), (1, 2)),
        LABELS,
        "no_finite_logit",
        "at least one finite",
        1,
        1,
    ),
    (LOGITS, [0, 1, 3, -1], "label_out_of_range", r"must lie in 0\.\.2", 2, 2),
    (LOGITS, LABELS.astype(float), "labels_not_integers", "must be integers", None, None),
    (LOGITS, LABELS[:3], "length_mismatch", "4 rows but labels have 3", None, None),
    (LOGITS, np.eye(3)[LABELS].astype(int), "bad_label_shape", "argmax", None, None),
    (LOGITS[:0], LABELS[:0], "empty", "at least one row", None, None),
    (LOGITS[:, :0], LABELS, "too_few_classes", "at least 2 classes", None, None),
    (LOGITS[np.newaxis], LABELS, "bad_shape", r"got \(1, 4, 3\)", None, None),
    ([["a", "b"]], [0], "bad_type", "must be float32 or float64", None, None),
    (LOGITS.astype(complex), LABELS, "bad_type", "complex128", None, None),
    ([[1.0, 2.0], [3.0]], [0, 1], "not_an_array", "cannot be read", None, None),
]


@pytest.mark.parametrize(("logits", "labels", "code", "words", "rows", "first"), BAD)
def test_bad_input_is_named(
    logits: Any, labels: Any, code: str, words: str, rows: int | None, first: int | None
) -> None:
    with pytest.raises(DataError, match=words) as caught:
        CalibrationSet(logits, labels)
    assert caught.value.code == code
    assert (caught.value.rows, caught.value.first) == (rows, first)
    if rows is not None:
        noun = "row" if rows == 1 else "rows"
        assert f"({rows} invalid {noun}, first row {first})" in str(caught.value)


def test_bad_rows_are_found_far_into_a_large_set() -> None:
    for k in (3, 200):
        logits = np.random.default_rng(0).normal(size=(5000, k)).astype(np.float32)
        logits[[4321, 4999], 1] = np.nan
        with pytest.raises(DataError) as caught:
            CalibrationSet(logits, np.zeros(5000, dtype=int))
        assert (caught.value.rows, caught.value.first) == (2, 4321)


@pytest.mark.parametrize(
    ("probabilities", "code", "rows", "first"),
    [
        ([[0.5, 0.5], [0.7, 0.2], [0.6, 0.6]], "rows_do_not_sum_to_one", 2, 1),
        ([[0.5, 0.5], [1.5, -0.5]], "not_a_probability", 1, 1),
        ([[0.5, 0.5], [np.nan, 0.5]], "not_a_probability", 1, 1),
        ([0.5, 1.2], "not_a_probability", 1, 1),
    ],
)
def test_bad_probabilities_are_named(probabilities: Any, code: str, rows: int, first: int) -> None:
    with pytest.raises(DataError) as caught:
        CalibrationSet.from_probabilities(probabilities, np.zeros(len(probabilities), dtype=int))
    assert (caught.value.code, caught.value.rows, caught.value.first) == (code, rows, first)


def test_logits_that_look_like_probabilities_warn_and_stay_logits() -> None:
    p = np.array([[0.2, 0.8], [0.6, 0.4]])
    with pytest.warns(LooksLikeProbabilities, match="CalibrationSet.from_probabilities"):
        data = CalibrationSet(p, [1, 0])
    assert data.kind == "logits"
    np.testing.assert_array_equal(data.logits, p)
    with pytest.warns(LooksLikeProbabilities, match="single number"):
        CalibrationSet(p[:, 1], [1, 0])
    CalibrationSet(np.array([[0.2, 0.8], [0.6, 0.5]]), [1, 0])


@pytest.mark.parametrize("columns", [slice(None), 1])
def test_a_fit_keeps_the_warning_that_logits_look_like_probabilities(columns: Any) -> None:
    rng = np.random.default_rng(0)
    p = rng.dirichlet([1, 1], size=300)
    labels = (rng.random(300) < p[:, 1]).astype(int)
    with pytest.warns(LooksLikeProbabilities) as caught:
        data = CalibrationSet(p[:, columns], labels)
    fitted = TemperatureScaling().fit(data)
    (found,) = [
        one["message"]
        for one in fitted.fit_info["warnings"]
        if one["code"] == "looks_like_probabilities"
    ]
    assert [str(one.message) for one in caught] == [found]
    fitted = TemperatureScaling().fit(CalibrationSet(np.log(p), labels))
    assert fitted.fit_info["warnings"] == []


def test_maps_warn_if_many_logits_look_like_probabilities() -> None:
    rng = np.random.default_rng(0)
    data = CalibrationSet(rng.normal(size=(200, 3)), rng.integers(0, 3, 200))
    fitted = TemperatureScaling().fit(data)
    p = softmax(data.logits[:20])
    for rows in (p, p[:19], p[:1], p[:3].astype(np.float32)):
        with pytest.warns(LooksLikeProbabilities, match="fitted on logits: pass the") as caught:
            fitted.apply(rows)
        assert caught[0].filename == __file__
    fitted.apply([[0.2, 0.3, 0.4995]])  # a row of logits may sum to about 1 by chance
    fitted.apply(np.eye(3))
    fitted.apply(data.logits)


def test_maps_of_two_classes_warn_about_probabilities() -> None:
    rng = np.random.default_rng(0)
    p = rng.random(200)
    labels = rng.random(200) < p
    fitted = TemperatureScaling().fit(CalibrationSet(3 * np.log(p / (1 - p)), labels))
    with pytest.warns(LooksLikeProbabilities, match="is a single number"):
        fitted.apply(p)
    fitted.apply(p[:50])
    with pytest.warns(LooksLikeProbabilities, match="sums to 1"):
        fitted.apply([[0.3, 0.7]])


def test_warnings_about_zeros_point_at_the_caller() -> None:
    rng = np.random.default_rng(0)
    votes = rng.multinomial(100, [0.9, 0.09, 0.01], size=300) / 100
    labels = np.where(rng.random(300) < 0.8, 0, votes.argmin(axis=1))
    with pytest.warns(ClippedProbabilities, match=r"multiples of 0.01, so .* forest") as made:
        data = CalibrationSet.from_probabilities(votes, labels)
    fitted = TemperatureScaling().fit(data)
    with pytest.warns(ClippedProbabilities) as applied:
        fitted.apply(votes)
    assert {one.filename for one in (*made, *applied)} == {__file__}


def test_errors_of_labels_say_what_to_pass() -> None:
    p = np.eye(2)[[0, 1, 0]]
    for labels, words in (
        (["no", "yes", "no"], r"np.searchsorted\(model.classes_, labels\)"),
        ([0.0, 1.0, 0.0], r"labels.astype\(int\)"),
        ([-1, 1, -1], r"\(labels > 0\).astype\(int\)"),
    ):
        with pytest.raises(DataError, match=words):
            CalibrationSet(p, labels)


def test_maps_have_a_short_repr() -> None:
    data = draw(300, 3, temperature=2.0)
    fitted = TemperatureScaling().fit(data)
    assert repr(fitted) == f"TemperatureMap(k=3, temperature={fitted.temperature!r})"
    vector = get_method("vector")().fit(data)
    assert "weights=<array (3,)>" in repr(vector)
    assert len(repr(get_method("additive")().fit(data))) < 600


def test_labels_that_start_at_1_are_recognised() -> None:
    with pytest.raises(DataError, match=r"lie in 0..2, got 1 to 3 \(labels start at 1: sub"):
        CalibrationSet(np.eye(3), [1, 2, 3])
    with pytest.raises(DataError, match=r"got 0 to 3 \(1 invalid row") as caught:
        CalibrationSet(np.eye(3), [0, 2, 3])
    assert caught.value.hint == hint_of("label_out_of_range") != ""


def test_zeros_are_clipped_and_counted() -> None:
    p = np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]], dtype=np.float32)
    with pytest.warns(ClippedProbabilities, match="^3 zeros were raised"):
        data = CalibrationSet.from_probabilities(p, [0, 1])
    assert np.isfinite(data.logits).all()


def test_binary_shapes_agree() -> None:
    column = np.array([2.0, -1.0, 3.0])
    for given in (column, column[:, np.newaxis]):
        data = CalibrationSet(given, [1, 0, 1])
        np.testing.assert_array_equal(data.logits, np.stack([np.zeros(3), column], axis=1))
    p = CalibrationSet.from_probabilities([0.9, 0.2], [1, 0])
    np.testing.assert_allclose(np.exp(p.logits), [[0.1, 0.9], [0.8, 0.2]])


@pytest.mark.parametrize(
    ("dtype", "kept"),
    [("f4", "f4"), ("f8", "f8"), ("f2", "f4"), ("i8", "f8"), (">f8", "f8"), (">f4", "f4")],
)
def test_types_are_kept_or_widened(dtype: str, kept: str) -> None:
    data = CalibrationSet((LOGITS * 2).astype(dtype), LABELS)
    assert data.logits.dtype == np.dtype(kept)
    np.testing.assert_array_equal(data.logits, (LOGITS * 2).astype(dtype).astype(kept))


def test_arrays_are_neither_copied_nor_writable() -> None:
    logits = LOGITS.copy()
    data = CalibrationSet(logits, LABELS)
    assert np.shares_memory(data.logits, logits)
    assert logits.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        data.logits[0, 0] = 1.0


def test_split_is_stratified_and_by_seed() -> None:
    data = draw(1000, 4, seed=2)
    rest, held = data.split(0.2, seed=7)
    assert (rest.n, held.n) == (800, 200)
    shares = np.bincount(data.labels, minlength=4) * 0.2
    assert np.abs(np.bincount(held.labels, minlength=4) - shares).max() <= 1
    rows = {row.tobytes() for row in data.logits}
    parts = [{row.tobytes() for row in part.logits} for part in (rest, held)]
    assert parts[0] | parts[1] == rows
    assert not parts[0] & parts[1]
    np.testing.assert_array_equal(held.logits, data.split(0.2, seed=7)[1].logits)
    assert not np.array_equal(held.labels, data.split(0.2, seed=8)[1].labels)


def test_folds_are_equal_and_stratified() -> None:
    data = draw(1003, 4, seed=2)
    folds = data.folds(5, seed=0)
    assert np.ptp(np.bincount(folds)) <= 1
    for label in range(4):
        assert np.ptp(np.bincount(folds[data.labels == label], minlength=5)) <= 1


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.5, 1.5])
def test_split_refuses_impossible_fractions(fraction: float) -> None:
    with pytest.raises(DataError, match="between 0 and 1"):
        draw(10, 2).split(fraction)


def test_split_refuses_empty_parts() -> None:
    with pytest.raises(DataError, match="cannot be split"):
        draw(2, 2).split(0.01)
    with pytest.raises(DataError, match=r"between 2 and the number of rows \(3\)"):
        draw(3, 2).folds(4)


def test_masked_arrays_are_refused() -> None:
    with pytest.raises(DataError, match="logits must not be masked"):
        CalibrationSet(np.ma.masked_array(LOGITS, LOGITS > 0), LABELS)
    with pytest.raises(DataError, match="labels must not be masked"):
        CalibrationSet(LOGITS, np.ma.masked_array(LABELS, LABELS > 1))


@pytest.mark.parametrize("rows", [np.zeros(10, dtype=bool), np.array([[1, 2]]), np.array([], int)])
def test_take_refuses_anything_but_a_list_of_rows(rows: Any) -> None:
    with pytest.raises(DataError, match="at least one row"):
        draw(10, 2).take(rows)
