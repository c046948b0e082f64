"""Wheels of this project, built from a copy of its sources, and new environments for them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from helpers.live_service import ROOT

# what a build leaves in the repository would count as installed if the repository were on the path
ALONE = {**os.environ, "PYTHONPATH": ""}


def run(*command: object, **options: Any) -> str:
    """Run a command that must succeed; return its output."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


def built(folder: Path, *projects: str) -> list[Path]:
    """Build the wheels of these projects, given by folder, in a copy of the repository."""
    for name in ("calibrd", "calibrators", "service", "distributions"):
        left = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=left)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    flags = ("--no-deps", "--no-build-isolation", "-w", "dist")
    run(*pip(Path(sys.executable)), "wheel", "-q", *projects, *flags, cwd=folder, env=ALONE)
    return sorted((folder / "dist").glob("*.whl"))


def installed(folder: Path, *wheels: Path) -> Path:
    """Create a virtual environment with wheels and their dependencies; return its interpreter."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin/python"
    run(*pip(python), "install", "-q", "-c", ROOT / "constraints.txt", *wheels, env=ALONE)
    return python


def installed_with_links(folder: Path, *wheels: Path) -> Path:
    """Do the same with links to this environment's packages for all dependencies.

    Only direct and indirect dependencies of the wheels are linked. It takes 3 seconds, not 30.
    """
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin/python"
    run(*pip(python), "install", "-q", "--no-deps", "--no-index", *wheels, env=ALONE)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    for one in _dependencies(packages):
        for name in {file.parts[0] for file in one.files or ()} - {"..", "__pycache__"}:
            if not (packages / name).exists():
                (packages / name).symlink_to(str(one.locate_file(name)))
    run(*pip(python), "check", env=ALONE)
    return python


def _dependencies(packages: Path) -> list[metadata.Distribution]:
    """Return the direct and indirect dependencies of a folder's distributions, from here."""
    own = {canonicalize_name(one.name): one for one in metadata.distributions(path=[str(packages)])}
    waiting = [(name, "") for name in own]
    seen: set[tuple[str, str]] = set()
    while waiting:
        name, extra = one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        found = own.get(name) or metadata.distribution(name)
        for needed in map(Requirement, found.requires or ()):
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                waiting += [(canonicalize_name(needed.name), one) for one in ("", *needed.extras)]
    return [metadata.distribution(name) for name in {name for name, _ in seen} - {*own}]


def pip(python: Path) -> tuple[object, ...]:
    """Run this environment's pip on another environment, which then needs no pip of its own."""
    return (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")


def outside(folder: Path) -> dict[str, Any]:
    """Return options for a process in a folder that does not have the repository on its path."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return {"cwd": folder, "env": kept | {"CALIBRD_CACHE_DIR": str(folder / "cache")}}
