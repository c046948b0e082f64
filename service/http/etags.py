"""Conditional requests."""

from __future__ import annotations


def is_known(if_none_match: str | None, tag: str) -> bool:
    """Return whether an If-None-Match header matches this ETag.

    >>> is_known('"a", W/"b"', "b"), is_known("*", "c"), is_known(None, "c")
    (True, True, False)
    """
    if if_none_match is None:
        return False
    known = [one.strip().removeprefix("W/") for one in if_none_match.split(",")]
    return "*" in known or f'"{tag}"' in known
