"""Patterns of names and ids, which are checked before use in paths and URLs."""

from __future__ import annotations

import re
from typing import NewType

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
# ids of fits, datasets, keys and sessions
ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
SHA256 = re.compile(r"[0-9a-f]{64}")

Name = NewType("Name", str)
Id = NewType("Id", str)
Sha256 = NewType("Sha256", str)

RULES = {Name: NAME, Id: ID, Sha256: SHA256}
