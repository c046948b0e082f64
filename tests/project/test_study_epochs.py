"""The study of losses by epoch in its quick form."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax
from sklearn.metrics import roc_auc_score, roc_curve

STUDIES = Path(__file__).parent.parent.parent / "studies"


@pytest.fixture(scope="module", autouse=True)
def studies() -> Iterator[None]:
    """The studies' modules can be imported, and leave torch's threads as they were."""
    threads = torch.get_num_threads()
    sys.path.insert(0, str(STUDIES))
    yield
    sys.path.remove(str(STUDIES))
    torch.set_num_threads(threads)


def test_quick_study_shows_every_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    study = importlib.import_module("epochs")
    runs = tuple(one for one in study.RUNS if one[0] in ("cross_entropy", "seca", "calfocal"))
    monkeypatch.setattr(study, "RUNS", runs[:4])
    words = [
        "--quick",
        "--processes",
        "1",
        "--out",
        str(tmp_path),
        "--kept",
        str(tmp_path / "kept"),
    ]
    monkeypatch.setattr(sys, "argv", ["epochs.py", *words, "--most", "3"])
    study.main()
    first = capsys.readouterr()
    assert "3 of 3 done" in first.err
    monkeypatch.setattr(sys, "argv", ["epochs.py", *words])
    study.main()
    second = capsys.readouterr()
    assert "1 of 1 done" in second.err
    page = (tmp_path / "epochs.md").read_text()
    assert page.count("| calfocal (rate 100.0) |") >= 4
    assert "| cosine | seca |" in page
    assert "| AU, nu 0.1 |" in page
    assert "| digits | seca | TS by NLL |" in page
    for name in ("agreement", "gaps", "weights", "cdf"):
        assert (tmp_path / f"epochs_{name}.svg").read_text().startswith("<svg")
    monkeypatch.setattr(sys, "argv", ["epochs.py", *words, "--report"])
    study.main()
    assert capsys.readouterr().out == second.out


def test_the_roc_is_that_of_scikit_learn() -> None:
    training = importlib.import_module("epochs_training")
    rng = np.random.default_rng(0)
    inside, outside = (softmax(scale * rng.normal(size=(4000, 5)), axis=1) for scale in (3, 2))
    found = training.roc(inside, outside)
    entropy = [-(p * np.log(p)).sum(axis=1) for p in (inside, outside)]
    labels, scores = np.repeat([0, 1], 4000), np.concatenate(entropy)
    assert found["auroc"] == pytest.approx(roc_auc_score(labels, scores))
    false, true, _ = roc_curve(labels, scores)
    expected = np.interp(training.RATES, false, true)
    np.testing.assert_allclose(found["detected"], expected, atol=2e-3)


def test_gradients_push_labels_the_right_way_unless_weights_carry_them_with_a_small_nu() -> None:
    training = importlib.import_module("epochs_training")
    images = importlib.import_module("fashion_mnist").synthetic(600, 1)
    torch.manual_seed(0)
    model = training.network()
    labels = torch.from_numpy(images.labels)
    steps, loss = training.optimiser(model), training.make_loss("cross_entropy")
    for _ in range(6):
        order = torch.randperm(600).split(128)
        training.train(model, steps, loss, images.tensor(), labels, order)
    found = training.gradients(model, images.tensor(), labels)
    for name in ("cross-entropy", "focal, gamma 3", "AU, nu 0.4"):
        assert all(one is None or one <= 0 for one in found[name]), name
    assert sum(found["rows"]) > 300


def test_the_smoothed_distribution_is_equation_21() -> None:
    weights = importlib.import_module("weights")
    confidence = np.array([0.105, 0.505, 0.905])
    found = weights.smoothed_cdf(confidence, 0.1)
    for at, value in zip(confidence, found, strict=True):
        expected = np.mean([1 / (1 + np.exp(-(at - one) / 0.1)) for one in confidence])
        assert value == pytest.approx(expected)


def test_quick_study_of_batches_shows_every_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = importlib.import_module("batches")
    monkeypatch.setattr(study, "SIZES", (64, 256))
    words = ["batches.py", "--quick", "--processes", "1", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [*words, "--kept", str(tmp_path / "kept")])
    study.main()
    page = (tmp_path / "epochs.md").read_text()
    for size in (64, 256):
        assert f"\n| {size} | {100 * 0.9 ** (size - 1):.1f} % |" in page
