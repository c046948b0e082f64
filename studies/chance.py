"""Rates at which `at_chance` detects shuffled labels and columns, and flags weak models.

    make study-verdicts

Each set is fitted and judged as a user would do it. Binary scores are normal with equal variances;
other logits are normal, with the label's column raised. The logits are doubled to make them
overconfident. The script writes the table of docs/studies/verdicts.md.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from kept import put_between
from numpy.typing import NDArray

from calibrators import CalibrationSet, CalibrationWarning, fit_and_judge, set_threads
from calibrators.registry import make_recipe
from calibrators.report.verdict import Verdict

Floats = NDArray[np.float64]
SETS = 300
OVERCONFIDENT = 2.0


class Case(NamedTuple):
    """A row of the table: rows and classes, the strength of the model, and the number of sets.

    For two classes, ``strength`` is the AUROC and ``share`` the frequency of class 1; for more,
    ``strength`` is added to the label's logit, and class frequencies fall as 1 / rank**``share``.
    """

    name: str
    n: int
    k: int
    strength: float
    share: float
    shuffled: bool = False
    method: str = "temperature"
    sets: int = SETS
    columns: Callable[[NDArray[np.intp], np.random.Generator], NDArray[np.intp]] | None = None


class Found(NamedTuple):
    """The result of one set."""

    at_chance: bool
    improved: bool
    accuracy: float
    by_chance: float


def reversed_columns(classes: NDArray[np.intp], _: np.random.Generator) -> NDArray[np.intp]:
    """Return the classes in reverse."""
    return classes[::-1]


def moved_columns(classes: NDArray[np.intp], _: np.random.Generator) -> NDArray[np.intp]:
    """Return the classes shifted by one, as if labels started at 1."""
    return np.roll(classes, 1)


def random_columns(classes: NDArray[np.intp], random: np.random.Generator) -> NDArray[np.intp]:
    """Return the classes in a random order that leaves none in its place."""
    while ((order := random.permutation(classes)) == classes).any():
        pass
    return order


CASES = (
    Case("shuffled, balanced", 1000, 2, 0.9, 0.5, shuffled=True),
    Case("shuffled, 2 % of class 1", 5000, 2, 0.9, 0.02, shuffled=True),
    Case("shuffled", 200, 10, 3.0, 0.0, shuffled=True),
    Case("shuffled", 1000, 10, 3.0, 0.0, shuffled=True),
    Case("shuffled, `dirichlet`", 5000, 10, 3.0, 0.0, shuffled=True, method="dirichlet", sets=200),
    Case("shuffled, `isotonic`", 5000, 10, 3.0, 1.0, shuffled=True, method="isotonic"),
    Case("shuffled, long tail", 5000, 1000, 5.0, 1.0, shuffled=True, sets=200),
    Case("columns reversed", 200, 2, 0.9, 0.5, columns=reversed_columns),
    Case("columns reversed", 1000, 10, 3.0, 0.0, columns=reversed_columns),
    Case("columns moved by one", 1000, 10, 3.0, 1.0, columns=moved_columns),
    Case("columns in random order", 200, 10, 3.0, 0.0, columns=random_columns),
    Case("columns in random order", 5000, 100, 4.0, 1.0, columns=random_columns),
    Case("AUROC 0.60, balanced", 200, 2, 0.6, 0.5),
    Case("AUROC 0.60, balanced", 500, 2, 0.6, 0.5),
    Case("AUROC 0.60, balanced", 1000, 2, 0.6, 0.5),
    Case("AUROC 0.55, balanced", 5000, 2, 0.55, 0.5),
    Case("AUROC 0.70, balanced", 200, 2, 0.7, 0.5),
    Case("AUROC 0.75, 1 % of class 1", 2000, 2, 0.75, 0.01),
    Case("AUROC 0.75, 1 % of class 1", 5000, 2, 0.75, 0.01),
    Case("AUROC 0.90, 0.2 % of class 1", 5000, 2, 0.9, 0.002),
    Case("weak", 200, 10, 0.6, 0.0),
    Case("weak", 1000, 10, 0.6, 0.0),
    Case("weak, long tail", 1000, 100, 1.0, 1.0),
    Case("weak", 1000, 1000, 2.5, 0.0, sets=200),
    Case("weak", 5000, 1000, 2.5, 0.0, sets=100),
)


def simulated(case: Case, random: np.random.Generator) -> tuple[Floats, NDArray[np.intp]]:
    """Return overconfident logits and labels."""
    if case.k == 2:
        labels = (random.random(case.n) < case.share).astype(np.intp)
        apart = 2**0.5 * NormalDist().inv_cdf(case.strength)
        score = random.normal(size=case.n) + apart * labels
        odds = apart * score - apart**2 / 2 + np.log(case.share / (1 - case.share))
        logits = np.column_stack((np.zeros(case.n), odds))
    else:
        frequency = np.arange(1, case.k + 1) ** -case.share
        labels = random.choice(case.k, size=case.n, p=frequency / frequency.sum())
        logits = random.normal(size=(case.n, case.k))
        logits[np.arange(case.n), labels] += case.strength
    if case.shuffled:
        labels = random.permutation(labels)
    if case.columns is not None:
        logits = logits[:, case.columns(np.arange(case.k), random)]
    return OVERCONFIDENT * logits, labels


def judged(case: Case, seeds: Iterable[int]) -> list[Found]:
    """Fit and judge one set for each seed."""
    set_threads(1)
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        for seed in seeds:
            data = CalibrationSet(*simulated(case, np.random.default_rng([seed, case.n, case.k])))
            report = fit_and_judge(make_recipe(case.method, {}), data).report
            test, verdict = report.chance, report.verdict
            by_chance = float("nan") if test is None else test.accuracy_by_chance
            found.append(
                Found(
                    verdict is Verdict.AT_CHANCE,
                    verdict is Verdict.IMPROVED,
                    report.metrics["accuracy"] or 0.0,
                    by_chance,
                )
            )
    return found


HEAD = (
    "| model | rows given | classes | sets | accuracy | by chance | `at_chance` | `improved` |\n"
    "|---|---:|---:|---:|---:|---:|---:|---:|"
)


def line(case: Case, found: list[Found]) -> str:
    """Return a row of the table, in percent."""
    means = (
        np.mean([one.accuracy for one in found]),
        np.nanmean([one.by_chance for one in found]),
        np.mean([one.at_chance for one in found]),
        np.mean([one.improved for one in found]),
    )
    shown = " | ".join(f"{100 * one:.1f}" for one in means)
    return f"| {case.name} | {case.n:,} | {case.k:,} | {len(found):,} | {shown} |"


def main() -> None:
    """Run the study and write its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("docs/studies/verdicts.md"))
    options = parser.parse_args()
    lines = [HEAD]
    sys.stdout.write(HEAD + "\n")
    with ProcessPoolExecutor(options.processes) as pool:
        for case in CASES:
            parts = [range(first, case.sets, 10) for first in range(10)]
            found = [one for part in pool.map(partial(judged, case), parts) for one in part]
            lines.append(line(case, found))
            sys.stdout.write(lines[-1] + "\n")
            sys.stdout.flush()
    put_between(options.out, "chance", "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
