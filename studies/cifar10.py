"""CIFAR-10 from an archive of JPEGs."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from recipe_tasks import Rows

PARTS = {"train": 10_000, "validation": 3_000, "calibration": 5_000}
NOISE = 0.1  # standard deviation of CIFAR-10-C's Gaussian noise of severity 5
NOISY = 2_000


def load(path: Path) -> dict[str, Rows]:
    """Return the parts of the recipe: pixels (n, 3, 32, 32) and labels.

    ``path`` is an .npz with train_bytes, train_offsets, train_labels and the same for test: JPEG i
    is ``train_bytes[train_offsets[i]:train_offsets[i + 1]]``. ``noise`` has test images with
    Gaussian noise.
    """
    with np.load(path, allow_pickle=False) as file:
        order = np.random.default_rng(0).permutation(len(file["train_labels"]))
        ends = np.cumsum(list(PARTS.values()))
        pieces = np.split(order[: ends[-1]], ends[:-1])
        parts = {
            name: _decoded(file, "train", rows) for name, rows in zip(PARTS, pieces, strict=True)
        }
        parts["test"] = _decoded(file, "test", np.arange(len(file["test_labels"])))
    return parts | {"noise": noisy(parts["test"])}


def _decoded(file: np.lib.npyio.NpzFile, part: str, rows: NDArray[np.intp]) -> Rows:
    data, offsets = file[f"{part}_bytes"], file[f"{part}_offsets"]
    pixels = [
        np.asarray(Image.open(io.BytesIO(data[offsets[row] : offsets[row + 1]].tobytes())))
        for row in rows
    ]
    labels = file[f"{part}_labels"][rows].astype(np.int64)
    return Rows(np.ascontiguousarray(np.stack(pixels).transpose(0, 3, 1, 2)), labels)


def noisy(images: Rows) -> Rows:
    """Return the first images with Gaussian noise."""
    pixels = images.inputs[:NOISY].astype(np.float64)
    pixels += np.random.default_rng(0).normal(0, 255 * NOISE, pixels.shape)
    return Rows(pixels.clip(0, 255).astype(np.uint8), images.labels[:NOISY])


def synthetic(sizes: dict[str, int]) -> dict[str, Rows]:
    """Return parts with ten partly learnable classes, for trying the recipe in seconds."""
    coarse = np.random.default_rng(0).uniform(0, 255, (10, 3, 4, 4))  # withstands shifts
    centres = coarse.repeat(8, axis=2).repeat(8, axis=3)
    parts = {}
    for seed, (name, rows) in enumerate(sizes.items(), start=1):
        rng = np.random.default_rng(seed)
        labels = rng.integers(10, size=rows)
        pixels = 0.4 * centres[labels] + 0.6 * rng.uniform(0, 255, (rows, 3, 32, 32))
        parts[name] = Rows(pixels.astype(np.uint8), labels)
    return parts | {"noise": noisy(parts["test"])}
