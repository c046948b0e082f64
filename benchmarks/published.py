"""Two published procedures in plain torch, following their papers and public code.

Both take from minutes to hours at 1,000 classes, so each runs until it is done or its time is up
and reports the share of the work that it completed.
"""

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.data import Sample

GRID = 100
GRID_STEP = 0.1
SWEEPS = 5
BINS = 15
PTS_STEPS = 100_000
PTS_BATCH = 1_000
PTS_RATE = 5e-5
PTS_INPUTS = 10
PTS_HIDDEN = 5
PTS_CLIP = 100.0
WARM_UP = 10


@dataclass(frozen=True)
class Reached:
    """Result of a procedure within its time: top-label confidences, and whether they are correct.

    ``whole`` is the time of the full procedure: measured if ``done`` is 1, otherwise extrapolated.
    """

    confidence: np.ndarray
    correct: np.ndarray
    done: float
    whole: float


def columns(sample: Sample, budget: float) -> Reached:
    """Run CTS as published (Frenkel, Goldberger 2021): columns divided by class temperatures.

    The predicted class may change.
    """
    return _class_temperatures(sample, budget, lambda logits, found: logits / found)


def predicted_class(sample: Sample, budget: float) -> Reached:
    """Run the search with each row divided by the temperature of its predicted class."""
    import torch

    top = torch.from_numpy(sample.logits.argmax(axis=1))
    return _class_temperatures(sample, budget, lambda logits, found: logits / found[top, None])


def _class_temperatures(
    sample: Sample, budget: float, scaled: Callable[[Any, Any], Any]
) -> Reached:
    """Choose the best of 100 temperatures for one class after another.

    The best has the lowest ECE over all samples, with all probabilities recomputed. The search
    starts at the best single temperature of the same grid, which is not timed. Sweeps over the
    classes continue until none changes, at most 5; if time runs out, the full procedure is counted
    as one sweep, which favours it.
    """
    import torch

    logits, labels = torch.from_numpy(sample.logits), torch.from_numpy(sample.labels)
    k = logits.shape[1]
    grid = [GRID_STEP * (step + 1) for step in range(GRID)]
    values = [_ece(logits / t, labels) for t in grid]
    best, found = min(values), torch.full((k,), grid[int(np.argmin(values))])
    clock = _Clock(k * GRID, budget)
    for _ in range(SWEEPS):
        before = found
        for label, t in itertools.product(range(k), grid):
            tried = found.clone()
            tried[label] = t
            value = _ece(scaled(logits, tried), labels)
            if value < best:
                best, found = value, tried
            if not clock.tick():
                break
        if clock.is_over or torch.equal(before, found):
            break
    confidence, predicted = torch.softmax(scaled(logits, found), dim=1).max(dim=1)
    return clock.reached(confidence, predicted == labels)


def parametrized_temperature(sample: Sample, budget: float) -> Reached:
    """Train PTS (Tomani, Cremers, Buettner 2022) with Adam on the ten largest logits.

    The network has two hidden layers of 5 relu units; the absolute value of its output is the
    temperature. The loss is the squared error between confidence and correctness. Logits are
    clipped to +-100, and there are 100,000 steps of 1,000 samples at 5e-5. Ten more steps at the
    start are not timed, because the first ones are slow.
    """
    import torch

    torch.manual_seed(0)
    logits = torch.from_numpy(sample.logits).clamp(-PTS_CLIP, PTS_CLIP)
    labels = torch.from_numpy(sample.labels)
    largest = logits.topk(min(PTS_INPUTS, logits.shape[1]), dim=1).values
    correct = (logits.argmax(dim=1) == labels).float()
    network = torch.nn.Sequential(
        torch.nn.Linear(largest.shape[1], PTS_HIDDEN),
        torch.nn.ReLU(),
        torch.nn.Linear(PTS_HIDDEN, PTS_HIDDEN),
        torch.nn.ReLU(),
        torch.nn.Linear(PTS_HIDDEN, 1),
    )
    optimiser = torch.optim.Adam(network.parameters(), lr=PTS_RATE)

    def confidence(rows: Any) -> Any:
        temperature = network(largest[rows]).abs().clamp(1e-12, 1e12)
        return torch.softmax(logits[rows] / temperature, dim=1).max(dim=1).values

    def train(rows: Any) -> None:
        optimiser.zero_grad()
        ((confidence(rows) - correct[rows]) ** 2).mean().backward()
        optimiser.step()

    batches = _batches(len(logits))
    for rows in itertools.islice(batches, WARM_UP):
        train(rows)
    clock = _Clock(PTS_STEPS, budget)
    for rows in itertools.islice(batches, PTS_STEPS):
        train(rows)
        if not clock.tick():
            break
    with torch.no_grad():
        return clock.reached(confidence(slice(None)), correct)


def _batches(n: int) -> Iterator[Any]:
    """Yield batches of shuffled rows, epoch after epoch."""
    import torch

    while True:
        yield from torch.randperm(n).split(PTS_BATCH)


def _ece(logits: Any, labels: Any) -> float:
    """Return the ECE of the softmax with 15 equal-width bins."""
    import torch

    confidence, predicted = torch.softmax(logits, dim=1).max(dim=1)
    gap = confidence.double() - (predicted == labels).double()
    place = (confidence * BINS).ceil().long().clamp(1, BINS) - 1
    sums = torch.zeros(BINS, dtype=torch.float64).index_add_(0, place, gap)
    return float(sums.abs().sum()) / len(labels)


class _Clock:
    """Counter of units of work with a time limit."""

    def __init__(self, units: int, budget: float) -> None:
        self._units, self._budget, self._count = units, budget, 0
        self._start, self._spent = time.perf_counter(), 0.0

    @property
    def is_over(self) -> bool:
        return self._spent >= self._budget

    def tick(self) -> bool:
        """Count one unit; return whether there is time left."""
        self._count += 1
        self._spent = time.perf_counter() - self._start
        return not self.is_over

    def reached(self, confidence: Any, correct: Any) -> Reached:
        done = min(1.0, self._count / self._units)
        return Reached(
            confidence.numpy().astype(np.float64),
            correct.numpy().astype(bool),
            done,
            self._spent / done,
        )
