"""One run of a recipe: a network trained with one loss by the recipe of the papers."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from cnn import BATCH, predict, train
from figures import measured
from kept import Found
from recipe_tasks import NETWORKS, Rows
from torch import Tensor, nn

from calibrators import CalibrationSet, Calibrator
from calibrators.adafocal import BinStatistics
from calibrators.losses import Loss, make_loss
from calibrators.losses.adafocal import AdaFocalLoss
from calibrators.losses.focal import WrongWayGradients
from calibrators.methods.identity import Identity
from calibrators.methods.metacal import MetaCal
from calibrators.methods.smart import Smart
from calibrators.methods.temperature import TemperatureScaling

MAPS: dict[str, Calibrator] = {
    "none": Identity(),
    "TS": TemperatureScaling(),
    "TS by ECE": TemperatureScaling(objective="ece"),
    "TS by AdaECE": TemperatureScaling(objective="ada_ece", grid="tenths"),
    "SMART": Smart(),
    "MetaMis": MetaCal(),
    "MetaAcc": MetaCal(constraint="accuracy"),
}
RATE, MOMENTUM, DECAY = 0.1, 0.9, 5e-4
MILESTONES, FALL = (0.3, 0.6, 0.8), 0.2  # shares of all epochs: 60, 120 and 160 of 200
WARM = 0.2  # share of the epochs before checkpoints count: 40 of 200
SCALE = "scale"  # a factor of the loss, not one of its parameters


@dataclass(frozen=True)
class Plan:
    """A recipe, a loss with its parameters, a seed and a number of epochs."""

    recipe: str
    loss: str
    params: tuple[tuple[str, Any], ...]
    seed: int
    epochs: int

    @property
    def file(self) -> str:
        """Name of the run's file."""
        params = [f"{name}-{value}" for name, value in self.params]
        return "_".join(
            [self.recipe, self.loss, *params, f"seed{self.seed}", f"{self.epochs}epochs"]
        )


def run(plan: Plan, parts: Mapping[str, Rows]) -> Found:
    """Train, keep the state with the lowest validation NLL, and measure on the test rows.

    ``parts`` are train, validation (checkpoints, AdaFocal), calibration (maps), test, and any
    number of out-of-distribution parts.
    """
    start = time.perf_counter()
    torch.set_num_threads(1)
    torch.manual_seed(plan.seed)
    model = NETWORKS[plan.recipe](parts["train"])
    course = _train(plan, model, parts["train"], parts["validation"])
    logits = {name: predict(model, torch.from_numpy(parts[name].inputs)) for name in _unseen(parts)}
    fit, inside = (
        CalibrationSet(logits.pop(name), parts[name].labels) for name in ("calibration", "test")
    )
    found = measured(fit, inside, logits, MAPS)
    del found["bins"]  # no table shows them, and the files of the runs are kept in the tree
    return {"seconds": time.perf_counter() - start, **found, **course}


def _unseen(parts: Mapping[str, Rows]) -> list[str]:
    """Return the parts that are not used in training."""
    return [name for name in parts if name not in ("train", "validation")]


class Scaled(nn.Module):
    """A loss times a factor: the control for losses that are smaller than cross-entropy."""

    def __init__(self, loss: Loss, scale: float) -> None:
        super().__init__()
        self.loss, self.scale = loss, scale

    def forward(self, *inputs: Tensor, **more: Tensor) -> Tensor:
        """Return the scaled loss of a batch."""
        scaled: Tensor = self.scale * self.loss(*inputs, **more)
        return scaled


def _train(plan: Plan, model: nn.Sequential, part: Rows, validation: Rows) -> Found:
    """Return validation metrics by epoch, and leave the model in its best state."""
    params = dict(plan.params)
    scale = params.pop(SCALE, 1.0)
    loss = make_loss(plan.loss, **params)
    inputs, labels = torch.from_numpy(part.inputs), torch.from_numpy(part.labels)
    held_out = torch.from_numpy(validation.inputs)
    steps = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.MultiStepLR(
        steps, [round(share * plan.epochs) for share in MILESTONES], FALL
    )
    course, best, lowest = [], {}, (float("inf"), 0)
    for epoch in range(1, plan.epochs + 1):
        model.train()
        with warnings.catch_warnings():  # AU is also run with the smoothing of its paper
            warnings.simplefilter("ignore", WrongWayGradients)
            order = torch.randperm(len(labels)).split(BATCH)
            train(model, steps, Scaled(loss, scale), inputs, labels, order)
        schedule.step()
        loss.next_epoch()
        model.eval()
        statistics = BinStatistics.from_logits(predict(model, held_out), validation.labels)
        if isinstance(loss, AdaFocalLoss):
            loss.state = loss.state.update(statistics)
        summary = statistics.summary()
        course.append({"error": 1 - summary.accuracy, "ece": summary.ece, "nll": summary.nll})
        if epoch > WARM * plan.epochs and summary.nll < lowest[0]:
            best, lowest = deepcopy(model.state_dict()), (summary.nll, epoch)
    if not best:
        raise ValueError(f"{plan.file}: the validation NLL is never finite, got {course[-1]}")
    model.load_state_dict(best)
    return {"course": course, "epoch": lowest[1]}
