"""Datasets on disk: the rules of calibrators in constant memory."""

from __future__ import annotations

import contextlib
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from helpers.format_samples import (
    GOOD,
    LABELS,
    LIMIT,
    LIMITS,
    LOGITS,
    PACKED,
    VALID,
    npy,
    npz,
    tensor,
    tensors_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrators import CalibrationSet, DataError
from calibrators.errors import ClippedProbabilities
from service.datasets.formats import (
    Format,
    Limits,
    encode,
    inspect,
    load,
)
from service.errors import Invalid, ServiceError, TooLarge


def written(folder: Path, format: Format, kind: str, values, labels, *, packed=False) -> Path:
    path = folder / f"{format}{packed}"
    arrays = {kind: np.asarray(values), "labels": np.asarray(labels)}
    path.write_bytes(npz(packed=True, **arrays) if packed else encode(format, arrays))
    return path


STORES = [
    (Format.NPZ, False),
    (Format.NPZ, True),
    (Format.SAFETENSORS, False),
    (Format.JSON, False),
]


@pytest.mark.parametrize(("format", "packed"), STORES)
def test_dataset_is_inspected_and_loaded(tmp_path, format, packed):
    path = written(tmp_path, format, "logits", LOGITS, LABELS, packed=packed)
    facts = inspect(path, format, "logits", LIMITS)
    assert (facts.rows, facts.classes, facts.kind) == (7, 3, "logits")
    data = load(path, format)
    np.testing.assert_array_equal(data.logits.astype(np.float32), LOGITS)
    np.testing.assert_array_equal(data.labels, LABELS)
    with pytest.raises(Invalid, match="`kind` is probabilities, but the dataset contains logits"):
        inspect(path, format, "probabilities", LIMITS)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("shape", [(3, 5), (15,), (15, 1)])
def test_any_order_and_width(tmp_path, packed, shape):
    values = np.asfortranarray(np.arange(15).reshape(shape)).astype(">f8", order="K")
    path = tmp_path / "set.npz"
    path.write_bytes(npz(packed=packed, logits=values, labels=np.zeros((shape[0], 1), bool)))
    facts = inspect(path, Format.NPZ, None, LIMITS)
    assert (facts.rows, facts.classes) == (shape[0], max(2, values.reshape(shape[0], -1).shape[1]))
    assert load(path, Format.NPZ).logits[-1, -1] == 14


def test_unpacked_numbers_are_mapped(tmp_path):
    for format in (Format.NPZ, Format.SAFETENSORS):
        path = written(tmp_path, format, "logits", LOGITS, LABELS)
        base = load(path, format).logits
        while base is not None and not isinstance(base, np.memmap):
            base = base.base
        assert isinstance(base, np.memmap)


ROWS = 400_000  # several blocks of two columns
PLAIN = np.tile(np.float32([[2.0, -3.0]]), (ROWS, 1))
SHARES = np.tile(np.float32([[0.25, 0.75]]), (ROWS, 1))
TRUTH = np.zeros(ROWS, np.int64)


def broken(values, places, row):
    values = values.copy()
    values[places] = row
    return values


ENDS = [5, ROWS - 2]
SETS = {
    "nan": ("logits", broken(PLAIN, ENDS, [np.nan, 1]), TRUTH),
    "infinite": ("logits", broken(PLAIN, ENDS, [np.inf, 1]), TRUTH),
    "nan late, infinite early": (
        "logits",
        broken(broken(PLAIN, [3], [np.inf, 0]), ENDS, [np.nan, 1]),
        TRUTH,
    ),
    "no_finite_logit": ("logits", broken(PLAIN, ENDS, [-np.inf, -np.inf]), TRUTH),
    "label_on_minus_infinity": ("logits", broken(PLAIN, ENDS, [-np.inf, 1]), TRUTH),
    "label_out_of_range": ("logits", PLAIN, broken(TRUTH, ENDS, 2)),
    "negative label": ("logits", PLAIN, broken(TRUTH, ENDS, -1)),
    "not_a_probability": ("probabilities", broken(SHARES, ENDS, [-0.5, 1.5]), TRUTH),
    "nan probability": ("probabilities", broken(SHARES, ENDS, [np.nan, 0.5]), TRUTH),
    "rows_do_not_sum_to_one": ("probabilities", broken(SHARES, ENDS, [0.5, 0.4]), TRUTH),
    "one column": ("probabilities", broken(SHARES, ENDS, 2)[:, :1], TRUTH),
    "float labels": ("logits", PLAIN, TRUTH.astype(np.float32)),
    "one-hot labels": ("logits", PLAIN, np.zeros((ROWS, 2), np.int8)),
    "length_mismatch": ("logits", PLAIN, TRUTH[1:]),
    "boolean logits": ("logits", PLAIN > 0, TRUTH),
    "boolean probabilities": ("probabilities", PLAIN > 0, TRUTH),
    "3-d": ("logits", PLAIN[:, :, np.newaxis], TRUTH),
    "3-d labels": ("logits", PLAIN, TRUTH[:, np.newaxis, np.newaxis]),
    "no rows": ("logits", PLAIN[:0], TRUTH[:0]),
    "no columns": ("logits", PLAIN[:, :0], TRUTH),
    "no probabilities": ("probabilities", SHARES[:, :0], TRUTH),
}


@pytest.mark.parametrize("case", SETS)
def test_inspect_agrees_with_calibrators(tmp_path, case):
    kind, values, labels = SETS[case]
    make = CalibrationSet if kind == "logits" else CalibrationSet.from_probabilities
    with pytest.raises(DataError) as expected:
        make(values, labels)
    path = written(tmp_path, Format.NPZ, kind, values, labels)
    with pytest.raises(DataError) as caught:
        inspect(path, Format.NPZ, kind, LIMITS)
    assert (caught.value.code, str(caught.value)) == (expected.value.code, str(expected.value))
    assert (caught.value.rows, caught.value.first) == (expected.value.rows, expected.value.first)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int8])
@pytest.mark.parametrize("columns", [slice(0, 1), slice(None)])
def test_zeros_ones_and_plausible_logits_cause_no_warning(tmp_path, dtype, columns):
    sure = np.tile(np.array([[0, 1]], dtype), (10, 1))[:, columns]
    for kind in ("probabilities", "logits"):
        path = written(tmp_path, Format.NPZ, kind, sure, np.ones(10, int))
        assert inspect(path, Format.NPZ, kind, LIMITS).classes == 2


def test_dataset_needs_names_and_labels(tmp_path):
    path = tmp_path / "set"
    for format, body, code in (
        (Format.NPY, npy(LOGITS), "no_labels"),
        (Format.NPZ, npz(logits=LOGITS), "no_labels"),
        (Format.NPZ, npz(x=LOGITS, labels=LABELS), "unknown_array"),
        (Format.SAFETENSORS, tensors_of({"labels": tensor([2], 0, 8)}, GOOD), "logits_or_prob"),
        (Format.JSON, b"[[1, 2]]", "no_labels"),
    ):
        path.write_bytes(body)
        with pytest.raises(Invalid) as caught:
            inspect(path, format, None, LIMITS)
        assert caught.value.code.startswith(code)


def test_dataset_limits(tmp_path):
    path = written(tmp_path, Format.NPZ, "logits", np.ones((2, 1001)), [0, 0])
    with pytest.raises(TooLarge) as caught:
        inspect(path, Format.NPZ, None, LIMITS)
    assert caught.value.code == "too_many_classes"
    bomb = written(
        tmp_path, Format.NPZ, "logits", np.zeros((9000, 100)), np.zeros(9000, int), packed=True
    )
    with pytest.raises(TooLarge) as caught:
        inspect(bomb, Format.NPZ, None, Limits(LIMIT, LIMIT, 1000))
    assert caught.value.code == "body_too_large"
    text = written(tmp_path, Format.JSON, "logits", np.zeros((900, 100)), np.zeros(900, int))
    with pytest.raises(TooLarge):
        inspect(text, Format.JSON, None, Limits(LIMIT, 1000, 1000))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("order", ["C", "F"])
def test_inspect_takes_constant_memory(tmp_path, packed, order):
    values = np.asarray(np.ones((100_000, 100), np.float32), order=order)
    path = tmp_path / "big.npz"
    path.write_bytes(npz(packed=packed, logits=values, labels=np.zeros(100_000, int)))
    tracemalloc.start()
    inspect(path, Format.NPZ, None, LIMITS)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 12 << 20 < values.nbytes
    assert [one.name for one in tmp_path.iterdir()] == ["big.npz"]


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from([*VALID.items(), (Format.NPZ, PACKED)]),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=4),
    st.integers(0, 10_000),
)
def test_mutated_datasets(tmp_path_factory, valid, changes, cut):
    format, body = valid
    mutated = bytearray(body)
    for place, byte in changes:
        mutated[place % len(mutated)] = byte
    path = tmp_path_factory.getbasetemp() / "mutated"
    path.write_bytes(mutated[: cut or None])
    with contextlib.suppress(ServiceError, DataError):
        assert inspect(path, format, None, LIMITS).rows > 0


@pytest.mark.parametrize(("format", "packed"), STORES)
def test_rows_of_rounded_probabilities_may_sum_to_less(tmp_path, format, packed):
    rng = np.random.default_rng(0)
    exact = rng.dirichlet(np.full(10, 0.3), size=3000)
    rows, labels = np.round(exact, 2), rng.integers(10, size=3000)
    assert np.abs(rows.sum(axis=1) - 1).max() > 0.015
    path = written(tmp_path, format, "probabilities", rows, labels, packed=packed)
    limits = Limits(bytes=1 << 24, json_bytes=1 << 24, classes=100)
    assert inspect(path, format, "probabilities", limits).rows == 3000
    with pytest.warns(ClippedProbabilities, match="multiples of 0.01"):
        data = load(path, format, "probabilities")
    assert data.zeros.rounding == 0.01


@pytest.mark.parametrize("last", [[0.9, 0.085], [0.7, 0.2]])
def test_sums_are_off_for_another_reason(tmp_path, last):
    """The last row does not have the others' step, or its error is larger than rounding allows."""
    rows = np.vstack([np.tile([0.25, 0.75], (2 * ROWS, 1)), [last]])
    path = written(tmp_path, Format.NPZ, "probabilities", rows, np.zeros(len(rows), int))
    with pytest.raises(DataError, match=f"sum to 1 .*first row {2 * ROWS}"):
        inspect(path, Format.NPZ, "probabilities", LIMITS)


def test_the_range_of_labels_is_the_range_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "from_one.npz"
    np.savez(path, logits=np.eye(3, dtype=np.float32)[[0, 1, 2]] * 3, labels=[1, 2, 3])
    with pytest.raises(DataError, match=r"got 1 to 3 \(labels start at 1: subtract 1\)"):
        inspect(path, Format.NPZ, None, Limits(1 << 30, 1 << 30, 100))
