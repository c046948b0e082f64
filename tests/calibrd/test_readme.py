"""The blocks of the README run as printed, in an environment made exactly as it says."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from helpers.documents import blocks_of
from helpers.live_service import ROOT, Running
from helpers.wheels import ALONE, run

COPIED = ("calibrd", "calibrators", "examples", "pyproject.toml", "README.md", "LICENSE")
MAX_LINES = 200


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the repository, without what builds and tests left in it."""
    folder = tmp_path_factory.mktemp("checkout")
    left = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=left)
        else:
            shutil.copy(ROOT / name, folder)
    return folder


def test_it_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= MAX_LINES


def test_its_lines_run_as_printed(checkout: Path, service: Running) -> None:
    """In one shell and in the order of the page: install, Python, command line, HTTP."""
    blocks = blocks_of("README.md")
    (install,) = (one.code for one in blocks if re.match(r"python3\.11 -m venv", one.code))
    python = "".join(one.code for one in blocks if one.language == "python")
    shell = "".join(one.code for one in blocks if one.language == "bash")
    (checkout / "first.py").write_text(python)
    script = f"{install}\npython -W error first.py\n{shell}"
    path = ALONE["PATH"].split(":")
    environment = ALONE | {
        "CALIBRD_URL": service.url,
        "PATH": ":".join(one for one in path if ".venv" not in one),  # as a new shell has it
    }
    printed = run("bash", "-euo", "pipefail", "-c", script, cwd=checkout, env=environment)
    assert "improved\n2,000 rows, 10 classes" in printed
    assert "PASS: fashion@production" in printed
    assert (checkout / "report.html").stat().st_size > 10_000
    assert (checkout / "probabilities.npy").exists()
