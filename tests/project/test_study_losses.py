"""The study of losses in quick mode, and its components."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from calibrators.losses import all_losses

STUDIES = Path(__file__).parent.parent.parent / "studies"
TABLES = ("Before any map", "After temperature scaling", "After SMART")


@pytest.fixture(scope="module", autouse=True)
def studies() -> Iterator[None]:
    """Make the modules of the studies importable, and restore torch's number of threads."""
    threads = torch.get_num_threads()
    sys.path.insert(0, str(STUDIES))
    yield
    sys.path.remove(str(STUDIES))
    torch.set_num_threads(threads)


def test_quick_study_shows_every_loss_before_and_after_every_map(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    study = importlib.import_module("losses")
    words = ["losses.py", "--quick", "--processes", "1", "--out", tmp_path]
    monkeypatch.setattr(sys, "argv", [*map(str, words), "--kept", str(tmp_path / "kept")])
    study.main()
    first = capsys.readouterr()
    page = (tmp_path / "losses.md").read_text()
    balanced, tail = page.split("<!-- long tail -->")
    for part, losses in ((balanced, all_losses()), (tail, study.MAIN)):
        for title in TABLES:
            rows = part.split(f"**{title}**")[1].split("**")[0]
            assert {name for name in losses if f"\n| {name} " in rows} == set(losses)
    assert "| T | error |" in balanced
    assert "| epoch 1 |" in balanced
    assert "about" in first.err.splitlines()[0]
    for name in ("losses_reliability_balanced.svg", "losses_reliability_long_tail.svg"):
        assert (tmp_path / name).read_text().startswith("<svg")
    kept = [json.loads(one.read_text()) for one in (tmp_path / "kept").iterdir()]
    for one in kept:
        errors = {figures["error"] for figures in one["figures"].values()}
        assert len(errors) == 1  # no map changes a prediction
        assert all(np.isfinite(list(figures.values())).all() for figures in one["figures"].values())
    study.main()
    again = capsys.readouterr()
    assert again.out == first.out
    assert "done" not in again.err


@pytest.mark.parametrize("imbalance", [10, 50, 100])
def test_the_long_tail_falls_by_its_imbalance(imbalance: int) -> None:
    training = importlib.import_module("losses_training")
    assert imbalance in training.IMBALANCE.values()
    images = importlib.import_module("fashion_mnist").Images
    labels = np.repeat(np.arange(10), 1000)
    kept = training.long_tailed(images(np.zeros((10_000, 28, 28), np.uint8), labels), imbalance)
    counts = np.bincount(kept.labels)
    assert (counts[0], counts[-1]) == (1000, 1000 // imbalance)
    assert np.all(np.diff(counts) < 0)
    ratios = counts[1:] / counts[:-1]
    assert ratios == pytest.approx(np.full(9, imbalance ** (-1 / 9)), rel=0.05)


def test_only_the_requested_long_tails_are_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = importlib.import_module("losses")
    monkeypatch.setattr(study, "MAIN", ("cross_entropy", "adafocal"))
    words = ["losses.py", "--quick", "--imbalance", "10", "50", "--processes", "1"]
    places = ["--out", str(tmp_path), "--kept", str(tmp_path / "kept")]
    monkeypatch.setattr(sys, "argv", [*words, *places])
    study.main()
    page = (tmp_path / "losses.md").read_text()
    assert page.count("<!-- long tail 10 -->") == page.count("<!-- long tail 50 -->") == 1
    assert page.count("\n| adafocal (rate 30.0) |") == 2 * len(TABLES)
    tasks = {json.loads(one.read_text())["plan"]["task"] for one in (tmp_path / "kept").iterdir()}
    assert tasks == {"long tail 10", "long tail 50"}


def test_only_losses_alone_and_within_refcal_are_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = importlib.import_module("losses")
    monkeypatch.setattr(study, "REFCAL_WITH", ("correctness_ranking",))
    words = ["losses.py", "--quick", "--refcal", "--processes", "1"]
    places = ["--out", str(tmp_path), "--kept", str(tmp_path / "kept")]
    monkeypatch.setattr(sys, "argv", [*words, *places])
    study.main()
    page = (tmp_path / "losses.md").read_text()
    assert page.count("\n| correctness_ranking |") == len(TABLES)
    assert page.count("\n| refcal (loss correctness_ranking) |") == len(TABLES)


def test_outsiders_are_images_of_the_same_shape() -> None:
    outsiders = importlib.import_module("outsiders")
    for images in (outsiders.digits(), outsiders.noise()):
        assert images.pixels.shape[1:] == (28, 28)
        assert images.pixels.dtype == np.uint8
        assert (images.pixels.min(), images.pixels.max()) == (0, 255)
    assert len(outsiders.digits().labels) == 1797


def test_a_changed_plan_is_run_again(tmp_path: Path) -> None:
    kept = importlib.import_module("kept")
    plan = importlib.import_module("losses_training").Plan
    ran: list[str] = []

    def run(one: Any, parts: str) -> dict[str, Any]:
        ran.append(f"{one.loss} {parts}")
        return {"seconds": 0.0, "value": one.seed}

    plans = [plan("focal", (("gamma", 2.0),), "balanced", seed, 3) for seed in (4, 5)]
    found = kept.run_all(plans, run, "all", tmp_path, 1)
    assert [one["value"] for one in found] == [4, 5]
    assert [one["plan"]["params"] for one in found] == [[["gamma", 2.0]]] * 2
    kept.run_all(plans, run, "all", tmp_path, 1)
    assert ran == ["focal all"] * 2
    other = plan("focal", (("gamma", 2.0),), "balanced", 4, 9)
    (tmp_path / f"{plans[0].file}.json").rename(tmp_path / f"{other.file}.json")
    kept.run_all([other], run, "all", tmp_path, 1)
    assert len(ran) == 3  # the stored result belongs to another plan
