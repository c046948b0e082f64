"""The rules for names of calibrators, aliases, workspaces and tags, and for texts of people."""

from __future__ import annotations

import re
import unicodedata

from service.errors import Invalid

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
RULE = "1 to 64 of a-z, 0-9, '.', '_' and '-', beginning with a letter or digit"

# control characters, surrogates, separators of lines, and what changes the direction of text
UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
# joiners and marks that some scripts and emoji need
HARMLESS = "\u00ad\u200c\u200d\u200e\u200f"


def is_readable(text: str, *, lines: bool = False) -> bool:
    """Return whether a text holds only what a terminal and a page show as it is.

    With ``lines`` it may have several, and tabs.

    >>> is_readable("two\\nlines"), is_readable("two\\nlines", lines=True), is_readable("\\x1b[31m")
    (False, True, False)
    """
    kept = HARMLESS + ("\n\t" if lines else "")
    text = text.replace("\r\n", "\n")  # as forms of browsers send them
    return not any(unicodedata.category(one) in UNSEEN for one in set(text) - set(kept))


def check_name(name: str, what: str) -> str:
    """The name, if it keeps the rule."""
    if not NAME.fullmatch(name):
        raise Invalid("bad_name", f"the name of {what} must be {RULE}")
    return name


def check_alias(name: str) -> str:
    """The alias, if it keeps the rule and cannot be taken for a version's number."""
    if name.isdigit():
        raise Invalid("bad_name", "an alias must not be all digits: those are version numbers")
    return check_name(name, "an alias")
