"""The contract of all methods, found by discovery: new methods are tested automatically."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError, fields, replace
from typing import Annotated, Any, Literal, get_args, get_origin

import numpy as np
import pytest
from annotated_types import Ge, Gt, Le
from helpers.samples import applied, draw, suited, transformed
from pydantic import TypeAdapter, ValidationError

from calibrators import (
    CalibrationMap,
    CalibrationSet,
    CalibrationWarning,
    DataError,
    ExportError,
    FitCancelled,
    FitError,
    ParameterError,
    all_methods,
    archive,
    get_threads,
    set_threads,
)
from calibrators.base import TemperatureTypeMap
from calibrators.export import onnx
from calibrators.fitting.parameters import field_hints
from calibrators.numerics.softmax import softmax

METHODS = sorted(all_methods())
pytestmark = pytest.mark.parametrize("name", METHODS)

FITTED: dict[str, CalibrationMap] = {}


def fit(name: str, data: CalibrationSet, **arguments: Any) -> CalibrationMap:
    recipe = all_methods()[name]()
    if isinstance(data, CalibrationSet):
        data = suited(data, recipe)
    return recipe.fit(data, **arguments)


def test_fits_without_torch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # simulates a missing package
    assert fit(name, draw(200, 3)).k == 3


@pytest.fixture
def fitted(name: str, overconfident: CalibrationSet) -> CalibrationMap:
    if name not in FITTED:
        FITTED[name] = fit(name, overconfident)
    return FITTED[name]


def broken_values(hint: Any) -> Iterator[Any]:
    """Return values that a field's annotation forbids."""
    yield from (None, object())
    if get_origin(hint) is Annotated:
        for bound in get_args(hint)[1:]:
            match bound:
                case Ge(ge=limit):
                    yield limit - 1
                case Gt(gt=limit):
                    yield limit
                case Le(le=limit):
                    yield limit + 1
        yield float("nan")
    if get_origin(hint) is Literal:
        yield "no such choice"


def test_describes_itself(name: str) -> None:
    recipe = all_methods()[name]
    assert recipe.__doc__
    assert ">>>" in recipe.__doc__
    assert recipe.summary
    assert recipe.cost


def test_recipe_is_frozen_and_checked(name: str) -> None:
    recipe = all_methods()[name]()
    for field in fields(recipe):
        with pytest.raises(FrozenInstanceError):
            setattr(recipe, field.name, getattr(recipe, field.name))
        for value in broken_values(field_hints(type(recipe))[field.name]):
            with pytest.raises(ParameterError, match=rf"\.{field.name} must be "):
                replace(recipe, **{field.name: value})
    with pytest.raises(TypeError, match="tempreature"):
        type(recipe)(tempreature=1)


def test_schema_follows_from_the_fields(name: str) -> None:
    adapter = TypeAdapter(all_methods()[name])
    recipe = all_methods()[name]()
    assert set(adapter.json_schema().get("properties", {})) == {f.name for f in fields(recipe)}
    assert adapter.validate_python(adapter.dump_python(recipe, mode="json")) == recipe
    with pytest.raises(ValidationError, match="tempreature"):
        adapter.validate_python({"tempreature": 1})


def test_probabilities_are_probabilities(
    name: str, fitted: CalibrationMap, overconfident: CalibrationSet
) -> None:
    for dtype in (np.float32, np.float64):
        given = overconfident.logits.astype(dtype)
        p = applied(fitted, given)
        assert p.shape == given.shape
        assert p.dtype == dtype
        assert (p >= 0).all()
        np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-6)
        np.testing.assert_allclose(softmax(transformed(fitted, given)), p, atol=1e-6)


def test_predicted_class_keeps_the_largest_probability(
    name: str, fitted: CalibrationMap, overconfident: CalibrationSet
) -> None:
    if not fitted.keeps_class:
        pytest.skip("this method may change the class")
    logits = overconfident.logits
    p = applied(fitted, logits)
    assert (p.argmax(axis=1) == logits.argmax(axis=1)).all()


def test_inputs_are_never_modified(name: str) -> None:
    data = draw(300, 3)
    logits, labels = data.logits.copy(), data.labels.copy()
    given = logits.copy()
    applied(fit(name, CalibrationSet(given, labels)), given)
    np.testing.assert_array_equal(given, logits)
    np.testing.assert_array_equal(labels, data.labels)


def test_same_data_and_seed_give_the_same_bytes(name: str, fitted: CalibrationMap) -> None:
    again = fit(name, draw(1200, 5))
    assert archive.dump(again) == archive.dump(fitted)


def test_archive_gives_back_the_same_map(
    name: str, fitted: CalibrationMap, overconfident: CalibrationSet
) -> None:
    data = archive.dump(fitted)
    back = archive.load(data)
    assert type(back) is type(fitted)
    assert archive.dump(back) == data
    np.testing.assert_array_equal(
        applied(back, overconfident.logits), applied(fitted, overconfident.logits)
    )
    assert json.loads(json.dumps(fitted.fit_info)) == fitted.fit_info == back.fit_info


@pytest.mark.parametrize("k", [2, 3, 5, 70])
def test_onnx_agrees_or_is_refused(name: str, k: int) -> None:
    fitted = fit(name, draw(1200, k))
    if isinstance(fitted, TemperatureTypeMap):
        assert onnx.export(fitted)
        return
    try:
        assert onnx.export(fitted)
    except ExportError as error:
        assert error.code == "not_exportable"  # noqa: PT017


def test_fits_on_every_device(name: str, device: str, fitted: CalibrationMap) -> None:
    there = fit(name, draw(1200, 5), device=device)
    logits = draw(200, 5, seed=9).logits
    np.testing.assert_allclose(applied(there, logits), applied(fitted, logits), atol=1e-4)


def test_classes_may_be_renamed(name: str, fitted: CalibrationMap) -> None:
    data = draw(1200, 5)
    order = np.array([3, 0, 4, 1, 2])
    renamed = CalibrationSet(data.logits[:, order], np.argsort(order)[data.labels])
    # the initial values depend on the columns, so rows near a border may change groups
    atol = 0.02 if name == "grouping" else 2e-3
    p = applied(fit(name, renamed), data.logits[:, order])
    np.testing.assert_allclose(p, applied(fitted, data.logits)[:, order], atol=atol)


def test_rows_may_come_in_any_order(name: str, fitted: CalibrationMap) -> None:
    if name == "auto":
        pytest.skip("its folds depend on the order of the rows; its candidates do not")
    data = draw(1200, 5)
    shuffled = data.take(np.random.default_rng(3).permutation(data.n))
    p = applied(fit(name, shuffled), data.logits)
    np.testing.assert_allclose(p, applied(fitted, data.logits), atol=1e-4)


@pytest.mark.parametrize("factor", [1e-3, 0.5, 64.0])
def test_the_scale_of_the_logits_does_not_matter(
    name: str, factor: float, fitted: CalibrationMap
) -> None:
    if name in ("identity", "auto", "ets"):
        pytest.skip("softmax of the logits as they are is what it gives, prefers or mixes in")
    data = draw(1200, 5)
    scaled = (data.logits * factor).astype(np.float32)
    p = applied(fit(name, CalibrationSet(scaled, data.labels)), scaled)
    np.testing.assert_allclose(p, applied(fitted, data.logits), atol=1e-4)


def test_binary_takes_one_column_or_two(name: str) -> None:
    data = draw(400, 2)
    column = data.logits[:, 1] - data.logits[:, 0]
    maps = [
        fit(name, CalibrationSet(given, data.labels))
        for given in (column, column[:, np.newaxis], data.logits)
    ]
    expected = applied(maps[2], data.logits)
    for one in maps:
        assert one.k == 2
        for given in (column, column[:, np.newaxis], data.logits):
            np.testing.assert_allclose(applied(one, given), expected, atol=1e-4)


def test_fitted_on_probabilities(name: str) -> None:
    data = draw(600, 4, dtype=np.float64)
    p = softmax(data.logits)
    fitted = fit(name, CalibrationSet.from_probabilities(p, data.labels))
    assert fitted.kind == "probabilities"
    expected = applied(fit(name, data), data.logits)
    np.testing.assert_allclose(applied(fitted, p), expected, atol=1e-4)
    with pytest.raises(DataError, match=r"must lie in \[0, 1\]"):
        applied(fitted, data.logits)


def test_extreme_rows(name: str, fitted: CalibrationMap) -> None:
    rows = np.zeros((5, 5), dtype=np.float32)
    rows[0, 2], rows[1, 4], rows[2, 1:] = 1e4, -1e4, -np.inf
    rows[3, :3], rows[4] = 7, [3, -np.inf, 2, -np.inf, 1]
    with np.errstate(all="raise", under="ignore"):
        p = applied(fitted, rows)
    np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-6)
    assert p[0, 2] == p[0].max()
    if isinstance(fitted, TemperatureTypeMap):
        assert p[0, 2] == 1
    assert p[2].tolist() == [1, 0, 0, 0, 0]
    assert (p[4, [1, 3]] == 0).all()
    if fitted.keeps_class:
        assert (p[np.arange(5), rows.argmax(axis=1)] == p.max(axis=1)).all()


def test_fits_with_minus_infinity_in_the_logits(name: str) -> None:
    data = draw(600, 5)
    logits = data.logits.copy()
    masked = np.random.default_rng(1).random(logits.shape) < 0.2
    masked[np.arange(data.n), data.labels] = False
    masked[:3] = np.arange(5) != data.labels[:3, np.newaxis]
    logits[masked] = -np.inf
    p = applied(fit(name, CalibrationSet(logits, data.labels)), logits)
    assert (p[masked] == 0).all()
    np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-6)


@pytest.mark.parametrize(
    ("value", "rule"),
    [(np.nan, "must not be NaN"), (np.inf, r"must not be \+inf")],
)
def test_refuses_rows_without_a_softmax(
    name: str, value: float, rule: str, fitted: CalibrationMap
) -> None:
    rows = np.zeros((70_000, 5), dtype=np.float32)
    rows[[69, 60_000], 1] = value
    with pytest.raises(DataError, match=rf"{rule} \(2 invalid rows, first row 69\)"):
        applied(fitted, rows)


def test_refuses_another_number_of_classes(name: str, fitted: CalibrationMap) -> None:
    with pytest.raises(DataError, match="fitted on 5 classes, got 3 columns"):
        applied(fitted, np.zeros((2, 3)))
    if fitted.kind == "logits":
        with pytest.raises(DataError, match=r"5 numbers: write a single row as \[\[\.\.\.\]\]"):
            applied(fitted, np.zeros(5))


def test_refuses_bare_arrays(name: str) -> None:
    with pytest.raises(FitError, match="create one with CalibrationSet"):
        fit(name, np.zeros((3, 2)))  # type: ignore[arg-type]


def test_progress_rises_to_the_end(name: str) -> None:
    seen: list[tuple[int, int]] = []
    fit(name, draw(300, 3), progress=lambda step, total, loss: seen.append((step, total)))
    assert seen
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1]


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9])
def test_can_be_cancelled_at_any_step(name: str, share: float) -> None:
    data, asked = draw(300, 3), []
    fit(name, data, cancel=lambda: bool(asked.append(1)))
    calls = iter(range(10**6))
    with pytest.raises(FitCancelled):
        fit(name, data, cancel=lambda: next(calls) >= int(share * len(asked)))


def test_many_blocks_on_several_threads_with_minus_infinity(name: str) -> None:
    if name == "grouping":
        pytest.skip("another class adds features here, and so other random starts")
    data = draw(9000, 70)
    logits = np.concatenate([data.logits, np.full((9000, 1), -np.inf, np.float32)], axis=1)
    assert logits.size > 2**19
    before = get_threads()
    set_threads(3)
    try:
        fitted = fit(name, CalibrationSet(logits, data.labels))
        expected = fit(name, data)
    finally:
        set_threads(before)
    np.testing.assert_allclose(
        applied(fitted, logits)[:, :-1], applied(expected, data.logits), atol=2e-3
    )


def test_fits_may_run_side_by_side(name: str, fitted: CalibrationMap) -> None:
    with ThreadPoolExecutor(3) as pool:
        maps = list(pool.map(lambda _: fit(name, draw(1200, 5)), range(3)))
    assert {archive.dump(one) for one in maps} == {archive.dump(fitted)}


@pytest.mark.parametrize("n", [1, 2, 3, 20])
def test_tiny_sets_give_a_finite_result(name: str, n: int) -> None:
    data = draw(max(n, 2), 3, seed=4).take(np.arange(n))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        p = applied(fit(name, data), data.logits)
    assert np.isfinite(p).all()
    np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-6)
