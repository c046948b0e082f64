"""SMART's network trained by each objective, in torch: its loss and gradient norm by epoch.

Written from the SMART paper (section 3.5 and Algorithm 1), independently of the package.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from logit_sets import split
from posthoc_fitting import Plan
from torch import Tensor

EPOCHS = 80
BATCH = 1024
BINS = 15
LAM = 200.0
DELTA = 1e-3
SMOOTHING = 0.05


def _nll(p: Tensor, labels: Tensor) -> Tensor:
    return torch.nn.functional.nll_loss(p.clamp(min=1e-30).log(), labels)


def _smoothed(p: Tensor, labels: Tensor) -> Tensor:
    logs = p.clamp(min=1e-30).log()
    return (1 - SMOOTHING) * _nll(p, labels) - SMOOTHING * logs.mean(dim=1).mean()


def _mse(p: Tensor, labels: Tensor) -> Tensor:
    confidence, top = p.max(dim=1)
    return ((confidence - (top == labels).float()) ** 2).mean()


def _brier(p: Tensor, labels: Tensor) -> Tensor:
    return ((p - torch.nn.functional.one_hot(labels, p.shape[1])) ** 2).sum(dim=1).mean()


def _memberships(confidence: Tensor) -> tuple[Tensor, Tensor]:
    centres = (torch.arange(BINS, dtype=confidence.dtype) + 0.5) / BINS
    return torch.softmax(-LAM * (confidence[:, None] - centres) ** 2, dim=1), centres


def _binned(delta: float) -> Callable[[Tensor, Tensor], Tensor]:
    def loss(p: Tensor, labels: Tensor) -> Tensor:
        confidence, top = p.max(dim=1)
        weights, _ = _memberships(confidence)
        residual = weights.T @ ((top == labels).double() - confidence)
        if not delta:
            return residual.abs().sum() / len(p)
        return (residual**2 + (delta * weights.sum(dim=0)) ** 2).sqrt().sum() / len(p)

    return loss


def _per_sample(delta: float) -> Callable[[Tensor, Tensor], Tensor]:
    def loss(p: Tensor, labels: Tensor) -> Tensor:
        confidence, top = p.max(dim=1)
        weights, centres = _memberships(confidence)
        residual = (top == labels).double()[:, None] - centres
        return (weights * (residual**2 + delta**2).sqrt()).sum(dim=1).mean()

    return loss


OBJECTIVES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "nll": _nll,
    "label_smoothing": _smoothed,
    "mse": _mse,
    "brier": _brier,
    "soft_ece (binned)": _binned(0.0),
    "charbonnier (binned)": _binned(DELTA),
    "SoftECE (Eq. 5)": _per_sample(0.0),
    "Charbonnier-SoftECE (Eq. 6)": _per_sample(DELTA),
}


def descent(plan: Plan, folder: Path) -> dict[str, Any]:
    """Return the loss on all fit rows and the mean norm of the batch gradients, by epoch."""
    start = time.perf_counter()
    torch.set_num_threads(1)
    fit, _ = split(folder, plan.data, plan.split)
    logits, labels = torch.tensor(fit.logits).double(), torch.tensor(fit.labels)
    top = logits.topk(2, dim=1).values
    margin = top[:, :1] - top[:, 1:]
    margin = (margin - margin.mean()) / margin.std(correction=0)
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Linear(1, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1), torch.nn.Softplus()
    ).double()
    loss = OBJECTIVES[str(dict(plan.params)["objective"])]
    steps = torch.optim.Adam(network.parameters(), lr=5e-3)

    def at(rows: Tensor) -> Tensor:
        p = torch.softmax(logits[rows] / (network(margin[rows]) + 0.1), dim=1)
        return loss(p, labels[rows])

    everything = torch.arange(fit.n)
    losses, norms = [], []
    for _ in range(EPOCHS):
        with torch.no_grad():
            losses.append(float(at(everything)))
        of_batches = []
        for rows in torch.randperm(fit.n).split(BATCH):
            steps.zero_grad()
            at(rows).backward()  # type: ignore[no-untyped-call]
            gradients = [one.grad.ravel() for one in network.parameters() if one.grad is not None]
            of_batches.append(float(torch.cat(gradients).norm()))
            steps.step()
        norms.append(float(np.mean(of_batches)))
    with torch.no_grad():
        losses.append(float(at(everything)))
    return {"seconds": time.perf_counter() - start, "loss": losses, "norm": norms}
