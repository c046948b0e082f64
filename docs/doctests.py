"""Griffe extension: show the doctests of a docstring as code, and results of SDK calls."""

from __future__ import annotations

import re
from typing import Any

import griffe

# from the first prompt to the next blank line
_EXAMPLE = re.compile(r"^>>> .*?(?=^\s*$|\Z)", re.M | re.S)


class Doctests(griffe.Extension):
    """Put doctests in code fences; without a section heading they would become block quotes."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of a loaded object, and what a call of the SDK returns."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
        returns = getattr(obj, "returns", None)
        if isinstance(returns, griffe.ExprSubscript) and str(returns.left) == "Flow":
            obj.returns = returns.slice  # what `call` makes of it


def fenced(text: str) -> str:
    """Return a docstring with its doctests in code fences."""
    return _EXAMPLE.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", text).rstrip()
