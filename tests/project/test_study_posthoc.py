"""The studies of post-hoc methods and of the rules of `auto`, on small synthetic sets."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.samples import draw

from calibrators import all_methods
from calibrators.registry import keeps_class

STUDIES = Path(__file__).parent.parent.parent / "studies"


@pytest.fixture(scope="module", autouse=True)
def studies() -> Iterator[None]:
    sys.path.insert(0, str(STUDIES))
    yield
    sys.path.remove(str(STUDIES))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with two sets whose maps are fitted on another file; one set is shifted."""
    place = tmp_path / "sets"
    place.mkdir()
    for name, seed, factor in (("a__cal", 0, 1), ("a__test", 1, 1), ("a__shift_up", 2, 2)):
        data = draw(240, 3, seed=seed)
        np.savez(place / f"{name}.npz", logits=data.logits * factor, labels=data.labels)
    return place


def start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, *words: Any) -> None:
    given = [name, *words, "--processes", 1, "--out", tmp_path, "--kept", tmp_path / "kept"]
    monkeypatch.setattr(sys, "argv", [str(word) for word in given])
    importlib.import_module(name).main()


def test_study_shows_every_method(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    study = importlib.import_module("posthoc")
    monkeypatch.setattr(study, "ROWS", (50, 100))
    monkeypatch.setattr(study, "WITH_FEW_ROWS", ("temperature", "isotonic", "auto"))
    monkeypatch.setattr(study, "OBJECTIVES", ("nll", "charbonnier"))
    monkeypatch.setattr(study, "INDICATORS", ("margin",))
    start(monkeypatch, tmp_path, "posthoc", folder)
    page = (tmp_path / "posthoc.md").read_text()
    shown = page.split("<!-- every method -->")[1].split("<!-- end of every method -->")[0]
    for name, recipe in all_methods().items():
        is_left_out = recipe.needs_segments or recipe.needs_features
        assert (f"\n| {name} |" in shown) != is_left_out
    kept = [json.loads(one.read_text()) for one in (tmp_path / "kept").iterdir()]
    for one in kept:
        if keeps_class(one["plan"]["method"]):
            assert one["accuracy_change"] == 0
        assert one["parameters"] >= 0
    assert "a__shift_up" in page.split("<!-- by set -->")[1]
    assert "| charbonnier |" in page
    assert "| pts (objective=nll) |" in page.split("<!-- objectives -->")[1]
    assert "| cts (as_published=True) |" in page.split("<!-- comparators -->")[1]
    assert "| auto (allow_class_change=True, budget=60.0) |" in page
    assert "Means over the 1 sets with at least 100 rows to fit on" in page
    assert (tmp_path / "posthoc_few_rows.svg").read_text().startswith("<svg")
    first = capsys.readouterr()
    start(monkeypatch, tmp_path, "posthoc", folder, "--only", "main")
    again = capsys.readouterr()
    assert "done" in first.err
    assert "done" not in again.err
    assert again.out in first.out
