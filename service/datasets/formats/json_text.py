"""Arrays as JSON: nested lists of numbers."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import orjson

from service.datasets.formats.layout import Array, Bytes
from service.errors import Invalid, Malformed, TooLarge

_LARGEST = (1 << 63) - 1
# The parser holds the interpreter until it has ended, and its objects take memory: so much of each
# is allowed as 1.5 million numbers need, which are read in about 0.1 s and 100 MB.
MOST_COST = 1_500_000
MOST_DEPTH = 64
# what each character stands for: a value, a list, an object, a key
COSTS = {b",": 1, b"[": 1, b"{": 3, b":": 2}


def parse(body: Bytes, *, most_cost: int = MOST_COST) -> Any:
    """Parse a JSON text; refuse NaN, Infinity, numbers beyond float64 and depths over 1024.

    Text that could hold more values than are read at once is refused before it is parsed.
    """
    check_cost(body, most_cost)
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Malformed("malformed_json", f"the body cannot be read as JSON: {error}") from error


def check_cost(body: Bytes, most: int = MOST_COST) -> None:
    """Raise TooLarge if a JSON text may hold more values, lists and objects than are read.

    Counts characters, also those inside of strings: it takes milliseconds for any body.
    """
    if len(body) <= most:
        return
    text = bytes(body)
    if sum(text.count(character) * cost for character, cost in COSTS.items()) > most:
        raise TooLarge(
            "too_many_values",
            f"the JSON holds too many values: lists, objects and numbers together may cost {most}"
            " (a number 1, a list 2, a key 3, an object 4). Send fewer, or arrays as npy, npz or"
            " safetensors",
            limit=most,
        )


def check_shape(document: Any, most_values: int, most_depth: int = MOST_DEPTH) -> None:
    """Raise if a parsed document holds too many values, or lists and objects too deep in others."""
    values, waiting = 0, [(document, 0)]
    while waiting:
        value, depth = waiting.pop()
        if not isinstance(value, (dict, list)):
            continue
        values += len(value)
        if values > most_values:
            raise TooLarge(
                "too_many_values",
                f"the JSON holds more than {most_values} values: send fewer",
                limit=most_values,
            )
        if depth > most_depth:
            raise Invalid(
                "too_deep", f"lists and objects may lie {most_depth} deep inside each other"
            )
        inner = value.values() if isinstance(value, dict) else value
        waiting += [(one, depth + 1) for one in inner if isinstance(one, (dict, list))]


def numbers(name: str, value: Any) -> Array:
    """A list of numbers (n,) or of equally long lists of numbers (n, k); nothing else.

    >>> numbers("logits", [[1, 2.5], [0, -1]]).tolist()
    [[1.0, 2.5], [0.0, -1.0]]
    """
    if not isinstance(value, list):
        raise Invalid(
            "not_an_array", f"{name} must be a list of numbers or of rows, got {_called(value)}"
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
            raise Invalid("not_an_array", f"row {place} of {name} is {_called(row)}, not a list")
        if len(row) != width:
            raise Invalid(
                "ragged",
                f"all rows of {name} must be equally long: row 0 has {width} numbers, "
                f"row {place} has {len(row)}",
                row=place,
            )


def _check_types(name: str, flat: list[Any], width: int | None = None) -> None:
    if set(map(type, flat)) <= {int, float}:
        return
    place = next(i for i, one in enumerate(flat) if type(one) not in (int, float))
    where = f"place {place}" if width is None else f"row {place // width}, column {place % width}"
    raise Invalid("not_a_number", f"{name} must be numbers: {where} is {_called(flat[place])}")


def _array(name: str, flat: list[Any]) -> Array:
    """float64, except that labels stay integers; those beyond 63 bits are out of any range."""
    if name != "labels" or float in set(map(type, flat)):
        return np.array(flat, np.float64)
    return np.array([min(one, _LARGEST) for one in flat], np.int64)


def _called(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
