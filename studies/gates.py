"""Rules by which `auto` could choose among the methods that keep the class, on real logits.

    python studies/gates.py FOLDER

Each rule sees only out-of-fold scores inside the fit rows (4 folds), and is paid by ECE-15 minus
noise floor on the test rows: mean over the same-distribution sets of their mean over splits, which
are those of logit_sets.py. The table of docs/studies/auto.md is written into --out.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from kept import Found, put_between, run_all
from logit_sets import is_shifted, set_names, split, split_numbers

from calibrators import CalibrationSet, CalibrationWarning
from calibrators.context import FitContext
from calibrators.methods._contest import SIMPLE, Contest
from calibrators.methods.auto import base_of
from calibrators.methods.temperature import TemperatureScaling
from calibrators.metrics import RowScores, noise_floor, paired_intervals, row_scores
from calibrators.registry import all_methods, keeps_class, make_recipe

FOLDS = 4
DRAWS = 200
DEBIASED = "debiased_squared_error"


def candidates() -> tuple[str, ...]:
    """The methods that keep the predicted class."""
    return tuple(name for name in sorted(all_methods()) if keeps_class(name))


@dataclass(frozen=True)
class Plan:
    """One split of one set, with all candidates."""

    data: str
    split: int
    candidates: tuple[str, ...]

    @property
    def file(self) -> str:
        return f"{self.data}-{self.split}"


@dataclass(frozen=True)
class Seen:
    """What a rule may see: auto's base, and each candidate's out-of-fold scores."""

    base: str
    scores: dict[str, RowScores]
    changes: dict[tuple[str, str], dict[str, tuple[float, float]]] = field(default_factory=dict)

    def change(self, base: str, other: str, score: str) -> tuple[float, float]:
        """Out-of-fold change of a score from base to other, and one standard deviation of it."""
        if (base, other) not in self.changes:
            pair = self.scores[base], self.scores[other]
            found = paired_intervals(*pair, draws=DRAWS, level=0.6827)
            self.changes[base, other] = {
                name: (one.value, (one.high - one.low) / 2) for name, one in found.items()
            }
        return self.changes[base, other][score]

    def error(self, name: str) -> float:
        return self.scores[name].top.equal_mass(15).debiased_squared()

    @property
    def challengers(self) -> list[str]:
        return [name for name in self.scores if name not in SIMPLE]


def always(name: str, seen: Seen) -> str:
    return name


def smallest(seen: Seen) -> str:
    """The smallest out-of-fold debiased error, whoever has it."""
    return min(seen.scores, key=seen.error)


def gate(score: str, deviations: float, names: tuple[str, ...], clearest: bool, seen: Seen) -> str:
    """Leave the base for the best of those better than it by so many standard deviations."""
    base, better = seen.base, {}
    for name in names or seen.challengers:
        value, deviation = seen.change(base, name, score)
        if value + deviations * deviation < 0:
            better[name] = value / deviation if clearest else value
    return min(better, key=lambda name: better[name]) if better else base


def rules() -> dict[str, Callable[[Seen], str]]:
    """The rules by what they do."""
    return {
        **{f"always {name}": partial(always, name) for name in candidates()},
        "smallest debiased error": smallest,
        "leave the base for SMART if better by 1 deviation": partial(
            gate, DEBIASED, 1.0, ("smart",), False
        ),
        **{
            f"leave the base for the best that is better by {d:g} deviations": partial(
                gate, DEBIASED, d, (), False
            )
            for d in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)
        },
        **{
            f"leave the base for the most clearly better, by {d:g} deviations": partial(
                gate, DEBIASED, d, (), True
            )
            for d in (1.0, 2.0)
        },
        **{
            f"leave the base for the best by {title} if better by 1 deviation": partial(
                gate, score, 1.0, (), False
            )
            for score, title in (("ece", "ECE"), ("brier", "Brier"), ("nll", "NLL"))
        },
    }


def run(plan: Plan, folder: Path) -> Found:
    """What each rule chose and was paid on one split."""
    start = time.monotonic()
    fit, test = split(folder, plan.data, plan.split)
    recipes = {name: make_recipe(name, {}) for name in plan.candidates}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        contest = Contest(fit, FitContext(), folds=FOLDS, seed=0, budget=math.inf)
        base, _ = base_of(fit, TemperatureScaling().fit(fit))
        seen = Seen(base, {name: one.scores for name, one in contest.held(recipes).items()})
        paid = {name: _paid(recipe.fit(fit), test) for name, recipe in recipes.items()}
    chosen = {title: rule(seen) for title, rule in rules().items()}
    return {"chosen": chosen, "paid": paid, "seconds": time.monotonic() - start}


def _paid(fitted: Any, test: CalibrationSet) -> dict[str, float]:
    rows = row_scores(fitted.apply_set(test), test.labels)
    floor = noise_floor(rows.top.confidence, draws=100).mean
    return {
        "above": 100 * (rows.top.equal_width(15).ece() - floor),
        "nll": float(rows.nll.mean()),
    }


def table(found: Sequence[Found]) -> str:
    """A row for each rule: what it is paid, its NLL, and the set on which it loses most to TS."""
    sets = sorted({one["plan"]["data"] for one in found})
    splits = {name: [one for one in found if one["plan"]["data"] == name] for name in sets}

    def means(choose: Callable[[Found], str], figure: str) -> dict[str, float]:
        return {
            name: float(np.mean([one["paid"][choose(one)][figure] for one in ones]))
            for name, ones in splits.items()
        }

    def hindsight(one: Found) -> str:
        return min(one["paid"], key=lambda name: one["paid"][name]["above"])

    scaled = means(lambda _: "temperature", "above")
    choices = {title: partial(_chosen, title) for title in found[0]["chosen"]}
    lines = ["| rule | ECE-15 minus floor | NLL | worst set, rule minus TS |"]
    lines.append("|---|---:|---:|---|")
    for title, choose in {**choices, "best in hindsight": hindsight}.items():
        above, loss = means(choose, "above"), means(choose, "nll")
        worst = max(sets, key=lambda name: above[name] - scaled[name])
        lines.append(
            f"| {title} | {np.mean(list(above.values())):.3f} | "
            f"{np.mean(list(loss.values())):.4f} | {above[worst] - scaled[worst]:+.2f} ({worst}) |"
        )
    return "\n".join(lines) + "\n"


def _chosen(title: str, one: Found) -> str:
    return str(one["chosen"][title])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--processes", type=int, default=2, help="splits at a time, a core each")
    parser.add_argument("--kept", type=Path, default=Path("out/study-auto"))
    parser.add_argument("--out", type=Path, default=Path("docs/studies"))
    options = parser.parse_args()
    names = [name for name in set_names(options.folder) if not is_shifted(name)]
    if not names:
        parser.error(f"no .npz files in {options.folder}")
    plans = [
        Plan(n, number, candidates()) for n in names for number in split_numbers(options.folder, n)
    ]
    found = run_all(plans, run, options.folder, options.kept, options.processes)
    text = table(found)
    sys.stdout.write(text)
    put_between(options.out / "auto.md", "rules", text)


if __name__ == "__main__":
    main()
