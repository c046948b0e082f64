"""One run of the study of losses: the small network trained with one loss, and its figures."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from cnn import BATCH, network, optimiser, predict, train
from fashion_mnist import Images
from figures import measured
from kept import Found
from torch import nn

from calibrators import CalibrationSet, Calibrator
from calibrators.adafocal import BinStatistics
from calibrators.losses import Loss, make_loss
from calibrators.losses.adafocal import AdaFocalLoss
from calibrators.methods.identity import Identity
from calibrators.methods.smart import Smart
from calibrators.methods.temperature import TemperatureScaling

BALANCED, TAIL = "balanced", "long tail"
IMBALANCE = {TAIL: 100, f"{TAIL} 50": 50, f"{TAIL} 10": 10}
MAPS: dict[str, Calibrator] = {"none": Identity(), "TS": TemperatureScaling(), "SMART": Smart()}


@dataclass(frozen=True)
class Plan:
    """A loss with its parameters, a task, a seed and a number of epochs."""

    loss: str
    params: tuple[tuple[str, Any], ...]
    task: str
    seed: int
    epochs: int

    @property
    def file(self) -> str:
        """Name of the run's file."""
        params = [f"{name}-{value}" for name, value in self.params]
        parts = [self.task.replace(" ", "-"), self.loss, *params, f"seed{self.seed}"]
        return "_".join([*parts, f"{self.epochs}epochs"])


def run(plan: Plan, parts: Mapping[str, Images]) -> Found:
    """Train, and measure on every part not used for training or adaptation.

    ``parts`` are train, validation (for the maps, AdaFocal and CalFocal), test or
    selection, and out-of-distribution images (``digits``, ``noise``).
    """
    start = time.perf_counter()
    torch.set_num_threads(1)
    torch.manual_seed(plan.seed)
    train_on = parts["train"]
    if plan.task != BALANCED:
        train_on = long_tailed(train_on, IMBALANCE[plan.task])
    params = dict(plan.params)
    inner = params.get("loss", "")  # of RefCal
    loss = make_loss(plan.loss, **params, **sizes(plan.loss, len(train_on.labels), inner))
    model = network()
    course = _train(plan, model, loss, train_on, parts["validation"])
    logits = {name: predict(model, parts[name].tensor()) for name in parts if name != "train"}
    fit, inside = (
        CalibrationSet(logits.pop(name), parts[name].labels)
        for name in ("validation", "test" if "test" in parts else "selection")
    )
    return {
        "seconds": time.perf_counter() - start,
        **measured(fit, inside, logits, MAPS),
        "course": course,
    }


def sizes(loss: str, samples: int, inner: str = "") -> dict[str, Any]:
    """Return the sizes that a loss with a memory, or its ``inner`` loss, needs beforehand."""
    if inner:
        needed = sizes(inner, samples)
        return {"loss_params": needed} if needed else {}
    known = {"correctness_ranking": {"samples": samples}, "online_label_smoothing": {"classes": 10}}
    return known.get(loss, {})


def long_tailed(images: Images, imbalance: int) -> Images:
    """Return a long tail of images: the first class has ``imbalance`` times as many as the last."""
    rows = [np.flatnonzero(images.labels == label) for label in range(10)]
    most = min(len(one) for one in rows)
    chosen = [
        one[: max(1, round(most * imbalance ** (-label / 9)))] for label, one in enumerate(rows)
    ]
    return images.take(np.concatenate(chosen))


def _train(
    plan: Plan, model: nn.Sequential, loss: Loss, part: Images, validation: Images
) -> list[dict[str, float]]:
    inputs, labels, steps = part.tensor(), torch.from_numpy(part.labels), optimiser(model)
    held_out = validation.tensor()
    course = []
    for _ in range(plan.epochs):
        train(model, steps, loss, inputs, labels, torch.randperm(len(labels)).split(BATCH))
        loss.next_epoch()
        statistics = BinStatistics.from_logits(predict(model, held_out), validation.labels)
        if isinstance(loss, AdaFocalLoss):
            loss.state = loss.state.update(statistics)
        summary = statistics.summary()
        course.append({"error": 1 - summary.accuracy, "ece": summary.ece, "nll": summary.nll})
    return course
