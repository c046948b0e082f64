"""The README's code runs as pasted, and its tables are true."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from calibrators import all_methods
from calibrators.metrics.catalogue import all_metrics
from calibrators.registry import all_maps
from calibrators.report.report import Report
from calibrators.report.verdict import Verdict
from service.datasets.formats import all_codecs

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text()


def method_rows() -> list[str]:
    rows = []
    for name, recipe in all_methods().items():
        parameters = ", ".join(f"`{field.name}`" for field in fields(recipe)) or "none"
        kept = "the winner's" if name not in all_maps() else all_maps()[name].keeps_class
        text = {True: "yes", False: "no", None: "its base's"}.get(kept, str(kept))
        rows.append(f"| `{name}` | {recipe.summary} | {parameters} | {text} | {recipe.cost} |")
    return rows


def verdict_rows() -> list[str]:
    return [f"| `{verdict}` | {verdict.meaning} |" for verdict in Verdict]


@pytest.mark.parametrize("row", method_rows() + verdict_rows())
def test_tables_are_true(row: str) -> None:
    assert row in README.splitlines()


def test_no_other_methods_or_verdicts_are_listed() -> None:
    listed = [line for line in README.splitlines() if line.startswith("| `") and "make" not in line]
    assert sorted(listed) == sorted(method_rows() + verdict_rows())


def test_the_guide_to_reports_lists_every_metric_and_field() -> None:
    guide = (ROOT / "docs/reports.md").read_text()
    for metric in all_metrics().values():
        interval = "no" if metric.interval is None else "yes"
        row = f"| `{metric.name}` | {metric.title} | {interval} | {metric.meaning} |"
        assert row in guide.splitlines()
    for field in fields(Report):
        assert f"`{field.name}`" in guide


def test_the_guide_to_the_service_lists_every_format() -> None:
    rows = []
    for codec in all_codecs().values():
        own, *others = (f"`{one}`" for one in codec.media_types)
        also = f" (or {', '.join(others)})" if others else ""
        rows.append(f"| {codec.format} | {own}{also} | {codec.holds} |")
    table = (ROOT / "docs/service.md").read_text().partition("| format | media type | holds |")[2]
    assert table.partition("\n\n")[0].splitlines()[2:] == rows


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
