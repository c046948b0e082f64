"""Which responses are computed on the event loop, and the most probable classes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from calibrators.methods.histogram import HistogramMap
from calibrators.methods.matrix import MatrixMap
from calibrators.methods.temperature import TemperatureMap
from service.datasets.formats import Format, read_arrays
from service.errors import Malformed
from service.serving.apply_map import is_quick, top_classes


def quick(fitted: Any, rows: int, columns: int, **asked: Any) -> bool:
    served: Any = SimpleNamespace(map=fitted)
    return is_quick(served, np.zeros((rows, columns)), **{"writes_json": False, **asked})


def test_rows_top_and_json_count() -> None:
    two = TemperatureMap(k=2, temperature=2.0)
    assert quick(two, 1000, 2)
    assert not quick(two, 131_072, 1)
    assert quick(two, 100, 2, top=1)
    assert not quick(two, 1000, 2, top=1)
    wide = TemperatureMap(k=10_000, temperature=2.0)
    assert quick(wide, 1, 10_000)
    assert not quick(wide, 1, 10_000, writes_json=True)


def test_matrices_count() -> None:
    k = 600
    fitted = MatrixMap(k=k, base_temperature=1.0, weights=np.eye(k), bias=np.zeros(k))
    assert not quick(fitted, 1, k)


def test_a_table_is_made_once() -> None:
    accuracy = np.linspace(0.01, 0.99, 50)
    edges = np.linspace(-5, 5, 49)
    fitted = HistogramMap(k=3, base_temperature=1.0, edges=edges, accuracy=accuracy)
    fitted.apply([[1.0, 2.0, 3.0]])
    table = fitted._accuracy_log_odds
    fitted.apply([[1.0, 2.0, 3.0]])
    assert fitted._accuracy_log_odds is table


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 20])
def test_the_largest_come_first_and_of_equal_ones_the_first(count: int) -> None:
    rng = np.random.default_rng(0)
    values = rng.integers(0, 4, size=(200, 8)) / 4
    classes, shares = top_classes(values, count)
    expected = np.argsort(-values, axis=1, kind="stable")[:, :count]
    np.testing.assert_array_equal(classes, expected)
    np.testing.assert_array_equal(shares, np.take_along_axis(values, expected, axis=1))


def test_headers_of_very_many_entries_are_refused() -> None:
    one = b'"%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    header = b"{" + b",".join(one % number for number in range(100)) + b"}"
    body = len(header).to_bytes(8, "little") + header
    with pytest.raises(Malformed, match="at most 16 tensors"):
        read_arrays(Format.SAFETENSORS, body, limit=1 << 20)
    shape = b"{'descr': '<f4', 'fortran_order': False, 'shape': (" + b"1," * 1900 + b")}"
    body = b"\x93NUMPY\x01\x00" + len(shape).to_bytes(2, "little") + shape
    with pytest.raises(Malformed, match="the npy header must contain"):
        read_arrays(Format.NPY, body, limit=1 << 20)
