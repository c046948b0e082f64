"""The rule for names of calibrators, aliases, workspaces and tags."""

from __future__ import annotations

import re

from service.errors import Invalid

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
RULE = "1 to 64 of a-z, 0-9, '.', '_' and '-', beginning with a letter or digit"


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
