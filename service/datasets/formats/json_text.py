"""Arrays as JSON: nested lists of numbers."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np

from service.concurrency.thread_pools import parsing_turn
from service.datasets.formats import segment_names
from service.datasets.formats.bodies import (
    LABELS,
    VALUES,
    Arrays,
    Codec,
    Format,
    check_names,
    declared_kind,
)
from service.datasets.formats.feature_columns import FEATURE_NAMES
from service.datasets.formats.npy import Array, Bytes
from service.datasets.formats.segment_names import SEGMENTS
from service.errors import Invalid
from service.http import json_answer, json_body

_LARGEST = (1 << 63) - 1
# a block is checked and converted in about a millisecond, so that no call holds the GIL for long
_BLOCK = 1 << 14


def arrays_of_document(document: dict[str, Any]) -> Arrays:
    """Return the arrays in a JSON document, ignoring other fields."""
    declared = declared_kind(document)
    labels, segments = document.get(LABELS), document.get(SEGMENTS)
    return Arrays(
        numbers(declared or VALUES, document[declared or VALUES]),
        None if labels is None else numbers(LABELS, labels),
        declared,
        None if segments is None else segment_names.from_list(segments),
        **{name: numbers(name, document[name]) for name in FEATURE_NAMES if name in document},
    )


def numbers(name: str, value: Any) -> Array:
    """Convert a list of numbers (n,) or of equal-length rows (n, k) to an array.

    >>> numbers("logits", [[1, 2.5], [0, -1]]).tolist()
    [[1.0, 2.5], [0.0, -1.0]]
    """
    if not isinstance(value, list):
        raise Invalid(
            "not_an_array", f"{name} must be a list of numbers or of rows, got {_type_name(value)}"
        )
    if not value:
        return np.empty((0,))
    if not isinstance(value[0], list):
        _check_types(name, value)
        return _array(name, value)
    _check_rows(name, value)
    flat = list(chain.from_iterable(value))
    width = len(value[0])
    _check_types(name, flat, width)
    return _array(name, flat).reshape(len(value), width)


def _check_rows(name: str, rows: list[Any]) -> None:
    width = len(rows[0])
    for place, row in enumerate(rows):
        if not isinstance(row, list):
            raise Invalid("not_an_array", f"row {place} of {name} is {_type_name(row)}, not a list")
        if len(row) != width:
            raise Invalid(
                "ragged",
                f"all rows of {name} must have the same length: row 0 has {width} numbers, "
                f"but row {place} has {len(row)}",
                row=place,
            )


def _check_types(name: str, flat: list[Any], width: int | None = None) -> None:
    if _types(flat) <= {int, float}:
        return
    place = next(i for i, one in enumerate(flat) if type(one) not in (int, float))
    where = f"element {place}" if width is None else f"row {place // width}, column {place % width}"
    raise Invalid(
        "not_a_number", f"{name} must contain only numbers: {where} is {_type_name(flat[place])}"
    )


def _array(name: str, flat: list[Any]) -> Array:
    """Return numbers as float64, and integer labels as int64 clamped to 63 bits."""
    is_whole = name == "labels" and float not in _types(flat)
    array = np.empty(len(flat), np.int64 if is_whole else np.float64)
    for start in range(0, len(flat), _BLOCK):
        block = flat[start : start + _BLOCK]
        numbers = [min(one, _LARGEST) for one in block] if is_whole else block
        array[start : start + _BLOCK] = np.array(numbers, array.dtype)
    return array


def _types(flat: list[Any]) -> set[type]:
    found: set[type] = set()
    for start in range(0, len(flat), _BLOCK):
        found.update(map(type, flat[start : start + _BLOCK]))
    return found


def _type_name(value: Any) -> str:
    names = {
        dict: "an object",
        list: "a list",
        str: "a string",
        bool: "a boolean",
        type(None): "null",
    }
    return names.get(type(value), "a number")


def _decode(body: Bytes, limit: int) -> Arrays:
    with parsing_turn(len(body)):
        document = json_body.parse(body)
        if isinstance(document, list):
            return Arrays(numbers(VALUES, document))
        if not isinstance(document, dict):
            raise Invalid(
                "not_an_array", "the body must be a list of numbers or an object with arrays"
            )
        check_names(document)
        return arrays_of_document(document)


def _encode(arrays: dict[str, Array]) -> bytes:
    return json_answer.write({}, **{name: json_answer.blocks(one) for name, one in arrays.items()})


CODEC = Codec(
    format=Format.JSON,
    media_types=("application/json",),
    holds="the same as npz, as nested lists; NaN and Infinity are rejected",
    decode=_decode,
    encode=_encode,
    begins=lambda head: head.lstrip()[:1] in (b"{", b"["),
    is_text=True,
    is_file=False,
)
