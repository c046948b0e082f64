"""Segments of a sample: what is taken, what is refused, and what stays with the rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from samples import draw

from calibrators import CalibrationSet, DataError
from calibrators.groups import LONGEST_NAME, MOST_GROUPS, Groups


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (["web", "app", "web"], ("app", "web")),
        (np.array(["b", "a", "b"], dtype=object), ("a", "b")),
        ([[3], [1], [3]], ("1", "3")),
        (np.array([10, 9, 10], dtype=np.uint8), ("10", "9")),
    ],
)
def test_names_and_integers_are_taken(values: Any, names: tuple[str, ...]) -> None:
    groups = Groups.of(values)
    assert groups.names == names
    assert [groups.names[code] for code in groups.codes] == [str(np.squeeze(v)) for v in values]
    assert groups.counts.sum() == 3


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ([0.5, 1.0], "bad_groups"),
        ([True, False], "bad_groups"),
        ([["a", "b"], ["c", "d"]], "bad_groups"),
        (np.array(["a", None], dtype=object), "bad_groups"),
        (["a", ""], "bad_group_name"),
        (["a", "  "], "bad_group_name"),
        (["a", "b\n"], "bad_group_name"),
        (["a", "x" * (LONGEST_NAME + 1)], "bad_group_name"),
        (["a", "b", "c"], "groups_length"),
    ],
)
def test_what_is_no_group_is_refused(values: Any, code: str) -> None:
    with pytest.raises(DataError) as caught:
        CalibrationSet([[1.0, 0.0], [0.0, 2.0]], [0, 1], values)
    assert caught.value.code == code


def test_identifiers_are_no_groups() -> None:
    with pytest.raises(DataError, match="is this a column of identifiers"):
        Groups.of(np.arange(MOST_GROUPS + 1))


def test_groups_stay_with_their_rows() -> None:
    data = draw(100, 3)
    names = [f"class {label}" for label in data.labels]
    grouped = CalibrationSet(data.logits, data.labels, names)
    for part in (*grouped.split(0.3), grouped.take(np.flatnonzero(grouped.labels == 1))):
        assert part.groups is not None
        assert [part.groups.names[c] for c in part.groups.codes] == [
            f"class {label}" for label in part.labels
        ]
        assert (part.groups.counts > 0).all()
