"""Segments of a sample: what is accepted, what is refused, and what stays with the rows."""

from __future__ import annotations

import enum
import time
import tracemalloc
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers.samples import draw

from calibrators import CalibrationSet, DataError
from calibrators.segments import LONGEST_NAME, MAX_SEGMENTS, Segments


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (["web", "app", "web"], ("app", "web")),
        (np.array(["b", "a", "b"], dtype=object), ("a", "b")),
        ([[3], [1], [3]], ("1", "3")),
        (np.array([10, 9, 10], dtype=np.uint8), ("10", "9")),
        (np.array([10, np.int8(9), 10], dtype=object), ("10", "9")),
        ([-1, 2**63, -1], ("-1", "9223372036854775808")),
        (np.array(["b", "a", "b"], dtype=np.dtypes.StringDType()), ("a", "b")),
        (np.ma.array(["b", "a", "b"]), ("a", "b")),
    ],
)
def test_names_and_integers_are_taken(values: Any, names: tuple[str, ...]) -> None:
    segments = Segments.of(values)
    assert segments.names == names
    assert [segments.names[code] for code in segments.codes] == [str(np.squeeze(v)) for v in values]
    assert segments.counts.sum() == 3


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ([0.5, 1.0], "bad_segments"),
        ([True, False], "bad_segments"),
        ([["a", "b"], ["c", "d"]], "bad_segments"),
        (np.array(["a", None], dtype=object), "bad_segments"),
        (["a", 1], "bad_segments"),
        (["a", float("nan")], "bad_segments"),
        ([True, "x"], "bad_segments"),
        ([[1], ["x"]], "bad_segments"),
        (np.array([1, True], dtype=object), "bad_segments"),
        (np.array(["a", None], dtype=np.dtypes.StringDType(na_object=None)), "bad_segments"),
        (np.ma.array(["a", "b"], mask=[False, True]), "masked"),
        (np.ma.array([1, 2], mask=[False, True]), "masked"),
        (["a", "a\0"], "bad_segment_name"),
        (np.array(["a", "a\0"], dtype=np.dtypes.StringDType()), "bad_segment_name"),
        ([], "segments_length"),
        (["a", ""], "bad_segment_name"),
        (["a", "  "], "bad_segment_name"),
        (["a", "b\n"], "bad_segment_name"),
        (["a", "x" * (LONGEST_NAME + 1)], "bad_segment_name"),
        (["a", "b", "c"], "segments_length"),
    ],
)
def test_invalid_segments_are_refused(values: Any, code: str) -> None:
    with pytest.raises(DataError) as caught:
        CalibrationSet([[1.0, 0.0], [0.0, 2.0]], [0, 1], values)
    assert caught.value.code == code


def test_cells_of_another_kind_are_counted() -> None:
    with pytest.raises(DataError, match="segments must be all strings or all integers") as caught:
        Segments.of([1, "web", None, "app"])
    assert (caught.value.rows, caught.value.first) == (2, 0)


@pytest.mark.parametrize(
    ("cells", "rows", "first"),
    [
        (["web", None, "app"], 1, 1),
        (["web", "app", float("nan")], 1, 2),
        ([3, np.float32("nan"), None], 2, 1),
        ([pd.NA, "web", pd.NaT], 2, 0),
        ([None, None], 2, 0),
    ],
)
def test_rows_without_a_segment_must_be_named(cells: list[Any], rows: int, first: int) -> None:
    with pytest.raises(DataError, match="a name such as 'other' for rows that have no") as caught:
        Segments.of(cells)
    assert (caught.value.code, caught.value.rows, caught.value.first) == (
        "bad_segments",
        rows,
        first,
    )


def test_input_of_another_kind_is_not_called_missing() -> None:
    for cells in (["web", 1], [1.5, 2.5], ["web", 1, None]):
        with pytest.raises(DataError) as caught:
            Segments.of(cells)
        assert "no segment" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("", "got ''"),
        ("web\n", r"got 'web\n'"),
        ("a\u200b", r"got 'a\u200b'"),
        ("x" * 201, f"got '{'x' * 60}'... of 201 characters"),
    ],
)
def test_a_bad_name_is_shown(name: str, shown: str) -> None:
    with pytest.raises(DataError) as caught:
        Segments.of(["web", name])
    assert caught.value.rule.endswith(shown)


def test_no_rows_have_no_segments() -> None:
    assert Segments.of([]).names == ()


def test_a_member_of_an_enum_goes_by_its_text() -> None:
    class Channel(str, enum.Enum):  # noqa: UP042 - str() of a StrEnum is its text already
        WEB = "web"

    assert Segments.of([Channel.WEB, "web"]).names == ("web",)


def test_identifiers_are_no_segments() -> None:
    with pytest.raises(DataError, match="is this a column of identifiers"):
        Segments.of(np.arange(MAX_SEGMENTS + 1))


def test_segments_stay_with_their_rows() -> None:
    data = draw(100, 3)
    names = [f"class {label}" for label in data.labels]
    segmented = CalibrationSet(data.logits, data.labels, names)
    for part in (*segmented.split(0.3), segmented.take(np.flatnonzero(segmented.labels == 1))):
        assert part.segments is not None
        assert [part.segments.names[c] for c in part.segments.codes] == [
            f"class {label}" for label in part.labels
        ]
        assert (part.segments.counts > 0).all()


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int64, np.uint64, "U3", ">U3", ">i4"])
def test_many_rows_take_a_block_of_memory_and_a_code_each(dtype: Any) -> None:
    values = np.tile(np.array([10, 9, 100, 9]), 500_000).astype(dtype)
    tracemalloc.start()
    segments = Segments.of(values)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert segments.names == ("10", "100", "9")
    assert segments.codes[:4].tolist() == [0, 2, 1, 2]
    assert segments.codes[-4:].tolist() == [0, 2, 1, 2]
    assert peak < segments.codes.nbytes + 25e6, peak


def test_the_length_is_checked_before_any_name() -> None:
    began = time.perf_counter()
    with pytest.raises(DataError, match="there are 3 rows but 20000000 segments"):
        Segments.of(np.zeros(20_000_000, np.int8), rows=3)
    assert time.perf_counter() - began < 0.5
