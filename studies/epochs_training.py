"""One run of the study by epoch: a small network trained with one loss, with figures by epoch."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from cnn import BATCH, Logits, network, optimiser, predict, train
from fashion_mnist import Images
from kept import Found
from losses_training import Plan, sizes
from numpy.typing import NDArray
from posthoc_fitting import quietly
from torch import Tensor, nn

from calibrators import CalibrationSet, Calibrator
from calibrators import metrics as m
from calibrators.adafocal import BinStatistics
from calibrators.losses import Loss, make_loss
from calibrators.losses.adafocal import AdaFocalLoss
from calibrators.losses.focal import FocalLoss, InverseFocalLoss
from calibrators.losses.selective_risk import SelectiveRiskLoss
from calibrators.methods.ets import EnsembleTemperature
from calibrators.methods.identity import Identity
from calibrators.methods.spline import Spline
from calibrators.methods.temperature import TemperatureScaling
from calibrators.metrics.agreement import ClassAgreement
from calibrators.numerics.softmax import softmax

BINS = 15
TRAIN_ROWS = 10_000
MAPS: dict[str, Calibrator] = {
    "none": Identity(),
    "TS by NLL": TemperatureScaling(),
    "TS by ECE-EM": TemperatureScaling(objective="ada_ece", grid="tenths"),
    "ETS": EnsembleTemperature(),
    "spline": Spline(),
}
RATES = (0.05, 0.1, 0.2, 0.5)
WEIGHTED: dict[str, Loss] = {
    "cross-entropy": make_loss("cross_entropy"),
    "focal, gamma 3": FocalLoss(gamma=3.0),
    "inverse focal, gamma 2": InverseFocalLoss(gamma=2.0),
    "AU, no gradient through weights": SelectiveRiskLoss(),
    "AU, nu 0.1": SelectiveRiskLoss(weight_gradient=True),
    "AU, nu 0.4": SelectiveRiskLoss(weight_gradient=True, smoothing=0.4),
}
PROBABILITIES = (0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 0.99, 1.0)


@dataclass
class Watched:
    """A loss that also accumulates the agreement over the batches of an epoch."""

    loss: Loss
    agreement: ClassAgreement

    def __call__(self, logits: Tensor, labels: Tensor, **more: Any) -> Tensor:
        """Return the loss of a batch."""
        self.agreement += ClassAgreement.from_logits(logits.detach().numpy(), labels.numpy())
        return self.loss(logits, labels, **more)


def run(plan: Plan, parts: Mapping[str, Images]) -> Found:
    """Train, and record after each epoch the quantities that the papers' figures show.

    ``parts`` are train, validation (for AdaFocal, CalFocal and the maps), test, digits and noise.
    """
    start = time.perf_counter()
    torch.set_num_threads(1)
    torch.manual_seed(plan.seed)
    images = parts["train"]
    loss = make_loss(plan.loss, **dict(plan.params), **sizes(plan.loss, len(images.labels)))
    model = network()
    steps, inputs, labels = optimiser(model), images.tensor(), torch.from_numpy(images.labels)
    held_out, test = parts["validation"].tensor(), parts["test"].tensor()
    course = []
    for _ in range(plan.epochs):
        watched = Watched(loss, ClassAgreement())
        train(model, steps, watched, inputs, labels, torch.randperm(len(labels)).split(BATCH))
        loss.next_epoch()
        logits = predict(model, held_out)
        statistics = BinStatistics.from_logits(logits, parts["validation"].labels)
        if isinstance(loss, AdaFocalLoss):
            loss.state = loss.state.update(statistics)
        course.append(
            {
                **_agreement(watched.agreement),
                **_errors(predict(model, test), parts["test"].labels),
                **_bins(statistics, *_label_probabilities(model, inputs, images.labels)),
            }
        )
    made = {name: predict(model, part.tensor()) for name, part in parts.items() if name != "train"}
    return {
        "seconds": time.perf_counter() - start,
        "course": course,
        "gradients": gradients(model, inputs, labels) if plan.loss == "cross_entropy" else {},
        **_after_maps(made, parts),
    }


def _agreement(found: ClassAgreement) -> dict[str, float]:
    return {name: getattr(found, name) for name in ("entropy", "kl_divergence", "cosine")}


def _unscaled(_: Logits) -> float:
    return 1.0


def _errors(logits: Logits, labels: NDArray[np.int64]) -> dict[str, float]:
    p = softmax(logits, _unscaled)
    top = m.top_label(p, labels)
    return {
        "error": 1 - top.accuracy,
        "ece": m.ece(top),
        "ada_ece": m.ada_ece(top),
        "nll": m.nll(p, labels),
    }


def _label_probabilities(
    model: nn.Module, inputs: Tensor, labels: NDArray[np.int64]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the label's probability and the largest one for some training images."""
    p = softmax(predict(model, inputs[:TRAIN_ROWS]), _unscaled)
    return p[np.arange(len(p)), labels[: len(p)]], p.max(axis=1)


def _bins(
    statistics: BinStatistics, of_label: NDArray[Any], largest: NDArray[Any]
) -> dict[str, list[float | None]]:
    """Return validation C and A by bin, and the training rows within the same edges."""
    table = statistics.equal_mass(BINS)
    edges = np.append(table.lower, 1.0)[1:-1]
    place, own = np.searchsorted(edges, of_label, side="right"), np.sort(of_label)
    train: list[float | None] = [
        float(of_label[place == one].mean()) if (place == one).any() else None
        for one in range(BINS)
    ]
    return {
        "confidence": (table.accuracy - table.gap).tolist(),
        "accuracy": table.accuracy.tolist(),
        "train": train,
        "train_alone": [float(part.mean()) for part in np.array_split(own, BINS)],
        "train_top": [float(largest.mean())],
    }


def _after_maps(made: dict[str, Logits], parts: Mapping[str, Images]) -> Found:
    """Return errors after each map, and the detection of outsiders before and after TS."""
    fit = CalibrationSet(made["validation"], parts["validation"].labels)
    fitted = {name: quietly(one.fit, fit) for name, one in MAPS.items()}
    after, rocs = {}, {}
    for name, one in fitted.items():
        p, labels = one.apply(made["test"]), parts["test"].labels
        top = m.top_label(p, labels)
        after[name] = {"ece": m.ece(top), "ada_ece": m.ada_ece(top), "nll": m.nll(p, labels)}
        if name in ("none", "TS by NLL"):
            rocs[name] = {
                where: roc(p, one.apply(made[where]))
                for where in made.keys() - {"test", "validation"}
            }
    scaling: Any = fitted["TS by ECE-EM"]
    return {"after": after, "rocs": rocs, "temperature": scaling.temperature}


def roc(inside: NDArray[Any], outside: NDArray[Any]) -> dict[str, Any]:
    """Return the AUROC of the entropy, and the detection rate at each false-alarm rate."""
    known, unknown = _entropy(inside), _entropy(outside)
    limits = np.quantile(known, 1 - np.array(RATES))
    return {
        "auroc": m.ood_auroc(inside, outside),
        "detected": [float((unknown > limit).mean()) for limit in limits],
    }


def _entropy(p: NDArray[Any]) -> NDArray[np.float64]:
    wide = np.asarray(p, np.float64)
    return np.asarray(-(wide * np.log(np.where(wide > 0, wide, 1))).sum(axis=1))


def gradients(model: nn.Sequential, inputs: Tensor, labels: Tensor) -> dict[str, list[Any]]:
    """Return mean gradients with respect to the label's logit, by loss and label probability.

    Only correctly predicted rows count; batches are formed as in training.
    """
    logits = torch.from_numpy(predict(model, inputs[:TRAIN_ROWS]))
    known = labels[: len(logits)]
    p = torch.softmax(logits, dim=1)
    of_label = p.gather(1, known[:, None])[:, 0].numpy()
    right = (p.argmax(dim=1) == known).numpy()
    place = np.searchsorted(np.array(PROBABILITIES[1:-1]), of_label, side="right")
    found: dict[str, list[Any]] = {"rows": np.bincount(place[right], minlength=8).tolist()}
    for name, loss in WEIGHTED.items():
        slopes = np.concatenate(
            [
                _slopes(loss, *batch)
                for batch in zip(logits.split(BATCH), known.split(BATCH), strict=True)
            ]
        )
        found[name] = [
            float(slopes[right & (place == one)].mean()) if (right & (place == one)).any() else None
            for one in range(len(PROBABILITIES) - 1)
        ]
    return found


def _slopes(loss: Loss, logits: Tensor, labels: Tensor) -> NDArray[Any]:
    """Return the derivative of the batch's summed loss with respect to each label's logit."""
    leaf = logits.clone().requires_grad_()
    (len(leaf) * loss.eval()(leaf, labels)).backward()  # type: ignore[no-untyped-call]
    assert leaf.grad is not None  # noqa: S101
    return np.asarray(leaf.grad.gather(1, labels[:, None])[:, 0].numpy())
