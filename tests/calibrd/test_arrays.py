"""Arrays, tensors and columns of every library, converted to numpy."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

from calibrators import CalibrationSet, DataError
from calibrd.io.arrays import as_array

ROWS = np.array([[2.0, 0.5, -1.0], [0.25, 1.5, 3.0], [4.0, -2.0, 0.0]])
LISTS = ROWS.tolist()
NAMES = ["a", "b", "c"]


class HasArray:
    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return ROWS


class HasDlpack:
    def __dlpack__(self, **asked: Any) -> Any:
        return ROWS.__dlpack__(**asked)

    def __dlpack_device__(self) -> Any:
        return ROWS.__dlpack_device__()


def table() -> pa.Table:
    return pa.table(dict(zip(NAMES, ROWS.T, strict=True)))


MATRICES = {
    "array": ROWS,
    "lists": LISTS,
    "tuples": tuple(map(tuple, LISTS)),
    "list of arrays": list(ROWS),
    "list of tensors": list(torch.tensor(ROWS, requires_grad=True)),
    "array of objects": ROWS.astype(object),
    "__array__": HasArray(),
    "__dlpack__": HasDlpack(),
    "tensor": torch.tensor(ROWS),
    "tensor with gradient": torch.tensor(ROWS, requires_grad=True),
    "parameter": torch.nn.Parameter(torch.tensor(ROWS)),
    "bfloat16": torch.tensor(ROWS, dtype=torch.bfloat16),
    "float16": torch.tensor(ROWS, dtype=torch.float16),
    "sparse": torch.tensor(ROWS).to_sparse(),
    "not contiguous": torch.tensor(ROWS.T.copy()).T,
    "frame": pd.DataFrame(ROWS),
    "frame of several types": pd.DataFrame(ROWS).astype({0: "float32", 1: "Float64"}),
    "nullable frame": pd.DataFrame(ROWS).astype("Float64"),
    "column of lists": pd.Series(LISTS),
    "column of arrays": pd.Series(list(ROWS)),
    "frame with a column of lists": pd.DataFrame({"logits": LISTS}),
    "pandas over arrow": pd.Series(LISTS, dtype=pd.ArrowDtype(pa.list_(pa.float64()))),
    "polars frame": pl.DataFrame(ROWS, schema=NAMES),
    "polars lists": pl.Series(LISTS),
    "polars arrays": pl.Series(LISTS, dtype=pl.Array(pl.Float32, 3)),
    "polars frame with lists": pl.DataFrame({"logits": LISTS}),
    "arrow lists": pa.array(LISTS),
    "arrow lists, sliced": pa.array([[9.0, 9.0, 9.0], *LISTS])[1:],
    "arrow large lists": pa.array(LISTS, pa.large_list(pa.float32())),
    "arrow fixed lists": pa.array(LISTS, pa.list_(pa.float32(), 3)),
    "arrow fixed lists, sliced": pa.array([[9.0] * 3, *LISTS], pa.list_(pa.float32(), 3))[1:],
    "arrow chunks": pa.chunked_array([LISTS[:1], [], LISTS[1:]], pa.list_(pa.float64())),
    "arrow tensors": pa.FixedShapeTensorArray.from_numpy_ndarray(ROWS),
    "arrow table": table(),
    "arrow batch": table().to_batches()[0],
    "arrow table with lists": pa.table({"logits": LISTS}),
}


@pytest.mark.parametrize("values", MATRICES.values(), ids=MATRICES)
def test_rows(values: Any) -> None:
    found = as_array(values)
    assert type(found) is np.ndarray
    assert found.dtype.kind == "f"
    assert found.shape == ROWS.shape
    assert found.tolist() == LISTS


@pytest.mark.parametrize(
    "labels",
    [
        [0, 2, 1],
        torch.tensor([0, 2, 1]),
        pd.Series([0, 2, 1]),
        pd.Series([0, 2, 1], dtype="Int64"),
        pd.Index([0, 2, 1]),
        pl.Series([0, 2, 1], dtype=pl.UInt8),
        pa.array([0, 2, 1]),
        pa.chunked_array([[0], [2, 1]]),
        pd.Series([0, 2, 1], dtype=object),
    ],
    ids=lambda one: f"{type(one).__module__.partition('.')[0]} {type(one).__name__}",
)
def test_labels(labels: Any) -> None:
    found = as_array(labels, "labels")
    assert found.tolist() == [0, 2, 1]
    assert CalibrationSet(ROWS, found).labels.tolist() == [0, 2, 1]


class Silent(np.ndarray):
    def __str__(self) -> str:
        raise AssertionError("printing every cell takes longer than all the rest")

    __repr__ = __str__


def test_no_cell_is_printed() -> None:
    assert as_array(pd.Series([row.view(Silent) for row in ROWS])).tolist() == LISTS


ARROW_FLOATS = pd.ArrowDtype(pa.float32())
MISSING = {
    "list": [1.0, None],
    "nullable column": pd.Series([1, None], dtype="Int64"),
    "pandas over arrow": pd.Series([1.0, None], dtype=ARROW_FLOATS),
    "object column": pd.Series([1, pd.NA], dtype=object),
    "column of lists": pd.Series([[1.0, 2.0], None]),
    "cell of a column of lists": pd.Series([[1.0, 2.0], [1.0, None]]),
    "frame": pd.DataFrame({"a": pd.array([1, None], dtype="Int64"), "b": [1.0, 2.0]}),
    "polars column": pl.Series([1, None]),
    "polars lists": pl.Series([[1.0], None]),
    "cell of polars lists": pl.Series([[1.0, 2.0], [3.0, None]]),
    "polars frame": pl.DataFrame({"a": [1, None], "b": [1, 2]}),
    "arrow": pa.array([1, None]),
    "arrow lists": pa.array([[1.0], None]),
    "cell of arrow lists": pa.array([[1.0, 2.0], [3.0, None]]),
    "arrow fixed lists": pa.array([[1.0], None], pa.list_(pa.float32(), 1)),
    "arrow chunks": pa.chunked_array([[1], [None]]),
    "arrow chunks of lists": pa.chunked_array([[[1.0, 2.0]], [[3.0, None]]]),
}


@pytest.mark.parametrize("values", MISSING.values(), ids=MISSING)
def test_missing_values_are_refused(values: Any) -> None:
    with pytest.raises(DataError, match="labels must not have missing values") as caught:
        as_array(values, "labels")
    assert caught.value.code == "missing_values"


def test_the_row_that_is_missing_is_named() -> None:
    for values in (MISSING["arrow chunks of lists"], MISSING["cell of polars lists"]):
        with pytest.raises(DataError) as caught:
            as_array(values)
        assert caught.value.first == 1


@pytest.mark.parametrize(
    "values",
    [
        ["cat", "dog"],
        np.array(["cat", "dog"]),
        pd.Series(["cat", "dog"]),
        pd.Series(["cat", "dog"], dtype="category"),
        pl.Series(["cat", "dog"]),
        pl.Series(["cat", "dog"], dtype=pl.Categorical),
        pa.array(["cat", "dog"]),
        pa.array(["cat", "dog"]).dictionary_encode(),
    ],
    ids=lambda one: type(one).__module__.partition(".")[0],
)
def test_class_names_are_refused(values: Any) -> None:
    rule = r"labels must be class indices 0..k-1, got (text|categories) such as 'cat'"
    with pytest.raises(DataError, match=rule) as caught:
        as_array(values, "labels")
    assert caught.value.code == "labels_not_integers"
    with pytest.raises(DataError, match="logits must be numbers, got"):
        as_array(values, "logits")


@pytest.mark.parametrize(
    "values",
    [
        [[1, 2], [3]],
        pd.Series([[1, 2], [3]]),
        pl.Series([[1, 2], [3]]),
        pa.array([[1, 2], [3]]),
        pa.array([[1, 2, 3], [3]]),
        pa.chunked_array([[[1, 2]], [[3]]]),
        pl.DataFrame({"a": [[1, 2], [3, 4]], "b": [1, 2]}),
        pl.Series([[[1, 2]], [[3, 4]]]),
        pl.Series([[[1, 2]], [[3, 4]]], dtype=pl.List(pl.Array(pl.Int64, 2))),
        pl.Series([[[1, 2]], [[3, 4]]], dtype=pl.Array(pl.Int64, (1, 2))),
        pa.array([[[1, 2], [3, 4]], [[5, 6], [7, 8]]]),
        pa.array([[[1], [3]], [[5], [7]]]),
        pa.table({"a": pa.array([[[1, 2]], [[3, 4]]], pa.list_(pa.list_(pa.int8(), 2), 1))}),
        object(),
    ],
    ids=lambda one: type(one).__module__.partition(".")[0],
)
def test_anything_but_a_matrix_is_refused(values: Any) -> None:
    with pytest.raises(DataError, match="logits") as caught:
        as_array(values, "logits")
    assert caught.value.code in ("not_an_array", "bad_shape")


def test_a_mask_is_not_lost() -> None:
    masked = np.ma.masked_array(ROWS, ROWS > 3)
    for values in (masked, list(masked)):
        with pytest.raises(DataError, match="logits must not be masked") as caught:
            as_array(values, "logits")
        assert caught.value.code == "masked"
    assert type(as_array(np.ma.masked_array(ROWS, False))) is np.ndarray


@pytest.mark.parametrize(
    "wrap",
    [
        torch.from_numpy,
        lambda rows: pd.DataFrame(rows, copy=False),
        lambda rows: pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), 3),
        lambda rows: rows,
    ],
    ids=["torch", "pandas", "arrow", "numpy"],
)
def test_nothing_is_copied(wrap: Any) -> None:
    rows = ROWS.copy()
    assert np.shares_memory(as_array(wrap(rows)), rows)


def test_no_library_is_imported_to_inspect_values() -> None:
    code = (
        "import sys; from calibrd.io.arrays import as_array; as_array([[1.0, 2.0]]); "
        "print([m for m in ('torch', 'pandas', 'polars', 'pyarrow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
