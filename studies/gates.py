"""Rules by which `auto` could choose between TS and SMART, on real logits.

    python studies/gates.py FOLDER

Each rule sees only out-of-fold scores inside the fit half (4 folds), and is paid by ECE-15 minus
noise floor on the test half: mean over the same-distribution sets of their mean over splits.
Candidates are the model itself, TS, SMART, and temperatures between the last two,
log T = (1 - a) log T_TS + a log T_SMART. Protocol as in studies/auto.py.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from auto import splits

from calibrators import CalibrationSet
from calibrators.methods.smart import Smart
from calibrators.methods.temperature import TemperatureScaling
from calibrators.metrics import RowScores, noise_floor, paired_intervals, row_scores
from calibrators.softmax import softmax

FOLDS = 4
BETWEEN = (0.0, 0.25, 0.5, 0.75, 1.0)
NONE = "none"
THREE = (NONE, 0.0, 1.0)
Key = str | float


@dataclass(frozen=True)
class Split:
    """What a rule may see of each candidate (out-of-fold scores), and what it is paid."""

    seen: dict[Key, RowScores]
    paid: dict[Key, float]

    def change(self, base: Key, other: Key, score: str, deviations: float) -> float:
        """Out-of-fold change from base to other plus so many standard deviations of it."""
        interval = paired_intervals(self.seen[base], self.seen[other], draws=200, level=0.6827)[
            score
        ]
        return interval.value + deviations * (interval.high - interval.low) / 2

    def score(self, key: Key) -> float:
        return self.seen[key].top.equal_mass(15).debiased_squared()


def betas(data: CalibrationSet, other: CalibrationSet) -> tuple[np.ndarray, np.ndarray]:
    """1/T of TS and of SMART, fitted on ``data``, for every row of ``other``."""
    scaled, smart = TemperatureScaling().fit(data), Smart().fit(data)
    return tuple(1 / one.temperatures(other.logits) for one in (scaled, smart))


def scores(data: CalibrationSet, beta: np.ndarray) -> RowScores:
    z = data.logits.astype(np.float64)
    return row_scores(softmax((z - z.max(axis=1, keepdims=True)) * beta[:, None]), data.labels)


def prepare(fit: CalibrationSet, test: CalibrationSet) -> Split:
    fold = fit.folds(FOLDS)
    inside = np.empty((2, fit.n))
    for number in range(FOLDS):
        rows = np.flatnonzero(fold == number)
        inside[:, rows] = betas(fit.take(np.flatnonzero(fold != number)), fit.take(rows))
    outside = np.array(betas(fit, test))
    seen, paid = {NONE: scores(fit, np.ones(fit.n))}, {}
    judged = {NONE: scores(test, np.ones(test.n))}
    for a in BETWEEN:
        seen[a] = scores(fit, inside[0] ** (1 - a) * inside[1] ** a)
        judged[a] = scores(test, outside[0] ** (1 - a) * outside[1] ** a)
    for key, rows in judged.items():
        floor = noise_floor(rows.top.confidence, draws=100).mean
        paid[key] = 100 * (rows.top.equal_width(15).ece() - floor)
    return Split(seen, paid)


def smallest(keys: tuple[Key, ...]) -> Callable[[Split], Key]:
    return lambda split: min(keys, key=split.score)


def simplest(keys: tuple[Key, ...]) -> Callable[[Split], Key]:
    """The first candidate that the best one does not beat by a standard deviation."""

    def rule(split: Split) -> Key:
        best = min(keys, key=split.score)
        within = (k for k in keys if k == best or split.change(k, best, DEBIASED, 1.0) >= 0)
        return next(within)

    return rule


def gate(score: str, deviations: float) -> Callable[[Split], Key]:
    """Leave TS for SMART only if it is better by so many standard deviations."""
    return lambda split: 1.0 if split.change(0.0, 1.0, score, deviations) < 0 else 0.0


DEBIASED = "debiased_squared_error"
RULES: dict[str, Callable[[Split], Key]] = {
    "the model itself": lambda split: NONE,
    "always TS": lambda split: 0.0,
    "always SMART": lambda split: 1.0,
    "always half-way between TS and SMART": lambda split: 0.5,
    "best of the three in hindsight": lambda split: min(THREE, key=split.paid.__getitem__),
    "smallest debiased error of the three": smallest(THREE),
    "smallest debiased error of TS to SMART in quarters": smallest(BETWEEN),
    "simplest of the three within one deviation": simplest(THREE),
    "simplest of TS, half-way, SMART within one deviation": simplest((0.0, 0.5, 1.0)),
    "leave TS if ECE is smaller": gate("ece", 0.0),
    "leave TS if Brier is better by 1 deviation": gate("brier", 1.0),
    "leave TS if NLL is better by 1 deviation": gate("nll", 1.0),
    **{
        f"leave TS if debiased error is better by {d:g} deviations": gate(DEBIASED, d)
        for d in (0.0, 0.5, 1.0, 1.5, 2.0)
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    names = sorted(path.stem for path in folder.glob("*.npz"))
    names = [n for n in names if not n.endswith(("__cal", "_noise")) and "__shift_" not in n]
    prepared = {}
    for name in names:
        prepared[name] = [prepare(fit, test) for fit, test in splits(folder, name)]
        sys.stderr.write(f"{name} done\n")
    sys.stdout.write("| rule | ECE-15 minus floor | worst set, rule minus TS |\n|---|---|---|\n")
    for title, rule in RULES.items():
        paid = {n: [s.paid[rule(s)] for s in prepared[n]] for n in names}
        mean = np.mean([np.mean(paid[n]) for n in names])
        lost = {n: np.mean(paid[n]) - np.mean([s.paid[0.0] for s in prepared[n]]) for n in names}
        worst = max(lost, key=lost.__getitem__)
        sys.stdout.write(f"| {title} | {mean:.3f} | {lost[worst]:+.2f} ({worst}) |\n")


if __name__ == "__main__":
    main()
