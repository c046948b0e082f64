"""Discovery of the classes and instances defined in the modules of a package."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from types import ModuleType
from typing import TypeVar

Parent = TypeVar("Parent")


def modules_of(package: ModuleType) -> Iterator[ModuleType]:
    """Import and yield the modules of a package, in the order of their names.

    >>> from calibrators import methods
    >>> [one.__name__ for one in modules_of(methods) if one.__name__.endswith(".ets")]
    ['calibrators.methods.ets']
    """
    for name in sorted(one.name for one in pkgutil.iter_modules(package.__path__)):
        yield importlib.import_module(f"{package.__name__}.{name}")


def classes_of(package: ModuleType, parent: type[Parent]) -> list[type[Parent]]:
    """Return the concrete subclasses of ``parent`` defined in the modules of a package."""
    return [
        member
        for module in modules_of(package)
        for member in vars(module).values()
        if inspect.isclass(member)
        and issubclass(member, parent)
        and not inspect.isabstract(member)
        and member.__module__ == module.__name__
    ]


def instances_of(package: ModuleType, kind: type[Parent]) -> list[Parent]:
    """Return the distinct instances of ``kind`` among the globals of a package's modules."""
    found = {
        id(member): member
        for module in modules_of(package)
        for member in vars(module).values()
        if isinstance(member, kind)
    }
    return list(found.values())
