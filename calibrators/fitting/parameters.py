"""Check the fields of recipes against their annotations.

A field declares its own rule, as in ``steps: Annotated[int, Ge(1)] = 300``. The service derives its
JSON schema from the same annotation.
"""

from __future__ import annotations

import reprlib
import sys
from dataclasses import fields
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
from annotated_types import BaseMetadata, Ge, Gt, Interval, Le, Lt

from calibrators.errors import ParameterError


@cache
def field_hints(owner: type) -> dict[str, Any]:
    """Return the annotated types of a dataclass's fields by name."""
    hints = get_type_hints(owner, include_extras=True)
    return {field.name: hints[field.name] for field in fields(owner)}


def check_fields(recipe: Any) -> None:
    """Raise a ParameterError that names the field, the rule and the value if a field is invalid."""
    for name, hint in field_hints(recipe.__class__).items():
        value = getattr(recipe, name)
        if isinstance(value, np.generic):  # for example, from a loop over np.arange
            value = value.item()
            object.__setattr__(recipe, name, value)
        rule = broken_rule(hint, value)
        if rule is not None:
            raise ParameterError(
                "bad_parameter",
                f"{type(recipe).__name__}.{name} must be {rule}, got {reprlib.repr(value)}",
            )


def broken_rule(hint: Any, value: Any) -> str | None:
    """Return the first rule of an annotation that a value violates, in words; None if valid."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        rule = broken_rule(arguments[0], value)
        return rule if rule is not None else _broken_bound(arguments[1:], value)
    if origin is Literal:
        return None if value in arguments else "one of " + ", ".join(map(repr, arguments))
    if origin in (Union, UnionType):
        rules = [broken_rule(one, value) for one in arguments]
        return None if None in rules else " or ".join(filter(None, rules))
    if hint is NoneType:
        return None if value is None else "None"
    if origin is tuple:
        if not isinstance(value, tuple):
            return 'a tuple (in JSON a list, ["a", "b"])'
        return next(filter(None, (broken_rule(arguments[0], one) for one in value)), None)
    if hint is float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        ok = number and abs(value) <= sys.float_info.max
        return None if ok else "a finite number"
    if hint is int:
        return None if isinstance(value, int) and not isinstance(value, bool) else "an integer"
    kind = origin or hint
    if isinstance(kind, type):
        return None if isinstance(value, kind) else f"a {kind.__name__}"
    raise TypeError(f"unsupported annotation {hint!r}")


def _broken_bound(constraints: tuple[Any, ...], value: Any) -> str | None:
    for constraint in constraints:
        bounds = list(constraint) if isinstance(constraint, Interval) else [constraint]
        for bound in bounds:
            match bound:
                case Ge(ge=limit) if value < limit:
                    return f"at least {limit}"
                case Gt(gt=limit) if value <= limit:
                    return f"greater than {limit}"
                case Le(le=limit) if value > limit:
                    return f"at most {limit}"
                case Lt(lt=limit) if value >= limit:
                    return f"less than {limit}"
                case Ge() | Gt() | Le() | Lt():
                    pass
                case BaseMetadata():
                    raise TypeError(f"unsupported constraint {bound!r}")
    return None
