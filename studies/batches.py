"""SECA and cross-entropy by batch size, as in Figures 6 to 9 of the SECA paper.

    python studies/batches.py [--data PATH] [--quick]

The network and optimiser are as in losses.py; 10,000 Fashion-MNIST images are used for training and
the 10,000 test images for the table. Each finished run is stored in --kept, so that an interrupted
study resumes. The table of docs/studies/epochs.md is written to --out.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from cnn import network, optimiser, predict, train
from fashion_mnist import Images, divided, load, synthetic
from kept import Found, put_between, run_all, spread

from calibrators import metrics as m
from calibrators.losses import make_loss
from calibrators.numerics.softmax import softmax

LOSSES = ("cross_entropy", "seca")
SIZES = (8, 16, 32, 64, 128)
SEEDS = (0,)
EPOCHS = 20
TRAIN_ROWS = 10_000
FIGURES = ("error", "ece", "ada_ece")


@dataclass(frozen=True)
class Plan:
    """A loss, a batch size, a seed and a number of epochs."""

    loss: str
    batch: int
    seed: int
    epochs: int

    @property
    def file(self) -> str:
        """Name of the run's file."""
        return f"{self.loss}_batch{self.batch}_seed{self.seed}_{self.epochs}epochs"


def run(plan: Plan, parts: Mapping[str, Images]) -> Found:
    """Train, and measure on the test images; return errors in percent."""
    start = time.perf_counter()
    torch.set_num_threads(1)
    torch.manual_seed(plan.seed)
    images = parts["train"].take(np.arange(min(TRAIN_ROWS, len(parts["train"].labels))))
    inputs, labels = images.tensor(), torch.from_numpy(images.labels)
    model, loss = network(), make_loss(plan.loss)
    steps = optimiser(model)
    for _ in range(plan.epochs):
        train(model, steps, loss, inputs, labels, torch.randperm(len(labels)).split(plan.batch))
    p = softmax(predict(model, parts["test"].tensor()), lambda _: 1.0)
    top = m.top_label(p, parts["test"].labels)
    values = (1 - top.accuracy, m.ece(top), m.ada_ece(top))
    return {
        "seconds": time.perf_counter() - start,
        **{name: 100 * value for name, value in zip(FIGURES, values, strict=True)},
    }


def alone(batch: int, classes: int = 10) -> float:
    """Return the probability that a row is the only one of its class in a batch."""
    return float((1 - 1 / classes) ** (batch - 1))


def table(found: Sequence[Found]) -> str:
    """Return error, ECE and AdaECE by batch size, and the ratio of the ECE to cross-entropy's."""
    titles = ("error", "ECE", "AdaECE")
    heads = [f"{title}, {loss}" for title in titles for loss in LOSSES]
    lines = [f"| batch | alone | {' | '.join(heads)} | ECE, ratio |"]
    lines.append("|---:|---:|" + "---:|" * (len(heads) + 1))
    for batch in sorted({one["plan"]["batch"] for one in found}):
        of = {
            loss: [one for one in found if (one["plan"]["loss"], one["plan"]["batch"]) == key]
            for loss in LOSSES
            for key in [(loss, batch)]
        }
        cells = [spread([one[name] for one in of[loss]]) for name in FIGURES for loss in LOSSES]
        ece = [np.mean([one["ece"] for one in of[loss]]) for loss in LOSSES]
        cells.append(f"{ece[1] / ece[0]:.2f}")
        lines.append(f"| {batch} | {100 * alone(batch):.1f} % | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def planned(epochs: int, seeds: Sequence[int]) -> list[Plan]:
    """Return the runs, the large batches first."""
    return [
        Plan(loss, batch, seed, epochs)
        for seed in seeds
        for batch in reversed(SIZES)
        for loss in LOSSES
    ]


def main() -> None:
    """Run the study and write its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help=".npz file or folder; see fashion_mnist.load")
    parser.add_argument("--quick", action="store_true", help="smoke test on synthetic images")
    parser.add_argument("--processes", type=int, default=2, help="parallel runs, one core each")
    parser.add_argument("--kept", type=Path, default=Path("out/study-batches"))
    parser.add_argument("--out", type=Path, default=Path("docs/studies"))
    options = parser.parse_args()
    plans = planned(1, SEEDS[:1]) if options.quick else planned(EPOCHS, SEEDS)
    images = (synthetic(900, 1), synthetic(200, 2)) if options.quick else load(options.data)
    found = run_all(plans, run, divided(*images, False), options.kept, options.processes)
    text = table(found)
    sys.stdout.write(text)
    put_between(options.out / "epochs.md", "batches", text)


if __name__ == "__main__":
    main()
