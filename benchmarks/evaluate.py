"""Topic: `evaluate` on one core, compared with the row bootstrap that it used before."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks import data, ours, row_bootstrap
from benchmarks.output import Row, Target, Topic
from benchmarks.timing import Contender, Measured, alternate, milliseconds
from calibrators import Report, get_threads, set_threads
from calibrators.metrics import RowScores, row_scores
from calibrators.numerics.softmax import margins

SECONDS = 2.0
SAME_BOUNDS = 0.1
SHARPENED = 1.5
FROZEN = "row bootstrap and floors, frozen"
ALONE = f"{ours.NAME}, one side"
PAIRED = f"{ours.NAME}, before and after"


@dataclass
class Clock:
    """A call that records its processor seconds, which other processes hardly affect."""

    call: Callable[[], Any]
    seconds: list[float] = field(default_factory=list)

    def __call__(self) -> Any:
        """Run the call and record its processor seconds."""
        start = time.process_time()
        found = self.call()
        self.seconds.append(time.process_time() - start)
        return found

    @property
    def fastest(self) -> float | None:
        """The minimum of the processor seconds; None before the first call."""
        return min(self.seconds, default=None)


def run(sizes: Iterable[tuple[int, int]], rounds: int, budget: float) -> Iterable[Topic]:
    """Yield a table for each size."""
    for n, k in sizes:
        with one_thread():
            topic = compare(data.draw(n, k), rounds, budget)
        yield topic


def compare(sample: data.Sample, rounds: int, budget: float) -> Topic:
    """Time the report with its intervals and the frozen bootstrap."""
    after, before = (
        data.softmax(np.asarray(factor * sample.logits, dtype=np.float32))
        for factor in (1.0, SHARPENED)
    )
    labels = sample.labels
    sides = [row_scores(before, labels), row_scores(after, labels)]
    margin = margins(sample.logits)
    clocks = {
        ALONE: Clock(lambda: ours.evaluate(after, labels)),
        PAIRED: Clock(lambda: ours.evaluate(after, labels, before)),
        FROZEN: Clock(lambda: frozen(sides, margin)),
    }
    contenders = [Contender(name, clock) for name, clock in clocks.items()]
    measured = alternate(contenders, rounds, budget)
    paired, old = measured[PAIRED], measured[FROZEN]
    return Topic(
        f"evaluate, {sample.size} float32 probabilities, 1,000 draws, one core",
        [_row(found, clocks[PAIRED], clocks[name]) for name, found in measured.items()],
        [
            Target("processor seconds, one side", clocks[ALONE].fastest, SECONDS),
            Target("processor seconds, before and after", clocks[PAIRED].fastest, SECONDS),
            Target("bounds that differ, in widths", differences(paired, old), SAME_BOUNDS),
        ],
        "the frozen code computes only intervals and noise floors, evaluate the whole report",
    )


def frozen(sides: list[RowScores], margin: np.ndarray) -> list[row_bootstrap.Bounds]:
    """Compute the intervals of two sides, and the noise floors of all rows and of thirds."""
    third = np.searchsorted(np.quantile(margin, [1 / 3, 2 / 3]), margin)
    for side in sides:
        row_bootstrap.noise_floor(side.top.confidence)
        for number in range(3):
            row_bootstrap.noise_floor(side.top.confidence[third == number])
    return row_bootstrap.intervals(sides)


def differences(paired: Measured, old: Measured) -> float | None:
    """Return the largest distance of our bounds from the frozen ones, in interval widths.

    Two bootstraps of 1,000 draws differ by about 0.03 widths by chance.
    """
    if paired.error or old.error or paired.value is None or old.value is None:
        return None
    report: Report = paired.value
    mine = [report.sides["before"].intervals, report.intervals, report.change]
    found = [
        _distance(ours_[name], frozen_[name])
        for ours_, frozen_ in zip(mine, old.value, strict=True)
        for name in row_bootstrap.NAMES
    ]
    return max(found)


def _distance(mine: Any, bounds: tuple[float, float, float]) -> float:
    _, low, high = bounds
    apart = max(abs(mine.low - low), abs(mine.high - high))
    return apart / (high - low) if high > low else (0.0 if apart < 1e-12 else float("inf"))


def _row(found: Measured, paired: Clock, clock: Clock) -> Row:
    share = None
    if paired.fastest and clock.fastest:
        share = paired.fastest / clock.fastest
    return {
        "method": found.name,
        "processor ms": milliseconds(clock.fastest),
        "ms": milliseconds(found.median),
        "fastest": milliseconds(found.fastest),
        "runs": found.runs,
        "before and after / it": share,
        "failure": found.error,
    }


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit calibrators to one thread."""
    threads = get_threads()
    set_threads(1)
    try:
        yield
    finally:
        set_threads(threads)
