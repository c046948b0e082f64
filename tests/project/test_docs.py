"""Files, targets, fields and metrics named in the documentation exist."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from calibrators.report.report import Report

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text()


def test_the_guide_to_reports_lists_every_field() -> None:
    guide = (ROOT / "docs/reference/reports.md").read_text()
    for field in fields(Report):
        assert f"`{field.name}`" in guide


def test_every_make_target_exists() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M)
    named = set(re.findall(r"make ([a-z-]+)", README))
    assert named <= set(targets)


def test_links_and_figures_exist() -> None:
    for link in re.findall(r"\]\(([^)]+)\)", README):
        assert (ROOT / link).exists(), link
    assert not re.search(r"\b(RESULT|SUMMARY|METHODS|VERDICTS)\b", README)


PAGES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))
SOURCES = "".join(path.read_text() for path in (ROOT / "service").rglob("*.py"))


def pages_of_the_site(node: object) -> set[str]:
    """Return the pages that the navigation of the site names, relative to docs/."""
    if isinstance(node, dict | list):
        below = node.values() if isinstance(node, dict) else node
        return set().union(*map(pages_of_the_site, below))
    return {str(node)}


# only `nav`, because tags of mkdocs plugins are not plain YAML
NAVIGATION = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]
IN_NAVIGATION = pages_of_the_site(yaml.safe_load(NAVIGATION))


def test_the_navigation_names_every_page() -> None:
    assert {page.removeprefix("docs/") for page in PAGES} <= IN_NAVIGATION


@pytest.mark.parametrize("page", PAGES)
def test_pages_name_files_and_metrics_that_exist(page: str) -> None:
    text = re.sub(r"^ *```.*?^ *```$", "", (ROOT / page).read_text(), flags=re.M | re.S)
    for link in re.findall(r"\]\(([^)#]+)(?:#[\w-]+)?\)", text):
        if not link.startswith("https://"):
            target = (ROOT / page).parent.joinpath(link).resolve()
            # `mkdocs build --strict` finds pages of the navigation that are missing
            assert target.exists() or str(target.relative_to(ROOT / "docs")) in IN_NAVIGATION, link
    for metric in re.findall(r"\bcalibrd_(?!process_)[a-z_]+", text):
        assert f'"{metric.removesuffix("_total")}"' in SOURCES
