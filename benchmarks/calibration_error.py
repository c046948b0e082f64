"""Topic 2: ECE with 15 equal-width bins from float32 probabilities."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from benchmarks import data, ours, reference
from benchmarks.output import Row, Target, Topic
from benchmarks.rivals import ece_rivals
from benchmarks.timing import Contender, Measured, alternate, milliseconds, ratio

BINS = 15
AGAINST = "torchmetrics"
OUR_SHARE = 0.6
OUR_ERROR = 1e-9


def run(sizes: Iterable[tuple[int, int]], rounds: int, budget: float) -> Iterable[Topic]:
    """Yield a table for each size."""
    for n, k in sizes:
        yield compare(data.draw(n, k), rounds, budget)


def compare(sample: data.Sample, rounds: int, budget: float) -> Topic:
    """Time our ECE and that of other libraries."""
    probabilities = data.softmax(sample.logits)
    labels = sample.labels
    truth = reference.expected_calibration_error(probabilities, labels, BINS)
    rivals = {rival.name: rival for rival in ece_rivals()}
    contenders = [Contender(ours.NAME, lambda: ours.ece(probabilities, labels))]
    contenders += [
        Contender(name, lambda rival=rival: rival.run(probabilities, labels))
        for name, rival in rivals.items()
    ]
    measured = alternate(contenders, rounds, budget)
    mine = measured[ours.NAME]
    rows = []
    for name, found in measured.items():
        comparable = name not in rivals or rivals[name].comparable
        rows.append(_row(found, mine, truth if comparable else None))
    return Topic(
        f"ECE-{BINS}, {sample.size} float32 probabilities",
        rows,
        [
            Target(f"our share of {AGAINST}", ratio(mine, measured[AGAINST]), OUR_SHARE),
            Target("our error", _error(mine, truth), OUR_ERROR),
        ],
        f"reference in float64: {truth:.12f}; smECE is a different quantity, shown for its cost",
    )


def _row(found: Measured, mine: Measured, truth: float | None) -> Row:
    return {
        "method": found.name,
        "ms": milliseconds(found.median),
        "fastest": milliseconds(found.fastest),
        "runs": found.runs,
        "ours / it": ratio(mine, found),
        "value": found.value,
        "error": _error(found, truth),
        "failure": found.error,
    }


def _error(found: Measured, truth: float | None) -> float | None:
    value: Any = found.value
    if found.error or truth is None or value is None or not np.isfinite(value):
        return None
    return abs(float(value) - truth)
