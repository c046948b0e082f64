"""Coverage of the 95 % intervals, compared with the row bootstrap that they replaced.

    python studies/interval_coverage.py

Before the map, a model with 10 classes is overconfident by a factor of 1.5; after it, its logits
carry independent noise, which changes some predictions. The true values come from a sample of a
million rows. The script writes the table of docs/studies/verdicts.md.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from kept import put_between
from numpy.typing import NDArray
from verdicts import Floats, truth

from benchmarks import row_bootstrap
from calibrators import evaluate, set_threads
from calibrators.metrics import row_scores
from calibrators.numerics.softmax import softmax

CLASSES = 10
OVERCONFIDENT, NOISE = 1.5, 0.5
MANY = 1_000_000
SIZES = {200: 1000, 1000: 1000, 10_000: 300}
DRAWS = 400
RANKING = ("refinement_auroc", "aurc")


class Key(NamedTuple):
    """A cell of the table: side of the interval (after, or change), metric and procedure."""

    side: str
    metric: str
    procedure: str


def judged(n: int, random: np.random.Generator) -> tuple[Floats, Floats, NDArray[np.intp]]:
    """Return probabilities before and after, and labels."""
    logits, labels = truth(n, CLASSES, random)
    noisy = logits + NOISE * random.normal(size=logits.shape)
    return softmax(OVERCONFIDENT * logits), softmax(noisy), labels


def true_values() -> dict[str, dict[str, float]]:
    """Return the metrics after the map, and their change, on a million rows."""
    before, after, labels = judged(MANY, np.random.default_rng(0))
    found = evaluate(after, labels, before=before, draws=2)
    old, new = found.sides["before"].metrics, found.metrics
    names = (*row_bootstrap.NAMES, *RANKING)
    return {
        "after": {name: new[name] or 0.0 for name in names},
        "change": {name: (new[name] or 0.0) - (old[name] or 0.0) for name in names},
    }


def covered(n: int, expected: dict[str, dict[str, float]], seeds: Iterable[int]) -> Counter[Key]:
    """Count the intervals that contain the truth."""
    set_threads(1)
    counts: Counter[Key] = Counter()
    for seed in seeds:
        before, after, labels = judged(n, np.random.default_rng([seed, n]))
        report = evaluate(after, labels, before=before, draws=DRAWS, seed=seed)
        sides = [row_scores(before, labels), row_scores(after, labels)]
        _, old, old_change = row_bootstrap.intervals(sides, draws=DRAWS, seed=seed)
        for side, ours, frozen in (
            ("after", report.intervals, old),
            ("change", report.change, old_change),
        ):
            for name, value in expected[side].items():
                interval = ours[name]
                counts[Key(side, name, "now")] += interval.low <= value <= interval.high
                if name in frozen:
                    _, low, high = frozen[name]
                    counts[Key(side, name, "rows")] += low <= value <= high
        interval = report.gate_interval("ece")
        counts[Key("after", "gate_interval(ece)", "now")] += (
            interval.low <= expected["after"]["ece"] <= interval.high
        )
    return counts


def table(found: dict[int, Counter[Key]], sets: dict[int, int]) -> str:
    """Return the coverage in percent of the current intervals and of the row bootstrap."""
    lines = [
        f"| interval | {' | '.join(f'{n:,} rows' for n in found)} |",
        f"|---|{'---:|' * len(found)}",
    ]
    names = dict.fromkeys((key.side, key.metric) for counts in found.values() for key in counts)
    for side, metric in names:
        cells = []
        for n, counts in found.items():
            shares = [
                f"{100 * counts[Key(side, metric, how)] / sets[n]:.1f}"
                for how in ("now", "rows")
                if how == "now" or metric in row_bootstrap.NAMES
            ]
            cells.append(" / ".join(shares))
        lines.append(f"| {side}, `{metric}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the study and write its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--share", type=float, default=1.0, help="fraction of the usual sets")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("docs/studies/verdicts.md"))
    options = parser.parse_args()
    sets = {n: max(10, round(options.share * usual)) for n, usual in SIZES.items()}
    expected = true_values()
    found = {}
    with ProcessPoolExecutor(options.processes) as pool:
        for n, many in sets.items():
            parts = [range(first, many, 10) for first in range(10)]
            found[n] = sum(pool.map(partial(covered, n, expected), parts), Counter[Key]())
            sys.stdout.write(table(found, sets) + "\n")
            sys.stdout.flush()
    put_between(options.out, "coverage", table(found, sets))


if __name__ == "__main__":
    main()
