"""Every installed package is pinned, at the installed version."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"
# what installs, and what is installed from here
OWN = {"pip", "calibrd", "calibrd-server"}


def name_of(text: str) -> str:
    """Return a package name in normalised form."""
    return re.sub(r"[-_.]+", "-", text).lower()


def pins() -> dict[str, str]:
    lines = [line.partition("#")[0].strip() for line in CONSTRAINTS.read_text().splitlines()]
    found = [line.partition("==") for line in lines if line]
    return {name_of(name): version for name, _, version in found}


def test_every_line_is_an_exact_pin() -> None:
    lines = [line.partition("#")[0].strip() for line in CONSTRAINTS.read_text().splitlines()]
    assert [one for one in filter(None, lines) if not re.fullmatch(r"[\w.-]+==[\w.+]+", one)] == []
    assert len(pins()) == len([one for one in lines if one])


def test_the_environment_matches_the_pins() -> None:
    pinned = pins()
    installed = {name_of(one.metadata["Name"]): one.version for one in metadata.distributions()}
    others = {name: version for name, version in installed.items() if name not in OWN}
    assert sorted(others.keys() - pinned.keys()) == [], "not pinned"
    # a local build, such as torch's for the CPU, is of the pinned version
    differ = {name: one for name, one in others.items() if one.partition("+")[0] != pinned[name]}
    assert differ == {}
