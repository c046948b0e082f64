"""The AdaFocal study in quick mode, and how it finds Fashion-MNIST."""

import functools
import gzip
import hashlib
import importlib
import json
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch

STUDIES = Path(__file__).parent.parent.parent / "studies"


@pytest.fixture(scope="module", autouse=True)
def studies():
    """Make the modules of the studies importable, and restore torch's number of threads."""
    threads = torch.get_num_threads()
    sys.path.insert(0, str(STUDIES))
    yield
    sys.path.remove(str(STUDIES))
    torch.set_num_threads(threads)


@pytest.fixture
def fashion_mnist():
    return importlib.import_module("fashion_mnist")


@pytest.fixture
def files(fashion_mnist, tmp_path, monkeypatch):
    """Return a folder with the four packed files with few images, and their actual hashes."""
    folder = tmp_path / "files"
    folder.mkdir()
    rng = np.random.default_rng(0)
    hashes = {}
    for part, n in (("train", 7), ("t10k", 3)):
        arrays = {
            f"{part}-images-idx3-ubyte": rng.integers(256, size=(n, 28, 28), dtype=np.uint8),
            f"{part}-labels-idx1-ubyte": rng.integers(10, size=n, dtype=np.uint8),
        }
        for name, array in arrays.items():
            sizes = np.array(array.shape, dtype=">u4").tobytes()
            data = bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()
            hashes[name] = hashlib.sha256(data).hexdigest()
            (folder / f"{name}.gz").write_bytes(gzip.compress(data))
    monkeypatch.setattr(fashion_mnist, "SHA256", hashes)
    return folder


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def address(files):
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=files))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join(5)
    server.server_close()


def test_quick_study_writes_table_and_chart(tmp_path, monkeypatch, capsys):
    study = importlib.import_module("adafocal")
    page, folder = tmp_path / "adafocal.md", tmp_path / "kept"
    page.write_text("Before.\n<!-- table -->\nold\n<!-- end of table -->\nAfter.\n")
    words = ["adafocal.py", "--quick", "--processes", "1", "--out", tmp_path, "--kept", folder]
    monkeypatch.setattr(sys, "argv", list(map(str, words)))
    study.main()
    first = capsys.readouterr()
    text = page.read_text()
    assert text.startswith("Before.\n<!-- table -->")
    assert text.endswith("<!-- end of table -->\nAfter.\n")
    assert "old" not in text
    assert first.out in text
    adaptive = ("AdaFocal, rate 1 (as published)", "AdaFocal, rate 30")
    for loss in ("CE", "focal-3", "FLSD-53", *adaptive):
        assert f"| {loss} | " in first.out
    assert (tmp_path / "adafocal_gammas.svg").read_text().startswith("<svg")
    kept = sorted(folder.iterdir())
    assert len(kept) == 5
    run = json.loads(kept[0].read_text())
    assert set(run["figures"]["test"]) == {"none", "TS", "SMART"}
    assert len({figures["error"] for figures in run["figures"]["test"].values()}) == 1
    study.main()
    again = capsys.readouterr()
    assert again.out == first.out
    assert again.err == ""


def test_quick_exploration_writes_its_own_table(tmp_path, monkeypatch, capsys):
    study = importlib.import_module("adafocal")
    monkeypatch.setattr(study, "EXPLORED", study.EXPLORED[3:4])
    page = tmp_path / "adafocal.md"
    page.write_text("<!-- table -->\nkept\n<!-- end of table -->\n")
    words = ["adafocal.py", "--quick", "--explore", "--processes", "1", "--out", tmp_path]
    monkeypatch.setattr(sys, "argv", [*map(str, words), "--kept", str(tmp_path / "kept")])
    study.main()
    text = capsys.readouterr().out
    assert page.read_text().startswith("<!-- table -->\nkept\n<!-- end of table -->\n")
    assert text in page.read_text()
    head, _, ce, adafocal = text.splitlines()
    assert head.endswith("| ECE after 1 | ECE after 3 |")
    assert ce.startswith("| CE |  |  | ")
    assert adafocal.startswith("| AdaFocal | 5 | 4 | ")
    run = json.loads(next((tmp_path / "kept").glob("AdaFocal*")).read_text())
    assert (len(run["course"]), len(run["states"])) == (3, 12)
    chosen_on, last = run["figures"]["selection"]["none"], run["course"][-1]
    assert 100 * last["ece"] == pytest.approx(chosen_on["ece"], abs=1e-3)
    assert 100 * (1 - last["accuracy"]) == pytest.approx(chosen_on["error"])


def test_fixed_losses_match_their_names():
    training = importlib.import_module("adafocal_training")
    logits = 2 * torch.randn(50, 10, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(50) % 10
    p = torch.softmax(logits, dim=1)[torch.arange(50), labels]
    focal = (-((1 - p) ** 3) * p.log()).mean()
    assert training.FIXED["focal-3"](logits, labels).item() == pytest.approx(focal.item(), rel=1e-5)
    gamma = torch.where(p < 0.2, 5, 3)
    flsd = (-((1 - p) ** gamma) * p.log()).mean()
    assert training.FIXED["FLSD-53"](logits, labels).item() == pytest.approx(flsd.item(), rel=1e-5)
    network = importlib.import_module("cnn").network
    weights = sum(one.numel() for one in network().parameters())
    assert f"{weights:,} weights" in network.__doc__


def test_an_archive_and_a_folder_hold_the_same(fashion_mnist, files, tmp_path):
    train, test = fashion_mnist.load(files)
    assert (train.pixels.shape, test.pixels.shape) == ((7, 28, 28), (3, 28, 28))
    assert train.labels.dtype == np.int64
    archive = tmp_path / "fashion.npz"
    np.savez(
        archive,
        x_train=train.pixels,
        y_train=train.labels,
        x_test=test.pixels,
        y_test=test.labels,
    )
    for one, other in zip(fashion_mnist.load(archive), (train, test), strict=True):
        assert np.array_equal(one.pixels, other.pixels)
        assert np.array_equal(one.labels, other.labels)
    tensor = train.tensor()
    assert tensor.shape == (7, 1, 28, 28)
    assert tensor[0, 0, 0, 0].item() == pytest.approx((train.pixels[0, 0, 0] / 255 - 0.286) / 0.353)


def test_without_a_path_debian_comes_before_the_download(fashion_mnist, files, monkeypatch):
    monkeypatch.setattr(fashion_mnist, "DEBIAN", files)
    assert len(fashion_mnist.load()[1].labels) == 3


def test_a_download_is_kept_and_not_repeated(fashion_mnist, files, address, tmp_path):
    cache = tmp_path / "cache"
    assert fashion_mnist.downloaded(address, cache) == cache
    assert len(fashion_mnist.load(cache)[0].labels) == 7
    for file in files.iterdir():
        file.unlink()
    assert fashion_mnist.downloaded(address, cache) == cache


def test_a_wrong_download_is_refused_and_leaves_nothing(fashion_mnist, files, address, tmp_path):
    (files / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(b"something else"))
    with pytest.raises(ValueError, match="must have the SHA-256"):
        fashion_mnist.downloaded(address, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_file_that_is_not_idx_is_refused(fashion_mnist, files):
    (files / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(b"P5 no such thing"))
    with pytest.raises(ValueError, match="must be an IDX file of bytes"):
        fashion_mnist.load(files)
