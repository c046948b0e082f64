"""One run of the AdaFocal study: a small CNN trained on Fashion-MNIST with one of the losses."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import torch
from cnn import BATCH, network, optimiser, predict, train
from fashion_mnist import Images
from torch import Tensor, nn

from calibrators import CalibrationSet, Calibrator
from calibrators.adafocal import AdaFocalState, BinStatistics
from calibrators.losses import Loss
from calibrators.losses.adafocal import AdaFocalLoss
from calibrators.losses.cross_entropy import CrossEntropyLoss
from calibrators.losses.focal import FLSD53Loss, FocalLoss
from calibrators.methods.identity import Identity
from calibrators.methods.smart import Smart
from calibrators.methods.temperature import TemperatureScaling
from calibrators.metrics import noise_floor, row_scores

MAPS: dict[str, Calibrator] = {"none": Identity(), "TS": TemperatureScaling(), "SMART": Smart()}


@dataclass(frozen=True)
class Plan:
    """A loss (AdaFocal with its rate and updates per epoch), a seed and a number of epochs."""

    loss: str
    seed: int
    epochs: int
    rate: float = 1.0
    updates: int = 1

    @property
    def adapts(self) -> bool:
        """True if the loss adapts to validation data."""
        return self.loss not in FIXED

    @property
    def file(self) -> str:
        """Name of the run's file."""
        parts = [self.loss.replace(" ", "-"), f"seed{self.seed}", f"{self.epochs}epochs"]
        return "_".join([*parts, f"rate{self.rate:g}", f"updates{self.updates}"])


FIXED: dict[str, Loss] = {
    "CE": CrossEntropyLoss(),
    "focal-3": FocalLoss(),
    "FLSD-53": FLSD53Loss(),
}


def run(plan: Plan, parts: dict[str, Images]) -> dict[str, Any]:
    """Train, and measure on every part not used for training or adaptation.

    ``parts`` are train, validation (for AdaFocal and the maps), and the parts to measure on. The
    result is plain JSON: figures by part and map, AdaFocal's states, and the metrics by epoch, on
    the selection part if there is one, else on validation.
    """
    start = time.perf_counter()
    torch.set_num_threads(1)
    torch.manual_seed(plan.seed)
    inputs = {name: part.tensor() for name, part in parts.items()}
    model = network()
    course, states = _train(plan, model, inputs, parts)
    logits = {name: predict(model, inputs[name]) for name in parts if name != "train"}
    fit = CalibrationSet(logits.pop("validation"), parts["validation"].labels)
    return {
        "seconds": time.perf_counter() - start,
        "figures": {
            name: measured(fit, CalibrationSet(found, parts[name].labels))
            for name, found in logits.items()
        },
        "course": course,
        "states": [state.to_dict() for state in states],
    }


def _train(
    plan: Plan, model: nn.Module, inputs: dict[str, Tensor], parts: dict[str, Images]
) -> tuple[list[dict[str, Any]], list[AdaFocalState]]:
    adafocal = AdaFocalLoss(rate=plan.rate) if plan.adapts else None
    loss: Loss = adafocal or FIXED[plan.loss]
    steps = optimiser(model)
    labels = torch.from_numpy(parts["train"].labels)
    watched = "selection" if "selection" in parts else "validation"
    course, states = [], []
    for _ in range(plan.epochs):
        for piece in torch.randperm(len(labels)).tensor_split(plan.updates):
            train(model, steps, loss, inputs["train"], labels, piece.split(BATCH))
            if adafocal:
                statistics = counted(model, inputs["validation"], parts["validation"])
                adafocal.state = adafocal.state.update(statistics)
                states.append(adafocal.state)
        course.append(asdict(counted(model, inputs[watched], parts[watched]).summary()))
    return course, states


def counted(model: nn.Module, inputs: Tensor, part: Images) -> BinStatistics:
    """Return the statistics of a pass over a part."""
    return BinStatistics.from_logits(predict(model, inputs), part.labels)


def measured(fit: CalibrationSet, test: CalibrationSet) -> dict[str, dict[str, float]]:
    """Return error, ECE, AdaECE and the ECE's noise floor in percent, and NLL, for each map."""
    found = {}
    for name, recipe in MAPS.items():
        scores = row_scores(recipe.fit(fit).apply_set(test), test.labels)
        found[name] = {
            "error": 100 * (1 - float(scores.top.correct.mean())),
            "ece": 100 * scores.top.equal_width(15).ece(),
            "ada_ece": 100 * scores.top.equal_mass(15).ece(),
            "nll": float(scores.nll.mean()),
            "floor": 100 * noise_floor(scores.top.confidence, draws=100).mean,
        }
    return found
