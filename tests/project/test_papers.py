"""docs/studies/papers.md lists every numbered item of the papers, and the code it names exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs/studies/papers.md").read_text()
STATES = ("here", "in part", "not done yet", "cannot be had", "no code")
# the last number of each kind; the AdaFocal paper lacks its appendix
NUMBERED = {
    "SECA": {"Eq.": 18, "Table": 7, "Figure": 13},
    "SMART": {"Eq.": 35, "Table": 14, "Figure": 16, "Lemma": 3, "Algorithm": 1},
    "AdaFocal": {"Eq.": 5, "Table": 8, "Figure": 13, "Algorithm": 1},
    "AU": {"Eq.": 36, "Table": 2, "Figure": 3, "Algorithm": 1},
}
AU_APPENDIX = {"Table": 4, "Figure": 6}


class Row(NamedTuple):
    """A row of a table in papers.md."""

    paper: str
    item: str
    what: str
    where: str
    state: str


def rows() -> Iterator[Row]:
    """Return the rows of the papers' tables."""
    for section in re.split(r"^## ", PAGE, flags=re.M)[1:]:
        paper = section.splitlines()[0]
        for line in section.splitlines():
            if line.startswith("| ") and not line.startswith("| item |"):
                yield Row(paper, *(cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]))


ROWS = list(rows())


def numbers(items: list[str], kind: str) -> list[int]:
    """Return the numbers that these cells list for a kind of item, with ranges expanded."""
    found: list[int] = []
    for item in items:
        for listed in re.findall(rf"{re.escape(kind)}s? ((?:\d+(?:, | to )?)+)", item):
            for part in listed.split(", "):
                ends = [int(one) for one in re.findall(r"\d+", part)]
                found += range(ends[0], ends[-1] + 1) if " to " in part else ends
    return found


@pytest.mark.parametrize("paper", NUMBERED)
def test_every_numbered_item_has_a_row(paper: str) -> None:
    items = [row.item for row in ROWS if row.paper == paper and "Appendix, " not in row.item]
    for kind, last in NUMBERED[paper].items():
        assert set(range(1, last + 1)) <= set(numbers(items, kind)), kind


def test_every_numbered_item_of_the_appendix_of_au_has_a_row() -> None:
    items = [row.item for row in ROWS if row.paper == "AU" and "Appendix, " in row.item]
    for kind, last in AU_APPENDIX.items():
        assert sorted(numbers(items, kind)) == list(range(1, last + 1))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.paper}: {row.item}")
def test_no_row_is_empty_and_its_code_exists(row: Row) -> None:
    assert row.item
    assert row.what
    assert row.where
    assert row.state.startswith(STATES)
    quoted = re.findall(r"`([^`]+)`", row.where)
    names = [one for one in quoted if not one.endswith(".py")]
    files = [one for one in quoted if one.endswith(".py")]
    text = ""
    for name in files:
        place = next(one for one in (ROOT / "calibrators" / name, ROOT / name) if one.exists())
        text += place.read_text()
    for name in names:
        assert not files or re.search(rf"\b{re.escape(name.partition('=')[0])}\b", text), name
