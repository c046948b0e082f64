"""Topic 9: forward and backward of our losses, against torch's cross-entropy on the same batch."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks import data
from benchmarks.output import Row, Target, Topic
from benchmarks.timing import Contender, Measured, alternate, milliseconds, ratio

OVERHEAD = 1.5
BATCHES = 5
ADAFOCAL = "AdaFocalLoss"
TORCH = "torch cross_entropy"


def run(sizes: Iterable[tuple[int, int]], rounds: int, budget: float) -> Iterable[Topic]:
    for n, k in sizes:
        yield compare(data.draw(n, k), rounds, budget)


def compare(sample: data.Sample, rounds: int, budget: float) -> Topic:
    import torch

    logits = torch.from_numpy(sample.logits).requires_grad_()
    labels = torch.from_numpy(sample.labels)
    losses = {ADAFOCAL: _steered(sample), TORCH: torch.nn.functional.cross_entropy}

    def work(loss: Any) -> float:
        for _ in range(BATCHES):
            logits.grad = None
            value = loss(logits, labels)
            value.backward()
        return float(value)

    contenders = [Contender(name, lambda loss=loss: work(loss)) for name, loss in losses.items()]
    measured = alternate(contenders, rounds, budget)
    return Topic(
        f"loss and gradient, a batch of {sample.size} float32",
        [_row(found, measured[TORCH]) for found in measured.values()],
        [
            Target(
                "AdaFocal over cross-entropy", ratio(measured[ADAFOCAL], measured[TORCH]), OVERHEAD
            )
        ],
    )


def _steered(sample: data.Sample) -> Any:
    """AdaFocal with the bins of an update, and gammas of both signs in them."""
    from calibrators.adafocal import AdaFocalState, BinStatistics
    from calibrators.losses import AdaFocalLoss

    seen = BinStatistics.from_logits(sample.logits, sample.labels)
    state = AdaFocalState.initial().update(seen)
    return AdaFocalLoss(replace(state, gammas=np.linspace(-2.0, 5.0, state.settings.bins)))


def _row(found: Measured, torch_time: Measured) -> Row:
    def one_batch(seconds: float | None) -> float | None:
        return None if seconds is None else milliseconds(seconds / BATCHES)

    return {
        "loss": found.name,
        "ms": one_batch(found.median),
        "fastest": one_batch(found.fastest),
        "runs": found.runs,
        "it / torch": ratio(found, torch_time),
        "value": found.value,
        "failure": found.error,
    }
