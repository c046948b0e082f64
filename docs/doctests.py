"""Griffe extension: show the doctests of a docstring as code."""

from __future__ import annotations

import re
from typing import Any

import griffe

# from a prompt to the next blank line
_EXAMPLE = re.compile(r"^>>> .*?(?=^\s*$|\Z)", re.M | re.S)


class Doctests(griffe.Extension):
    """Put doctests between fences; without a section heading they would be read as quotes."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of an object that was loaded."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """Return a docstring with its doctests between fences."""
    return _EXAMPLE.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", text).rstrip()
