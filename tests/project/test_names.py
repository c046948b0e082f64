"""Names of modules and classes: one word per concept, and nouns that say what is inside."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("calibrators", "calibrd", "service")
MODULES = [
    path
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
    if "migrations" not in path.parts
]
FOLDERS = sorted({path.parent for path in MODULES})
MAX_MODULES = 14
# one file for each method, loss, metric and page: they are found by scanning, or listed once
COLLECTIONS = {
    "calibrators/methods",
    "calibrators/losses",
    "calibrators/metrics",
    "service/web/pages",
}
# terms of the field or of computing, not verbs
TERMS = {
    "_resampling",
    "_sorted",
    "binning",
    "correctness_ranking",
    "distributed",
    "feature_clipping",
    "fitting",
    "grouping",
    "housekeeping",
    "label_smoothing",
    "lightning",
    "online_label_smoothing",
    "paging",
    "reporting",
    "rounding",
    "segmented",
    "serving",
    "templating",
    "training",
}
ENDINGS = re.compile(r"(ings?|ers?|eds?|es|s|ions?)$")
# names that used to be ambiguous; each now has at most one meaning
ONCE = ("ReceivedRequest", "Segments", "Observed", "Rows", "Entry")


def names_in(folder: Path) -> list[str]:
    inner = [one.name for one in folder.iterdir() if (one / "__init__.py").exists()]
    return [path.stem for path in MODULES if path.parent == folder] + inner


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda one: str(one.relative_to(ROOT)))
def test_no_module_is_named_by_a_gerund_or_participle(folder: Path) -> None:
    verbs = [name for name in names_in(folder) if re.search(r"(ing|ed)$", name)]
    assert set(verbs) <= TERMS


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda one: str(one.relative_to(ROOT)))
def test_no_two_modules_of_a_folder_differ_by_their_ending_alone(folder: Path) -> None:
    alike = defaultdict(list)
    for name in names_in(folder):
        alike[ENDINGS.sub("", name)].append(name)
    assert not [names for names in alike.values() if len(names) > 1]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda one: str(one.relative_to(ROOT)))
def test_no_folder_holds_too_many_modules(folder: Path) -> None:
    if str(folder.relative_to(ROOT)) in COLLECTIONS:
        return
    modules = [path for path in MODULES if path.parent == folder and path.stem != "__init__"]
    assert len(modules) <= MAX_MODULES


@pytest.mark.parametrize("name", ONCE)
def test_a_class_name_means_one_thing(name: str) -> None:
    found = [
        path
        for path in MODULES
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and node.name == name
    ]
    assert len(found) <= 1
