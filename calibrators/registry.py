"""Methods by name, found by scanning ``calibrators/methods``: adding one is adding a file."""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
from functools import cache
from typing import TypeVar

from calibrators import methods
from calibrators.base import CalibrationMap, Calibrator
from calibrators.errors import ParameterError

Parent = TypeVar("Parent")


@cache
def all_methods() -> dict[str, type[Calibrator]]:
    """Every method's recipe class by name.

    >>> sorted(all_methods())
    ['auto', 'identity', 'smart', 'temperature']
    """
    return {recipe.name: recipe for recipe in _members(Calibrator)}  # type: ignore[type-abstract]


@cache
def all_maps() -> dict[str, type[CalibrationMap]]:
    """Every map class by the name of its method."""
    return {kind.method: kind for kind in _members(CalibrationMap)}  # type: ignore[type-abstract]


def get_method(name: str) -> type[Calibrator]:
    """The recipe class of a method; an error that lists the known ones if there is none.

    >>> get_method("temprature")
    Traceback (most recent call last):
    calibrators.errors.ParameterError: there is no method 'temprature'; did you mean 'temperature'?
    """
    found = all_methods()
    if name in found:
        return found[name]
    close = difflib.get_close_matches(name, found, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known methods: {', '.join(sorted(found))}"
    raise ParameterError("unknown_method", f"there is no method {name!r}; {hint}")


def _members(parent: type[Parent]) -> list[type[Parent]]:
    """The concrete subclasses that the modules of ``methods`` define."""
    found: list[type[Parent]] = []
    for module_info in sorted(pkgutil.iter_modules(methods.__path__), key=lambda one: one.name):
        module = importlib.import_module(f"{methods.__name__}.{module_info.name}")
        found += [
            member
            for member in vars(module).values()
            if inspect.isclass(member)
            and issubclass(member, parent)
            and not inspect.isabstract(member)
            and member.__module__ == module.__name__
        ]
    return found
