"""Print the requirements in pyproject.toml: its dependencies, and those of the extras given.

The images install these before any source is copied, so that an image with changed code builds
quickly.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def requirements(project: Path, extras: list[str]) -> list[str]:
    """Return the requirements, one line each, in the format of pip."""
    table = tomllib.loads(project.read_text())["project"]
    optional = table["optional-dependencies"]
    return [*table["dependencies"], *(one for extra in extras for one in optional[extra])]


if __name__ == "__main__":
    sys.stdout.write("\n".join(requirements(Path("pyproject.toml"), sys.argv[1:])) + "\n")
