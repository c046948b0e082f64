"""The tasks of the recipes: their rows and networks, whose last layer is linear."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

TEXT_WIDTH = 256
SIZES = {"validation": 3_000, "calibration": 3_000, "test": 4_000}
MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # of CIFAR-10
PAD = 4


@dataclass(frozen=True)
class Rows:
    """Inputs (n, ...) and labels (n,)."""

    inputs: NDArray[Any]
    labels: NDArray[np.int64]


def load_text(path: Path) -> dict[str, Rows]:
    """Return the parts of the archive of text_embeddings.py, whose rows are in random order."""
    with np.load(path, allow_pickle=False) as file:
        embeddings, labels = file["embeddings"], file["labels"].astype(np.int64)
    sizes = {"train": len(labels) - sum(SIZES.values()), **SIZES}
    ends = np.cumsum(list(sizes.values()))[:-1]
    pieces = zip(np.split(embeddings, ends), np.split(labels, ends), strict=True)
    return {name: Rows(*piece) for name, piece in zip(sizes, pieces, strict=True)}


def synthetic_text(sizes: dict[str, int]) -> dict[str, Rows]:
    """Return parts with 20 partly learnable classes."""
    centres = np.random.default_rng(0).normal(size=(20, 384))
    parts = {}
    for seed, (name, rows) in enumerate(sizes.items(), start=1):
        rng = np.random.default_rng(seed)
        labels = rng.integers(20, size=rows)
        noise = rng.normal(size=(rows, 384))
        parts[name] = Rows((0.2 * centres[labels] + noise).astype(np.float32), labels)
    return parts


def head(train: Rows) -> nn.Sequential:
    """Return a network with one hidden layer on the embeddings."""
    return nn.Sequential(
        nn.Linear(train.inputs.shape[1], TEXT_WIDTH, bias=False),
        nn.BatchNorm1d(TEXT_WIDTH),
        nn.ReLU(),
        nn.Linear(TEXT_WIDTH, int(train.labels.max()) + 1),
    )


def residual_network(train: Rows) -> nn.Sequential:
    """Return a ResNet-8, with crop and flip in training: 75,290 weights.

    It is the network of He et al. (2016) for CIFAR-10 with one block in each stage; ResNet-20 has
    three.
    """
    encoder = Bfloat16InTraining(
        CropAndFlip(),
        Standardise(),
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        Block(16, 16, 1),
        Block(16, 32, 2),
        Block(32, 64, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    model = nn.Sequential(encoder, nn.Linear(64, int(train.labels.max()) + 1))
    return model.to(memory_format=torch.channels_last)


class Bfloat16InTraining(nn.Sequential):
    """Layers that convolve in bfloat16 in training: a third less time on CPUs that support it.

    Weights, activations that leave these layers, and everything in evaluation stay float32.
    """

    def forward(self, inputs: Tensor) -> Tensor:
        """Return float32 activations."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.training):
            activations: Tensor = super().forward(inputs)
        return activations.float()


class CropAndFlip(nn.Module):
    """Layer that shifts each image by up to 4 pixels and flips half of them, in training only."""

    def forward(self, images: Tensor) -> Tensor:
        """Return images of the same size, in channels-last memory order."""
        if not self.training:
            return images.contiguous(memory_format=torch.channels_last)
        n, _, height, width = images.shape
        padded = nn.functional.pad(images, (PAD,) * 4)
        top, left = (torch.randint(2 * PAD + 1, (n, 1)) for _ in range(2))
        rows, columns = top + torch.arange(height), torch.arange(width).repeat(n, 1)
        flipped = torch.rand(n, 1) < 0.5
        columns = left + torch.where(flipped, width - 1 - columns, columns)
        sample = torch.arange(n)[:, None, None]
        taken = padded.permute(0, 2, 3, 1)[sample, rows[:, :, None], columns[:, None, :]]
        return taken.permute(0, 3, 1, 2)


class Standardise(nn.Module):
    """Layer that turns bytes into numbers with mean 0 and standard deviation 1."""

    def forward(self, images: Tensor) -> Tensor:
        """Return the images as floats."""
        mean, deviation = (torch.tensor(one)[:, None, None] for one in (MEAN, DEVIATION))
        return (images.float() / 255 - mean) / deviation


class Block(nn.Module):
    """Two convolutions and a shortcut without weights (option A of He et al.)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride, self.more = stride, outputs - inputs
        self.inner = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return the activations of the block."""
        short = images[:, :, :: self.stride, :: self.stride]
        if self.more:
            short = nn.functional.pad(short, (0, 0, 0, 0, self.more // 2, self.more // 2))
        return torch.relu(self.inner(images) + short)


NETWORKS = {"text": head, "images": residual_network}
