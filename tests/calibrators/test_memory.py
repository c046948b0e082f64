"""The estimated memory of a fit is the memory that it takes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from helpers.memory_peak import peak_of
from helpers.samples import with_features

from calibrators import CalibrationSet, all_methods, get_threads, set_threads
from calibrators.export.onnx import export
from calibrators.fitting.evaluation import fit_and_judge, memory_bytes
from calibrators.methods.matrix import MatrixScaling
from calibrators.methods.smart import Smart
from calibrators.methods.temperature import TemperatureMap, TemperatureScaling

MEGABYTE = 1e6
LEAST = 50 * MEGABYTE
QUICK: dict[str, dict[str, Any]] = {
    "auto": {"candidates": ("spline",), "folds": 2},
    "beta": {"tolerance": 1e-2},
    "cts": {"sweeps": 1},
    "dirichlet": {"tolerance": 1e-2},
    "feature_clipping": {"thresholds": 2},
    "grouping": {"steps": 3},
    "matrix": {"tolerance": 1e-2},
    "procal": {"references": 500},
    "smart": {"steps": 2},
    "vector": {"tolerance": 1e-2},
}
TALL, WIDE, SQUARE = (300_000, 8), (4000, 2000), (300, 1200)


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    before = get_threads()
    set_threads(2)
    yield
    set_threads(before)


@cache
def drawn(n: int, k: int) -> CalibrationSet:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(n, k)) * 2
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return CalibrationSet(1.5 * logits, labels, np.resize(["app", "web"], n))


def check(name: str, n: int, k: int, estimate: int, peak: float) -> None:
    if max(estimate, peak) > LEAST:
        said = (
            f"{name} on {n} x {k}: {estimate / MEGABYTE:.0f} MB said, {peak / MEGABYTE:.0f} taken"
        )
        assert estimate / 2 <= peak <= 2 * estimate, said


@pytest.mark.parametrize("name", sorted(all_methods()))
@pytest.mark.parametrize(("n", "k"), [TALL, WIDE, SQUARE])
def test_the_memory_of_a_fit_matches_the_estimate(name: str, n: int, k: int) -> None:
    if name in ("cts", "matrix", "dirichlet") and (n, k) == WIDE:
        n, k = 2000, 800
    if name == "cts" and (n, k) == SQUARE:  # its time grows with the square of the classes
        n, k = 2000, 300
    recipe, data = all_methods()[name](**QUICK.get(name, {})), drawn(n, k)
    estimate = recipe.memory_bytes(n, k)
    if recipe.needs_features:
        data = with_features(data)
        estimate += recipe.feature_bytes(n, 2 * k)
    check(name, n, k, estimate, peak_of(lambda: recipe.fit(data)))


@pytest.mark.parametrize(
    ("n", "k", "params"),
    [
        (100_000, 8, {"objective": "brier"}),
        (50_000, 50, {"indicator": "all_logits"}),
        (60, 2000, {"indicator": "all_logits", "hidden": 2048}),
        (100_000, 50, {"indicator": "entropy"}),
        (10_000, 8, {"objective": "mse", "hidden": 2048}),
    ],
)
def test_the_memory_of_variants_of_smart_matches_the_estimate(
    n: int, k: int, params: dict[str, Any]
) -> None:
    recipe, data = Smart(steps=2, **params), drawn(n, k)
    check("smart", n, k, recipe.memory_bytes(n, k), peak_of(lambda: recipe.fit(data)))


@pytest.mark.parametrize(("n", "k"), [TALL, WIDE])
def test_the_memory_of_judging_matches_the_estimate(n: int, k: int) -> None:
    data = drawn(n, k)
    peak = peak_of(lambda: fit_and_judge(TemperatureScaling(), data)) + data.logits.nbytes
    check("judging", n, k, memory_bytes(TemperatureScaling(), n, k), peak)


@pytest.mark.parametrize(("n", "k"), [TALL, WIDE])
def test_the_estimate_includes_the_evaluation_set(n: int, k: int) -> None:
    few, many = drawn(60, k), drawn(n, k)
    work = lambda: fit_and_judge(TemperatureScaling(), few, evaluation=many)  # noqa: E731
    peak = peak_of(work) + many.logits.nbytes
    check("evaluation", n, k, memory_bytes(TemperatureScaling(), 60, k, evaluation=n), peak)


@pytest.mark.parametrize(("n", "k"), [TALL, WIDE])
def test_the_estimate_includes_a_large_held_out_part(n: int, k: int) -> None:
    data = drawn(n, k)
    peak = peak_of(lambda: fit_and_judge(TemperatureScaling(), data, held_out=0.9))
    said = memory_bytes(TemperatureScaling(), n, k, held_out=0.9)
    check("held out", n, k, said, peak + data.logits.nbytes)


@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_exporting_many_classes_takes_little_memory(kind: Any) -> None:
    fitted = TemperatureMap(k=20_000, kind=kind, temperature=2.0)
    export(TemperatureMap(k=3, temperature=2.0))  # onnx is loaded
    most = {"logits": 40, "probabilities": 80}[kind]
    assert peak_of(lambda: export(fitted)) < most * MEGABYTE


def test_a_matrix_holds_few_copies_of_its_weights() -> None:
    n, k = 1000, 800
    data = drawn(n, k)
    peak = peak_of(lambda: MatrixScaling(tolerance=1e-2).fit(data))
    assert peak < 8 * (16 * k * k + 4 * n * k)
