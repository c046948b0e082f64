"""Conversion of frozen dataclasses to plain JSON and back, based on their annotations."""

from __future__ import annotations

import math
import types
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache, partial
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

Made = TypeVar("Made")

DIGITS = 6
PLAIN = (str, int, bool, type(None))


def to_plain(value: Any) -> Any:
    """Return dataclasses, enums, tuples and numpy values as plain JSON; NaN and inf become None.

    >>> to_plain({"a": (1, float("nan")), "b": np.float32(0.5)})
    {'a': [1, None], 'b': 0.5}
    """
    kind = type(value)
    if kind is float:  # the most frequent type
        return value if math.isfinite(value) else None
    if kind in PLAIN:
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: to_plain(getattr(value, one.name)) for one in fields(value)}
    match value:
        case dict():
            return {str(key): to_plain(one) for key, one in value.items()}
        case list() | tuple():
            return [to_plain(one) for one in value]
        case Enum():
            return value.value
        case np.generic() | np.ndarray():
            return to_plain(value.tolist())
    return value


def from_plain(kind: type[Made], value: Any) -> Made:
    """Build a dataclass from the output of ``to_plain``; raise ValueError or TypeError if invalid.

    >>> from calibrators.metrics import NoiseFloor
    >>> from_plain(NoiseFloor, {"mean": 0.01, "quantile95": 0.02})
    NoiseFloor(mean=0.01, quantile95=0.02)
    """
    made: Made = _read(kind, value)
    return made


def rounded(value: float) -> float:
    """Round a value to six significant digits, which saves space and is enough for any chart.

    >>> rounded(0.123456789), rounded(1 / 3e5)
    (0.123457, 3.33333e-06)
    """
    return float(f"{value:.{DIGITS}g}")


def _read(hint: Any, value: Any) -> Any:
    return _reader(hint)(value)


@cache
def _reader(hint: Any) -> Callable[[Any], Any]:
    """Return the reader for an annotation; cached because a report has thousands of values."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return lambda value: None if value is None else _read(arguments[0], value)
    if origin is tuple:
        return lambda value: tuple(map(_reader(arguments[0]), value))
    if origin is dict:
        return lambda value: {key: _read(arguments[1], one) for key, one in value.items()}
    if is_dataclass(hint) and isinstance(hint, type):
        return partial(_read_fields, hint)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint
    if hint in (int, float, str):
        return partial(_checked, hint, (int, float) if hint is float else hint)
    return lambda value: value


def _read_fields(kind: type, value: Any) -> Any:
    hints = _hints(kind)
    return kind(**{name: _read(hints.get(name, Any), one) for name, one in value.items()})


def _checked(kind: type, allowed: Any, value: Any) -> Any:
    if not isinstance(value, allowed):
        raise TypeError(f"expected {kind.__name__}, got {value!r}")
    return value


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)
