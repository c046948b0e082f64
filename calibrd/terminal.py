"""Escape characters in untrusted text that would move a terminal's cursor or reorder its text."""

from __future__ import annotations

import re

# spaces of any width are shown as they are
_SPACES = frozenset("\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
                    "\u202f\u205f\u3000")  # fmt: skip
_SUSPECT = re.compile(r"[^\x20-\x7e]")


def printable(text: object, *, lines: bool = False) -> str:
    r"""Return text with control characters, bidirectional overrides and similar characters escaped.

    Characters are escaped as in Python; with ``lines``, newlines and tabs are kept.

    >>> print(printable("a\x1b[31mb\u202e"), printable("x\ny\r"))
    a\x1b[31mb\u202e x\ny\r
    """
    allowed = "\n\t" if lines else ""
    return _SUSPECT.sub(lambda found: _escaped(found[0], allowed), str(text))


def json_safe(text: str) -> str:
    r"""Return JSON text with JSON escapes for all characters that ``printable`` escapes.

    >>> json_safe('["\x9b\u202e"]')
    '["\\u009b\\u202e"]'
    """
    return _SUSPECT.sub(lambda found: _as_json(found[0]), text)


def _is_shown(character: str) -> bool:
    return character.isprintable() or character in _SPACES


def _escaped(character: str, allowed: str) -> str:
    if _is_shown(character) or character in allowed:
        return character
    return character.encode("unicode_escape", "surrogatepass").decode()


def _as_json(character: str) -> str:
    if _is_shown(character) or character in "\n":
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[n]:02x}{units[n + 1]:02x}" for n in range(0, len(units), 2))
