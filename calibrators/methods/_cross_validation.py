"""Cross-validation of the candidates of ``auto`` within a time budget."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np

from calibrators.base import Calibrator
from calibrators.data import CalibrationSet
from calibrators.errors import FitCancelled
from calibrators.fitting.context import FitContext
from calibrators.metrics import RowScores, TopLabel, row_scores
from calibrators.numerics.parallel import Floats

BASE = "additive"


def steps(recipes: dict[str, Calibrator], folds: int) -> int:
    """Return the number of progress steps: temperature scaling, every fold, and the final fit."""
    return folds * len(recipes) + 2


@dataclass(frozen=True)
class Trial:
    """A candidate and its out-of-fold scores."""

    method: str
    scores: RowScores


class Contest:
    """Cross-validation of the candidates within the time budget.

    The remaining time is shared equally among the candidates that have not started. A candidate's
    first fold predicts how long the others will take. A candidate that is expected to stay within
    its share runs all of its folds at once. The other candidates follow, cheapest first; each
    continues only if its remaining folds and a final fit are likely to finish in time. ``additive``
    is never left out.
    """

    def __init__(
        self, data: CalibrationSet, context: FitContext, *, folds: int, seed: int, budget: float
    ) -> None:
        self.left_out: list[dict[str, str]] = []
        self._data = data
        self._context = context
        self._folds = folds
        self._fold = data.folds(folds, seed=seed)
        self._deadline = time.monotonic() + budget
        self._done, self._total = 1, 1
        self._seconds: dict[str, float] = {}
        self._scores: dict[str, Floats] = {}

    def run(self, recipes: dict[str, Calibrator]) -> dict[str, Trial]:
        """Return the trials of all candidates that finished in time, in the recipes' order."""
        self._total = steps(recipes, self._folds)
        later = []
        for place, (name, recipe) in enumerate(recipes.items()):
            share = 1 / (len(recipes) - place)
            self._scores[name] = np.empty((4, self._data.n))
            self._run(name, recipe, 0, share)
            if name in self._scores and self._needed(name, 1) <= share * self._left():
                self._run_others(name, recipe)
            else:
                later.append(name)
        waiting = [name for name in later if name in self._scores]
        for name in sorted(waiting, key=lambda name: self._seconds[name]):
            self._run_others(name, recipes[name])
        self._context.seconds.update(self._seconds)
        return {name: self._trial(name) for name in recipes if name in self._scores}

    def _run_others(self, name: str, recipe: Calibrator) -> None:
        """Run the folds after the first, while the rest are likely to finish in time."""
        for number in range(1, self._folds):
            needed, left = self._needed(name, number), max(0.0, self._left())
            if needed > left and name != BASE:
                why = f"it needs about {needed:.3g} s more, but only {left:.3g} s are left"
                self._leave_out(name, why)
                return
            self._run(name, recipe, number)
            if name not in self._scores:
                return

    def _left(self) -> float:
        return self._deadline - time.monotonic()

    def _needed(self, name: str, done: int) -> float:
        """Return the expected seconds for the folds after the first ``done`` and a final fit."""
        fold = self._seconds[name] / done
        return fold * (self._folds - done) + fold * self._folds / (self._folds - 1)

    def _run(self, name: str, recipe: Calibrator, number: int, share: float = 1.0) -> None:
        """Run one fold of a candidate; stop it once its share of the remaining time is used up."""
        start = time.monotonic()
        deadline = math.inf if name == BASE else start + share * (self._deadline - start)
        if start >= deadline:
            self._leave_out(name, "it was not started because no time was left")
            return
        context = self._context.inner(deadline)
        rows = np.flatnonzero(self._fold == number)
        part = self._data.take(rows)
        try:
            fitted = recipe.fit_in(self._data.take(np.flatnonzero(self._fold != number)), context)
        except FitCancelled:
            self._context.cancelled()
            spent = time.monotonic() - start
            self._seconds[name] = self._seconds.get(name, 0.0) + spent
            self._leave_out(
                name,
                f"its fit was stopped after {spent:.3g} s, having used up its share of the time",
            )
            return
        scores = row_scores(fitted.apply_set(part), part.labels)
        self._scores[name][:, rows] = (
            scores.top.confidence,
            scores.top.correct,
            scores.nll,
            scores.brier,
        )
        self._seconds[name] = self._seconds.get(name, 0.0) + time.monotonic() - start
        self._done += 1
        self._context.step(self._done, self._total)

    def _leave_out(self, name: str, why: str) -> None:
        self.left_out.append({"method": name, "why": why})
        del self._scores[name]

    def _trial(self, name: str) -> Trial:
        confidence, correct, nll, brier = self._scores[name]
        return Trial(name, RowScores(TopLabel(confidence, correct.astype(bool)), nll, brier))
