"""The training recipes in quick mode, and their components."""

from __future__ import annotations

import importlib
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

STUDIES = Path(__file__).parent.parent.parent / "studies"
# a network that was trained for a second may be worse than chance
untrained = pytest.mark.filterwarnings("ignore::calibrators.errors.CalibrationWarning")


@pytest.fixture(scope="module", autouse=True)
def studies() -> Iterator[None]:
    """Make the modules of the studies importable, and restore torch's number of threads."""
    threads = torch.get_num_threads()
    sys.path.insert(0, str(STUDIES))
    yield
    sys.path.remove(str(STUDIES))
    torch.set_num_threads(threads)


@pytest.fixture
def study() -> Any:
    return importlib.import_module("recipes")


@pytest.fixture
def start(study: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def started(recipe: str, *words: str) -> str:
        given = ["recipes.py", recipe, "--processes", "1", "--out", str(tmp_path), *words]
        monkeypatch.setattr(sys, "argv", [*given, "--kept", str(tmp_path / "kept")])
        study.main()
        return (tmp_path / "recipes.md").read_text()

    return started


@untrained
def test_quick_text_recipe_shows_every_loss_before_and_after_every_map(
    start: Any, study: Any, tmp_path: Path, capsys: Any
) -> None:
    page = start("text", "--quick")
    first = capsys.readouterr()
    assert first.out in page
    assert "about" in first.err.splitlines()[0]
    for title in study.MAPS.values():
        rows = page.split(f"**{title}**")[1].split("\n\n")[1].splitlines()[2:]
        assert len(rows) == len(study.LOSSES)
        assert {row.split("|")[2].strip() for row in rows} == {"1"}
    assert "| selective_risk (as released) |" in page
    assert "| cross_entropy (scale 0.7) |" in page
    for one in (tmp_path / "kept").iterdir():
        found = json.loads(one.read_text())
        figures = found["figures"]
        keep = [name for name in study.MAPS if not name.startswith("Meta")]
        assert len({figures[name]["error"] for name in keep}) == 1
        assert all(np.isfinite(list(of.values())).all() for of in figures.values())
        lowest = np.argmin([step["nll"] for step in found["course"][1:]]) + 2  # 1.2 epochs to warm
        assert found["epoch"] == lowest
    start("text", "--quick")
    again = capsys.readouterr()
    assert again.out == first.out
    assert "done" not in again.err


@untrained
def test_a_report_has_the_stored_runs_only(
    start: Any, study: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit, match="no run of this recipe is stored"):
        start("images", "--quick", "--report")
    every = study.LOSSES
    monkeypatch.setattr(study, "LOSSES", every[:2])
    page = start("images", "--quick")
    assert "| OOD AUROC, noise |" in page
    assert page.count("\n| adafocal |") == len(study.MAPS) + 2  # and by epoch, checkpoints
    monkeypatch.setattr(study, "LOSSES", every)
    assert start("images", "--quick", "--report") == page


def test_the_data_must_be_named(start: Any) -> None:
    with pytest.raises(SystemExit, match="--data must be the path"):
        start("text")


def test_crop_and_flip_shift_and_mirror_in_training_only() -> None:
    augment = importlib.import_module("recipe_tasks").CropAndFlip()
    torch.manual_seed(0)
    images = torch.randint(1, 256, (64, 3, 32, 32), dtype=torch.uint8)
    assert torch.equal(augment.eval()(images), images)
    changed = augment.train()(images)
    assert changed.shape == images.shape
    padded = torch.nn.functional.pad(images, (4, 4, 4, 4))
    mirrored = 0
    for one, around in zip(changed, padded, strict=True):
        windows = around.unfold(1, 32, 1).unfold(2, 32, 1).permute(1, 2, 0, 3, 4)
        kept, flipped = (
            bool((windows == version).flatten(2).all(dim=2).any()) for version in (one, one.flip(2))
        )
        assert kept != flipped
        mirrored += flipped
    assert 16 < mirrored < 48


def test_networks_have_the_documented_number_of_weights() -> None:
    tasks = importlib.import_module("recipe_tasks")
    images = tasks.Rows(np.zeros((2, 3, 32, 32), np.uint8), np.array([0, 9]))
    model = tasks.residual_network(images)
    weights = sum(one.numel() for one in model.parameters())
    assert f"{weights:,} weights" in tasks.residual_network.__doc__
    convolutions = [one for one in model.modules() if isinstance(one, torch.nn.Conv2d)]
    assert len(convolutions) + 1 == 8  # layers of a ResNet-8
    assert model(torch.from_numpy(images.inputs)).shape == (2, 10)


def test_the_scale_multiplies_the_loss() -> None:
    training = importlib.import_module("recipe_training")
    logits, labels = torch.randn(8, 3), torch.arange(8) % 3
    loss = training.make_loss("cross_entropy")
    expected = 0.7 * torch.nn.functional.cross_entropy(logits, labels)
    assert training.Scaled(loss, 0.7)(logits, labels).item() == pytest.approx(expected.item())


def test_images_are_read_from_jpegs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cifar10 = importlib.import_module("cifar10")
    monkeypatch.setattr(cifar10, "PARTS", {"train": 6, "validation": 3, "calibration": 1})
    colours = np.random.default_rng(0).integers(256, size=(14, 3))
    archive: dict[str, Any] = {}
    for part, of in (("train", colours[:10]), ("test", colours[10:])):
        files = [jpeg(one) for one in of]
        archive[f"{part}_bytes"] = np.frombuffer(b"".join(files), np.uint8)
        archive[f"{part}_offsets"] = np.cumsum([0, *map(len, files)])
        archive[f"{part}_labels"] = np.arange(len(of))
    np.savez(tmp_path / "images.npz", **archive)
    parts = cifar10.load(tmp_path / "images.npz")
    assert [len(one.labels) for one in parts.values()] == [6, 3, 1, 4, 4]
    labels = np.concatenate([parts[name].labels for name in cifar10.PARTS])
    assert sorted(labels) == list(range(10))  # no image is in two parts
    for name, of in (("train", colours[:10]), ("test", colours[10:])):
        assert parts[name].inputs.shape[1:] == (3, 32, 32)
        means = parts[name].inputs.mean(axis=(2, 3))
        assert means == pytest.approx(of[parts[name].labels], abs=4)
    change = parts["noise"].inputs.astype(float) - parts["test"].inputs
    inner = (parts["test"].inputs > 100) & (parts["test"].inputs < 155)
    assert change[inner].std() == pytest.approx(25.5, rel=0.1)


def jpeg(colour: Any) -> bytes:
    """Return an image of one colour."""
    file = io.BytesIO()
    pixels = np.broadcast_to(colour.astype(np.uint8), (32, 32, 3))
    Image.fromarray(np.ascontiguousarray(pixels)).save(file, "JPEG", quality=95)
    return file.getvalue()


PACKAGES = """\
Package: alpha-doc
Source: alpha (1.0)
Section: doc
Description: a library for letters (documentation)
Tag: not::a-section,
 Section: a continued line

Package: alpha
Section: contrib/games
Description: a game of letters: the first

Package: beta
Section: games
Description: the same text

Package: gamma
Section: doc
Description: The same text

Package: no-description
Section: doc

Package: delta
Section: net
Description: a server
"""


def test_a_source_package_gives_one_text_that_occurs_once() -> None:
    module = importlib.import_module("text_embeddings")
    found = list(module.packages(PACKAGES.splitlines(keepends=True)))
    assert [one.name for one in found] == ["alpha-doc", "alpha", "beta", "gamma", "delta"]
    assert found[0] == ("alpha-doc", "alpha", "doc", "a library for letters (documentation)")
    texts = module.texts_by_section(found, 5, 10)
    assert texts == {"games": ["a game of letters: the first"], "net": ["a server"]}
    many = [module.Package(f"p{i}", f"p{i}", "ab"[i % 3 == 0], f"text {i}") for i in range(30)]
    assert list(module.texts_by_section(many, 1, 12)) == ["a"]
    assert {name: len(of) for name, of in module.texts_by_section(many, 2, 12).items()} == {
        "a": 12,
        "b": 10,
    }


def test_the_parts_of_the_text_archive_do_not_overlap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = importlib.import_module("recipe_tasks")
    monkeypatch.setattr(tasks, "SIZES", {"validation": 3, "calibration": 2, "test": 4})
    rows = np.arange(20, dtype=np.float32)
    np.savez(tmp_path / "text.npz", embeddings=rows[:, None], labels=np.arange(20))
    parts = tasks.load_text(tmp_path / "text.npz")
    assert [len(one.labels) for one in parts.values()] == [11, 3, 2, 4]
    assert list(parts) == ["train", "validation", "calibration", "test"]
    assert np.concatenate([one.labels for one in parts.values()]).tolist() == list(range(20))
    assert all((one.inputs[:, 0] == one.labels).all() for one in parts.values())
