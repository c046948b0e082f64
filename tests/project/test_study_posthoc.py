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
    paper = importlib.import_module("posthoc_smart_paper")
    monkeypatch.setattr(paper, "SIGMAS", (0.05, 0.5))
    monkeypatch.setattr(paper, "DELTAS", (0.001, 1.0))
    monkeypatch.setattr(paper, "SEEDS", range(2))
    monkeypatch.setattr(paper, "EPOCHS", (2, 3))
    start(monkeypatch, tmp_path, "posthoc", folder)
    page = (tmp_path / "posthoc.md").read_text()
    shown = page.split("<!-- every method -->")[1].split("<!-- end of every method -->")[0]
    for name, recipe in all_methods().items():
        is_left_out = recipe.needs_segments or recipe.needs_features
        assert (f"\n| {name} |" in shown) != is_left_out
    kept = [json.loads(one.read_text()) for one in (tmp_path / "kept").glob("*.json")]
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
    for name, rows in (
        ("table 8", ("| a__shift_up |", "| a__test |")),
        ("fifths", ("| a__shift_up |", "| a__test |")),
        ("protocols", ("| a__shift_up | clean rows |", "| a__shift_up | a fifth of the set |")),
        ("seeds", ("| a__test |",)),
        ("sensitivity", ("| 0.05 |", "| 0.5 |")),
        ("nll epochs", ("| a__test | NLL |",)),
        ("thirds", ("| a__test | high |",)),
        ("temperature by margin", ("| a__test |",)),
        ("random logits", ("| 10 | margin |",)),
        ("descents", ("| Charbonnier-SoftECE (Eq. 6) |",)),
    ):
        shown = page.split(f"<!-- {name} -->")[1].split(f"<!-- end of {name} -->")[0]
        assert all(row in shown for row in rows), name
    for name in ("few_rows", "temperatures", "random_logits"):
        assert (tmp_path / f"posthoc_{name}.svg").read_text().startswith("<svg")
    first = capsys.readouterr()
    start(monkeypatch, tmp_path, "posthoc", folder, "--only", "main")
    again = capsys.readouterr()
    assert "done" in first.err
    assert "done" not in again.err
    assert again.out in first.out


def test_random_logits_obey_the_bounds_of_the_smart_paper(folder: Path) -> None:
    study = importlib.import_module("posthoc_margins")
    indicators, temperature = study.random_logits(10)
    rest = 1 / study.TARGET - 1
    margin = indicators["margin"]
    assert np.all(temperature >= margin / -np.log(rest / 9) * (1 - 1e-9))
    assert np.all(temperature <= margin / -np.log(rest) * (1 + 1e-9))


def test_every_corruption_changes_images_more_with_its_severity() -> None:
    study = importlib.import_module("corruptions")
    images = importlib.import_module("fashion_mnist").synthetic(40, 1)
    for name in study.CORRUPTIONS:
        mild, strong = (study.corrupted(images, name, one) for one in (1, 5))
        again = study.corrupted(images, name, 5)
        np.testing.assert_array_equal(strong.pixels, again.pixels)
        assert strong.pixels.shape == images.pixels.shape
        changes = [
            np.abs(one.pixels.astype(float) - images.pixels).mean() for one in (mild, strong)
        ]
        assert 0 < changes[0] < changes[1], name


def test_the_study_of_images_shows_both_networks_and_protocols(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    study = importlib.import_module("posthoc_images")
    monkeypatch.setattr(study, "METHODS", ("identity", "temperature", "feature_clipping"))
    monkeypatch.setattr(study, "EPOCHS", {study.BALANCED: 3, study.TAIL: 3})
    monkeypatch.setattr(study, "CORRUPTIONS", {"blur": 0, "contrast": 0})
    start(monkeypatch, tmp_path, "posthoc_images", "--quick")
    page = (tmp_path / "posthoc.md").read_text()
    assert "| long tail | rows as in training | temperature |" in page
    assert "Pearson correlation" in page
    for title in ("clean rows", "rows of the set"):
        shown = page.split(f"<!-- corruptions, {title} -->")[1].split("<!-- end")[0]
        assert shown.count("| contrast |") == 2
        assert f"| 5 | {title} |" in page
    first = capsys.readouterr()
    start(monkeypatch, tmp_path, "posthoc_images", "--quick")
    again = capsys.readouterr()
    assert again.out == first.out
    assert "done" not in again.err
