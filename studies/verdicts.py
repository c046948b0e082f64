"""Error rates of verdicts on simulated models whose truth is known.

    make study-verdicts

The study asks three questions. Is a calibrated model called improved or worse? Is a map that ruins
ranking or accuracy called improved? Is a map that helps called improved? Labels are drawn from the
softmax of normal logits, so the truth is known. The script writes the table of
docs/studies/verdicts.md.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from kept import put_between
from numpy.typing import NDArray

from calibrators import CalibrationSet, CalibrationWarning, evaluate, fit_and_judge, set_threads
from calibrators.numerics.softmax import softmax
from calibrators.registry import make_recipe
from calibrators.report.verdict import Verdict

Floats = NDArray[np.float64]
SCALE = 3.0
OVERCONFIDENT = 2.0
PERTURBED = 0.5
FITTED = ((200, 2), (200, 10), (1000, 2), (1000, 10), (5000, 10))
SWAPPED = 0.5
SETS = 1000


class Case(NamedTuple):
    """A row of the table: the model and map judged, and the numbers of rows and classes."""

    question: str
    name: str
    n: int
    k: int


def truth(n: int, k: int, random: np.random.Generator) -> tuple[Floats, NDArray[np.intp]]:
    """Return logits (n, k) and labels drawn from their softmax."""
    logits = SCALE * random.normal(size=(n, k))
    return logits, (logits + random.gumbel(size=(n, k))).argmax(axis=1)


def scaled(case: Case, random: np.random.Generator) -> Verdict | None:
    """Fit temperature scaling to a calibrated model."""
    logits, labels = truth(case.n, case.k, random)
    return _judged("temperature", {}, logits, labels)


def exchanged(case: Case, random: np.random.Generator) -> Verdict | None:
    """Compare two equally good models: the true logits, each with independent noise."""
    logits, labels = truth(case.n, case.k, random)
    before, after = (
        softmax(logits + PERTURBED * random.normal(size=logits.shape)) for _ in range(2)
    )
    return evaluate(after, labels, before=before).verdict


def two_bins(case: Case, random: np.random.Generator) -> Verdict | None:
    """Fit a histogram of two bins to an overconfident model."""
    logits, labels = truth(case.n, case.k, random)
    return _judged("histogram", {"bins": 2}, OVERCONFIDENT * logits, labels)


def permuted(case: Case, random: np.random.Generator) -> Verdict | None:
    """Permute the calibrated confidences: right on average, worthless for each row."""
    logits, labels = truth(case.n, case.k, random)
    confidence = random.permutation(softmax(logits).max(axis=1))
    after = with_confidence(softmax(logits), confidence)
    return evaluate(after, labels, before=softmax(OVERCONFIDENT * logits)).verdict


def constant(case: Case, random: np.random.Generator) -> Verdict | None:
    """Give every row the accuracy as its confidence."""
    logits, labels = truth(case.n, case.k, random)
    right = logits.argmax(axis=1) == labels
    after = with_confidence(softmax(logits), np.full(case.n, right.mean()))
    return evaluate(after, labels, before=softmax(OVERCONFIDENT * logits)).verdict


def class_lost(case: Case, random: np.random.Generator) -> Verdict | None:
    """Predict the second class for half of the rows, with an appropriate confidence."""
    logits, labels = truth(case.n, case.k, random)
    chances, rows = softmax(logits), np.arange(case.n)
    first, second = np.argsort(-logits, axis=1)[:, :2].T
    swapped = random.random(case.n) < SWAPPED
    chosen = np.where(swapped, second, first)
    after = chances.copy()
    after[rows[swapped], first[swapped]] = 0.0
    after[rows, chosen] = np.maximum(chances[rows, chosen], after.max(axis=1) + 1e-6)
    rest = 1 - after[rows, chosen]
    after[rows, chosen] = 0.0
    after *= (rest / after.sum(axis=1))[:, None]
    after[rows, chosen] = 1 - rest
    return evaluate(after, labels, before=softmax(2 * OVERCONFIDENT * logits)).verdict


def repaired(case: Case, random: np.random.Generator) -> Verdict | None:
    """Fit temperature scaling to an overconfident model."""
    logits, labels = truth(case.n, case.k, random)
    return _judged("temperature", {}, OVERCONFIDENT * logits, labels)


def with_confidence(probabilities: Floats, confidence: Floats) -> Floats:
    """Set the confidence of each row, kept slightly above the rest; predictions stay."""
    rows, top = np.arange(len(probabilities)), probabilities.argmax(axis=1)
    others = probabilities.copy()
    others[rows, top] = 0.0
    others /= others.sum(axis=1, keepdims=True)
    largest = others.max(axis=1)
    least = largest / (1 + largest) + 1e-6  # where the top is as large as the second
    confidence = np.maximum(confidence, least)
    others *= (1 - confidence)[:, None]
    others[rows, top] = confidence
    return others


def _judged(
    method: str, parameters: dict[str, int], logits: Floats, labels: NDArray[np.intp]
) -> Verdict | None:
    recipe = make_recipe(method, parameters)
    return fit_and_judge(recipe, CalibrationSet(logits, labels)).report.verdict


QUESTIONS: dict[str, dict[str, Callable[[Case, np.random.Generator], Verdict | None]]] = {
    "calibrated": {"temperature scaling": scaled, "two equal models": exchanged},
    "ruined": {
        "histogram of 2 bins": two_bins,
        "confidences permuted": permuted,
        "confidence constant": constant,
        "half the classes lost": class_lost,
    },
    "repaired": {"temperature scaling": repaired},
}
CASES = [
    *(Case("calibrated", "temperature scaling", n, k) for n, k in FITTED),
    *(Case("calibrated", "two equal models", n, 10) for n in (200, 1000, 5000)),
    *(Case("ruined", "histogram of 2 bins", n, k) for n, k in ((200, 10), (1000, 10), (1000, 2))),
    *(Case("ruined", name, 200, 10) for name in list(QUESTIONS["ruined"])[1:]),
    *(Case("repaired", "temperature scaling", n, 10) for n in (200, 1000, 5000)),
]


def verdicts(case: Case, seeds: Iterable[int]) -> Counter[str]:
    """Count the verdicts on a case's sets, one per seed."""
    set_threads(1)
    simulate = QUESTIONS[case.question][case.name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        return Counter(str(simulate(case, np.random.default_rng([seed, case.n]))) for seed in seeds)


def line(case: Case, found: Counter[str]) -> str:
    """Return a row of the table, in percent of the sets."""
    total = found.total()
    shares = [f"{100 * found[verdict] / total:.1f}" for verdict in COLUMNS]
    return f"| {case.question} | {case.name} | {case.n:,} | {case.k} | {' | '.join(shares)} |"


COLUMNS = ("improved", "trade_off", "no_measurable_change", "worse")
HEAD = (
    f"| model | map | rows given | classes | {' | '.join(f'`{one}`' for one in COLUMNS)} |\n"
    f"|---|---|---:|---:|{'---:|' * len(COLUMNS)}"
)


def main() -> None:
    """Run the study and write its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", type=int, default=SETS, help="simulated sets per row")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("docs/studies/verdicts.md"))
    options = parser.parse_args()
    lines = [HEAD]
    sys.stdout.write(HEAD + "\n")
    with ProcessPoolExecutor(options.processes) as pool:
        for case in CASES:
            parts = [range(first, options.sets, 10) for first in range(10)]
            found = sum(pool.map(partial(verdicts, case), parts), Counter[str]())
            lines.append(line(case, found))
            sys.stdout.write(lines[-1] + "\n")
            sys.stdout.flush()
    put_between(options.out, "verdicts", "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
