"""Methods by name, found by scanning ``calibrators/methods``; to add a method, add a file there."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import fields
from functools import cache
from typing import Any

from calibrators import methods
from calibrators.base import CalibrationMap, Calibrator
from calibrators.errors import LONGEST_SHOWN, ParameterError, shown
from calibrators.scan import classes_of

DEFAULT_METHOD = "auto"
"""The method that the SDK, command line, scikit-learn API and service use by default."""


@cache
def all_methods() -> dict[str, type[Calibrator]]:
    """Return the recipe classes of all methods by name.

    >>> all_methods()["temperature"].reference
    'Guo et al., ICML 2017'
    """
    found = classes_of(methods, Calibrator)  # type: ignore[type-abstract]
    return {recipe.name: recipe for recipe in found}


@cache
def all_maps() -> dict[str, type[CalibrationMap]]:
    """Return all map classes by the names of their methods."""
    found = classes_of(methods, CalibrationMap)  # type: ignore[type-abstract]
    return {kind.method: kind for kind in found}


def keeps_class(method: str) -> bool | None:
    """Return whether a method's maps keep the predicted class; None if this depends on the map.

    >>> keeps_class("temperature"), keeps_class("auto")
    (True, None)
    """
    map_type = all_maps().get(method)
    return None if map_type is None else map_type.keeps_class


def get_method(name: str) -> type[Calibrator]:
    """Return the recipe class of a method; if it is unknown, raise an error with a suggestion.

    >>> get_method("temprature")
    Traceback (most recent call last):
    calibrators.errors.ParameterError: there is no method 'temprature'; did you mean 'temperature'?
    """
    known = all_methods()
    if name in known:
        return known[name]
    hint = _hint(name, known, f"known methods: {', '.join(sorted(known))}")
    raise ParameterError("unknown_method", f"there is no method {shown(name)}; {hint}")


def make_recipe(method: str, params: Mapping[str, Any], *, seed: int = 0) -> Calibrator:
    """Build a recipe from a method's name and parameters, as passed to the service and the SDK.

    ``seed`` is used if the recipe has a parameter of that name and ``params`` does not set it.
    Lists become tuples.

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
            hint = _hint(name, known, f"it has {', '.join(known)}" if known else "it has none")
            raise ParameterError(
                "unknown_parameter", f"{method} has no parameter {shown(name)}; {hint}"
            )
    values = {name: _frozen(value) for name, value in params.items()}
    if "seed" in known and values.setdefault("seed", seed) != seed and seed != 0:
        raise ParameterError(
            "two_seeds", "the parameters and the fit have different seeds: pass only one"
        )
    return recipe(**values)


def _hint(name: str, known: Collection[str], otherwise: str) -> str:
    """Return a suggestion for ``name``, or ``otherwise``; long names are not compared."""
    close = [] if len(name) > LONGEST_SHOWN else difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else otherwise


def _frozen(value: Any) -> Any:
    """Return a list as a tuple, because recipes are immutable, and other values unchanged."""
    return tuple(value) if isinstance(value, list) else value
