"""The documents name files, targets, fields and metrics that exist."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from calibrators.report.report import Report

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text()


def test_the_guide_to_reports_lists_every_field() -> None:
    guide = (ROOT / "docs/reports.md").read_text()
    for field in fields(Report):
        assert f"`{field.name}`" in guide


def test_every_make_target_is_there() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M)
    named = set(re.findall(r"make ([a-z-]+)", README))
    assert named <= set(targets)


def test_links_and_figures_are_there() -> None:
    for link in re.findall(r"\]\(([^)]+)\)", README):
        assert (ROOT / link).exists(), link
    assert not re.search(r"\b(RESULT|SUMMARY|METHODS|VERDICTS)\b", README)


@pytest.mark.parametrize("name", ["deploying", "reports", "scaling", "sdk", "segments", "training"])
def test_guides_name_files_and_metrics_that_exist(name: str) -> None:
    guide = (ROOT / f"docs/{name}.md").read_text()
    for link in re.findall(r"\]\(([^)#]+)(?:#[\w-]+)?\)", guide):
        assert (ROOT / "docs" / link).exists(), link
    sources = "".join(path.read_text() for path in (ROOT / "service").rglob("*.py"))
    for metric in re.findall(r"\bcalibrd_[a-z_]+", guide):
        assert f'"{metric}"' in sources
