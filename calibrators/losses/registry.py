"""Losses by name, found by scanning this folder; to add a loss, add a file here."""

from __future__ import annotations

import difflib
import importlib
import inspect
from functools import cache
from typing import Any

from torch.nn import Module

from calibrators.errors import ParameterError
from calibrators.losses.base import Loss
from calibrators.scan import classes_of


@cache
def all_losses() -> dict[str, type[Loss]]:
    """Return all loss classes by name."""
    package = importlib.import_module(__package__ or "")
    found = classes_of(package, Loss)  # type: ignore[type-abstract]
    return {one.name: one for one in found if "name" in vars(one)}


def make_loss(name: str, **params: Any) -> Loss:
    """Create a loss from its name and parameters.

    >>> make_loss("focal", gamma=2.0).gamma
    2.0
    >>> make_loss("focl")
    Traceback (most recent call last):
    calibrators.errors.ParameterError: there is no loss 'focl'; did you mean 'focal'?
    """
    known = all_losses()
    if not isinstance(name, str) or name not in known:
        raise ParameterError("unknown_loss", f"there is no loss {name!r}; {_hint(name, known)}")
    fields = known[name].hyper_parameters()
    for one in params:
        if one not in fields:
            raise ParameterError(
                "unknown_parameter", f"{name} has no parameter {one!r}; {_hint(one, fields)}"
            )
        if isinstance(params[one], Module):
            raise ParameterError("bad_parameter", f"{one} must be a plain value, not a module")
    if missing := needed(name) - params.keys():
        raise ParameterError("missing_parameter", f"{name} needs {', '.join(sorted(missing))}=...")
    return known[name](**params)


def needed(name: str) -> frozenset[str]:
    """Return the names of a loss's parameters that have no default, such as sizes.

    >>> sorted(needed("online_label_smoothing"))
    ['classes']
    """
    parameters = inspect.signature(all_losses()[name]).parameters.values()
    return frozenset(
        one.name
        for one in parameters
        if one.default is one.empty and one.kind is not one.VAR_KEYWORD
    )


def _hint(name: str, known: Any) -> str:
    close = difflib.get_close_matches(str(name), known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(known))}"
