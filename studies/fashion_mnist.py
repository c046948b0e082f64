"""Fashion-MNIST from a given path, from Debian's package, or downloaded once."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import platformdirs
import torch
from numpy.typing import NDArray

DEBIAN = Path("/usr/share/datasets/fashion-mnist")  # the package dataset-fashion-mnist
ADDRESS = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"

# hashes of the unpacked files, because Debian repacks them
SHA256 = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
MEAN, DEVIATION = 0.2860, 0.3530


@dataclass(frozen=True)
class Images:
    """Pixels (n, 28, 28) from 0 to 255 and labels (n,)."""

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]

    def take(self, rows: NDArray[np.intp]) -> Images:
        """Return the given rows."""
        return Images(self.pixels[rows], self.labels[rows])

    def tensor(self) -> torch.Tensor:
        """Return pixels as network input: (n, 1, 28, 28), with mean 0 and standard deviation 1."""
        values = torch.from_numpy(self.pixels).float().div_(255)
        return values.sub_(MEAN).div_(DEVIATION).unsqueeze(1)


def load(path: Path | None = None) -> tuple[Images, Images]:
    """Return the 60,000 training and the 10,000 test images.

    ``path`` is an .npz with x_train, y_train, x_test and y_test, or a folder with the four packed
    IDX files. Without it, Debian's package is read or, if that is not installed, a folder in the
    user's cache, to which missing files are downloaded.
    """
    if path is not None and path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as file:
            return tuple(  # type: ignore[return-value]
                Images(file[f"x_{part}"], file[f"y_{part}"].astype(np.int64))
                for part in ("train", "test")
            )
    folder = path or (DEBIAN if DEBIAN.is_dir() else downloaded())
    read = {name: _idx(folder / f"{name}.gz") for name in SHA256}
    return tuple(  # type: ignore[return-value]
        Images(
            read[f"{part}-images-idx3-ubyte"],
            read[f"{part}-labels-idx1-ubyte"].astype(np.int64),
        )
        for part in ("train", "t10k")
    )


def divided(train: Images, test: Images, explore: bool) -> dict[str, Images]:
    """Return the parts of a study; half of the images are for training. ``explore`` omits test."""
    order = np.random.RandomState(0).permutation(len(train.labels))
    sixth = len(order) // 6
    parts = {
        "train": train.take(order[2 * sixth : 5 * sixth]),
        "validation": train.take(order[:sixth]),
    }
    if explore:
        return parts | {"selection": train.take(order[sixth : 2 * sixth])}
    return parts | {"test": test}


def synthetic(rows: int, seed: int) -> Images:
    """Return ten partly learnable classes, for trying the study in seconds."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(10, size=rows)
    centres = np.random.default_rng(0).uniform(0, 255, (10, 28, 28))
    pixels = 0.35 * centres[labels] + 0.65 * rng.uniform(0, 255, (rows, 28, 28))
    return Images(pixels.astype(np.uint8), labels)


def downloaded(address: str = ADDRESS, folder: Path | None = None) -> Path:
    """Return the cache folder with all files; downloads are verified before they are stored."""
    folder = folder or platformdirs.user_cache_path("calibrd") / "fashion-mnist"
    folder.mkdir(parents=True, exist_ok=True)
    for name, expected in SHA256.items():
        file = folder / f"{name}.gz"
        if file.exists():
            continue
        response = httpx.get(f"{address}/{name}.gz", timeout=60, follow_redirects=True)
        response.raise_for_status()
        actual = hashlib.sha256(gzip.decompress(response.content)).hexdigest()
        if actual != expected:
            raise ValueError(f"{response.url} must have the SHA-256 {expected}, got {actual}")
        partial = file.with_suffix(".part")
        partial.write_bytes(response.content)
        partial.replace(file)
    return folder


def _idx(path: Path) -> NDArray[np.uint8]:
    """Read bytes in the IDX format: 0, 0, 8, the number of axes, their sizes, the data."""
    data = gzip.decompress(path.read_bytes())
    axes = data[3]
    if data[:3] != b"\0\0\x08":
        raise ValueError(f"{path} must be an IDX file of bytes")
    shape = np.frombuffer(data, dtype=">u4", count=axes, offset=4)
    return np.frombuffer(data, dtype=np.uint8, offset=4 + 4 * axes).reshape(shape).copy()
