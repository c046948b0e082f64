"""Code blocks in documents."""

from __future__ import annotations

import re
from typing import NamedTuple

from helpers.live_service import ROOT


class Block(NamedTuple):
    """A code block and the line at which it begins."""

    language: str
    code: str
    line: int


def blocks_of(document: str) -> list[Block]:
    text = (ROOT / document).read_text()
    found = re.finditer(r"^ *```([^`\n]*)\n(.*?)^ *```$", text, re.M | re.S)
    return [Block(one[1], one[2], text[: one.start()].count("\n") + 2) for one in found]
