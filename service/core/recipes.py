"""Recipes from what clients send: a method's name and its parameters."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from calibrators import Calibrator, get_method
from calibrators.errors import ParameterError


def make_recipe(method: str, params: Mapping[str, Any], *, seed: int = 0) -> Calibrator:
    """The recipe of a method; ``seed`` goes into its own seed, if it has one.

    >>> make_recipe("smart", {"steps": 100}, seed=7).seed
    7
    >>> make_recipe("smart", {"stps": 100})
    Traceback (most recent call last):
    calibrators.errors.ParameterError: smart has no parameter 'stps'; did you mean 'steps'?
    """
    recipe = get_method(method)
    known = [field.name for field in fields(recipe)]
    for name in params:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            has = f"it has: {', '.join(known)}" if known else "it has none"
            hint = f"did you mean {close[0]!r}?" if close else has
            raise ParameterError(
                "unknown_parameter", f"{method} has no parameter {name[:80]!r}; {hint}"
            )
    given = {name: _frozen(value) for name, value in params.items()}
    if "seed" in known and given.setdefault("seed", seed) != seed:
        raise ParameterError(
            "two_seeds", "the seed among the parameters is another than the fit's: give it once"
        )
    return recipe(**given)


def _frozen(value: Any) -> Any:
    """A list as a tuple: recipes are immutable."""
    return tuple(value) if isinstance(value, list) else value
