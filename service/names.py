"""Rules for names of calibrators, aliases, workspaces and tags, and for free text."""

from __future__ import annotations

import re
import unicodedata

from service.errors import Invalid

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
RULE = "1 to 64 characters of a-z, 0-9, '.', '_' and '-', starting with a letter or digit"

# control characters, surrogates, line separators, and marks that change the text direction
INVISIBLE = ("Cc", "Cf", "Cs", "Zl", "Zp")
# joiners and marks that some scripts and emoji need
HARMLESS = "\u00ad\u200c\u200d\u200e\u200f"


def is_readable(text: str, *, lines: bool = False) -> bool:
    r"""Return whether a string contains only characters that terminals and pages show unchanged.

    With ``lines``, line breaks and tabs are allowed.

    >>> is_readable("two\nlines"), is_readable("two\nlines", lines=True), is_readable("\x1b[31m")
    (False, True, False)
    """
    allowed = HARMLESS + ("\n\t" if lines else "")
    text = text.replace("\r\n", "\n")  # browsers send forms with CRLF
    return not any(unicodedata.category(one) in INVISIBLE for one in set(text) - set(allowed))


def check_name(name: str, what: str) -> str:
    """Return the name; raise Invalid if it does not follow the rule."""
    if not NAME.fullmatch(name):
        raise Invalid("bad_name", f"the name of {what} must be {RULE}")
    return name


def check_alias(name: str) -> str:
    """Return the alias; raise Invalid if it is not a valid name or looks like a version number."""
    if name.isdigit():
        raise Invalid(
            "bad_name", "an alias must not be all digits, because such names are version numbers"
        )
    return check_name(name, "an alias")
