"""Lookup of fields in a request's JSON by path, so that errors can name the path."""

from __future__ import annotations

import reprlib
from typing import Any, TypeVar

from service.errors import Malformed

NOUNS = {
    dict: "an object",
    list: "a list",
    str: "a string",
    int: "an integer",
    bool: "true or false",
}

Value = TypeVar("Value")


def optional(owner: dict[str, Any], path: str, kind: type[Value]) -> Value | None:
    """Return the value at the end of a path; None if it is absent or null."""
    value = owner.get(path.rpartition(".")[2])
    if value is not None and type(value) is not kind:
        raise Malformed("bad_field", f"{path} must be {NOUNS[kind]}, got {_shown(value)}")
    return value


def required(owner: dict[str, Any], path: str, kind: type[Value]) -> Value:
    """Return the value at the end of a path; raise Malformed if it is missing."""
    value = optional(owner, path, kind)
    if value is None:
        raise Malformed("missing_field", f"{path} is missing: it must be {NOUNS[kind]}")
    return value


def parameters(owner: dict[str, Any], path: str) -> dict[str, Any]:
    """Return the parameters of a tensor or request; the protocol allows unknown parameters."""
    found = optional(owner, path, dict) or {}
    for name in ("shared_memory_region", "classification"):
        if name in found:
            raise Malformed(
                "not_offered", f"{path}.{name} belongs to an extension that is not supported"
            )
    return found


def _shown(value: Any) -> str:
    # reprlib would sort all keys of an object just to show the first few
    return NOUNS[dict] if isinstance(value, dict) else reprlib.repr(value)
