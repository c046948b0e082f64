"""Environment variables: those of settings and of the SDK, and no others."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

from helpers.live_service import ROOT

from service.settings import PREFIX, SDK_VARIABLES, Settings, unknown_variables

NAME = re.compile(r"CALIBRD_[A-Z_]*[A-Z]")


def read_by(package: str) -> set[str]:
    """Return the variables that appear as whole strings in the code of a package."""
    found = set()
    for path in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= {node.value} if NAME.fullmatch(node.value) else set()
    return found


def test_the_variables_of_the_sdk_are_those_that_it_reads() -> None:
    assert read_by("calibrd") | read_by("calibrators") == set(SDK_VARIABLES)


def test_the_docs_name_every_variable_of_the_sdk_and_none_that_is_not_read() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    named = {name for page in pages for name in NAME.findall(page.read_text(encoding="utf-8"))}
    settings = {PREFIX + name.upper() for name in Settings.model_fields}
    of_tests = {name for name in named if name.startswith(f"{PREFIX}TEST_")}
    assert named - settings - of_tests == set(SDK_VARIABLES)


def test_no_documented_variable_is_warned_of(tmp_path: Path) -> None:
    given = dict.fromkeys([*SDK_VARIABLES, "CALIBRD_DATADIR"], str(tmp_path))
    assert unknown_variables(given) == {"CALIBRD_DATADIR": "CALIBRD_DATA_DIR"}
    words = ["migrate", "--data-dir", str(tmp_path / "data")]
    done = subprocess.run(
        [sys.executable, "-m", "service", *words],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", **given},
    )
    assert done.returncode == 0, done.stderr
    warned = [line for line in done.stderr.splitlines() if "is not a setting" in line]
    assert warned == ["warning: CALIBRD_DATADIR is not a setting: did you mean CALIBRD_DATA_DIR?"]
