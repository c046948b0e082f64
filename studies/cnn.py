"""The small network of the training studies, and one epoch of training."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

BATCH = 128
LEARNING_RATE = 1e-3
WIDTH = 128

Logits = NDArray[np.float32]


def network() -> nn.Sequential:
    """Return two convolutions and two linear layers: 215,370 weights."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, 10),
    )


def optimiser(model: nn.Module) -> torch.optim.Optimizer:
    """Return the Adam optimiser of all studies."""
    return torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, fused=True)


def train(
    model: nn.Sequential,
    steps: torch.optim.Optimizer,
    loss: Callable[..., Tensor],
    inputs: Tensor,
    labels: Tensor,
    order: Iterable[Tensor],
) -> None:
    """Take one step per batch of ``order``; the loss also gets the embeddings and the index."""
    for rows in order:
        steps.zero_grad(set_to_none=True)
        embeddings = model[:-1](inputs[rows])
        loss(model[-1](embeddings), labels[rows], embeddings=embeddings, index=rows).backward()
        steps.step()


def predict(model: nn.Module, inputs: Tensor) -> Logits:
    """Return the logits of many images."""
    with torch.inference_mode():
        logits: Logits = torch.cat([model(block) for block in inputs.split(1000)]).numpy()
    return logits
