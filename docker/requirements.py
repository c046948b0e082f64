"""Print the requirements of pyproject.toml: its own, and those of the extras that are named.

The images install them before any source is copied, so that a change of the code is built quickly.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def requirements(project: Path, extras: list[str]) -> list[str]:
    """Return the lines for pip."""
    asked = tomllib.loads(project.read_text())["project"]
    optional = asked["optional-dependencies"]
    return [*asked["dependencies"], *(one for extra in extras for one in optional[extra])]


if __name__ == "__main__":
    sys.stdout.write("\n".join(requirements(Path("pyproject.toml"), sys.argv[1:])) + "\n")
