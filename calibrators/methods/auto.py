"""Auto: the simplest registered method that measurably calibrates better, or none at all."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Le

from calibrators.base import CalibrationMap, Calibrator, FitContext
from calibrators.constraints import field_hints
from calibrators.data import CalibrationSet
from calibrators.errors import ParameterError, SmallSample
from calibrators.methods.temperature import TemperatureMap, TemperatureScaling
from calibrators.metrics import (
    Interval,
    RowScores,
    TopLabel,
    calibration_intervals,
    paired_intervals,
    row_scores,
)
from calibrators.solvers import mean_nll, minimise_on_grid

FEW_ROWS = 100
PRIOR_DEVIATION = 0.5
ONE_DEVIATION = 0.6827
SCORE = "debiased_squared_error"
SIMPLE = ("identity", "temperature")


@dataclass(frozen=True)
class Auto(Calibrator):
    """Chooses among the registered methods that keep the predicted class, inside the fit set alone.

    1. Fewer than 100 rows, or no finite optimum: temperature scaling with log T ~ N(0, 0.5^2).
    2. The base is ``temperature`` if its likelihood gain pays for its parameter,
       ``2 n (NLL(1) - NLL(T)) > 2``; otherwise ``identity``: the model is left alone.
    3. Every other candidate is cross-validated (``folds``, stratified) against the base by the
       out-of-fold debiased squared calibration error (top label, 15 equal-mass bins). It must beat
       the base by one standard deviation of the paired bootstrap (``draws`` draws, shifted to the
       estimate: their 84 % quantile must be below 0); the best of those that do wins.

    The winner is fitted on all rows and returned as its own kind of map. Its ``fit_info`` holds
    every candidate with its out-of-fold score and 95 % interval, its change against the base, and
    ``why``.

    What was tried, on 13 real test sets of up to 1,000 classes, five splits each
    (``make study-auto``; mean ECE-15 minus noise floor in percent, in brackets what was lost
    against TS on the worst set):

    - always TS 2.12; always SMART 0.25 (one set 0.61 worse than TS); best of the three in hindsight
      0.14; temperatures half-way between TS and SMART 0.96;
    - smallest out-of-fold debiased error 0.24 (+0.61), also among TS to SMART in quarters 0.22
      (+0.54); simplest within one deviation 0.22 (+0.33), of TS, half-way and SMART 0.20 (+0.00);
    - leave TS if out-of-fold ECE is smaller 0.24 (+0.42); if Brier is better by one deviation 0.50,
      if NLL is 1.30: they keep TS where SMART is far better;
    - leave TS if the debiased error is better by 0, 0.5, 1, 1.5, 2 deviations: 0.22 (+0.61), 0.19
      (+0.23), 0.20 (+0.08), 0.18 (+0.00), 0.20 (+0.06).

    From half a deviation on these differ by less than their own noise; one deviation is kept as the
    middle of the flat part. With it, and the model itself as a base, ``auto`` reaches 0.20.

    >>> rng = np.random.default_rng(1)
    >>> z = rng.normal(size=(800, 4)) * 2
    >>> y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)        # perfectly calibrated already
    >>> fitted = Auto(candidates=("identity", "temperature")).fit(CalibrationSet(z, y))
    >>> fitted.method, fitted.fit_info["why"]
    ('identity', 'T = 0.99 would raise the likelihood no more than chance')
    """

    name = "auto"
    summary = "the simplest method that measurably calibrates better, by cross-validation"
    reference = "docs/studies/auto.md has the rules that were tried"
    cost = "five times its dearest candidate"

    seed: Annotated[int, Ge(0), Le(2**32 - 1)] = 0
    candidates: tuple[str, ...] = ()
    folds: Annotated[int, Ge(2), Le(20)] = 4
    draws: Annotated[int, Ge(20), Le(100_000)] = 200

    def _fit(self, data: CalibrationSet, context: FitContext) -> CalibrationMap:
        recipes = self._recipes()
        total = self.folds * len(recipes) + 2
        scaled = TemperatureScaling().fit_in(data, context.inner())
        context.step(1, total)
        if data.n < FEW_ROWS or scaled.fit_info["warnings"]:
            fitted = _with_prior(data, scaled, context)
            context.step(total, total)
            return fitted
        trials = {
            name: self._trial(name, recipe, data, Steps(context, 1 + self.folds * place, total))
            for place, (name, recipe) in enumerate(recipes.items())
        }
        base, why = _base(recipes, data, scaled)
        winner, why = self._winner(trials, base, why)
        chosen = recipes[winner].fit_in(data, context.without_progress())
        context.step(total, total)
        judged = [self._describe(trial, trials[base]) for trial in trials.values()]
        return chosen.with_info(
            chosen_by=self.name, winner=winner, why=why, base=base, candidates=judged
        )

    def _recipes(self) -> dict[str, Calibrator]:
        """The candidates' recipes by name, identity among them, with this recipe's seed."""
        from calibrators.registry import all_maps, get_method

        if self.name in self.candidates:
            raise ParameterError("bad_parameter", "Auto.candidates must not name 'auto' itself")
        names = self.candidates or [n for n, kind in all_maps().items() if kind.keeps_class]
        known = {name: get_method(name) for name in dict.fromkeys(["identity", *names])}
        return {
            name: recipe(**({"seed": self.seed} if "seed" in field_hints(recipe) else {}))
            for name, recipe in known.items()
        }

    def _trial(self, name: str, recipe: Calibrator, data: CalibrationSet, steps: Steps) -> Trial:
        """A candidate's out-of-fold scores on every row of the fit set."""
        fold = data.folds(self.folds, seed=self.seed)
        columns = np.empty((4, data.n))
        for number in range(self.folds):
            inside = steps.context.inner()
            fitted = recipe.fit_in(data.take(np.flatnonzero(fold != number)), inside)
            rows = np.flatnonzero(fold == number)
            part = data.take(rows)
            scores = row_scores(fitted.apply_set(part), part.labels)
            columns[:, rows] = scores.top.confidence, scores.top.correct, scores.nll, scores.brier
            steps.done(number + 1)
        confidence, correct, nll, brier = columns
        return Trial(name, RowScores(TopLabel(confidence, correct.astype(bool)), nll, brier))

    def _change(self, trial: Trial, base: Trial, level: float) -> Interval:
        changes = paired_intervals(
            base.scores, trial.scores, draws=self.draws, level=level, seed=self.seed
        )
        return changes[SCORE]

    def _winner(self, trials: dict[str, Trial], base: str, why: str) -> tuple[str, str]:
        """The challenger that beats the base most clearly, else the base; and why."""
        changes = {
            name: self._change(trial, trials[base], ONE_DEVIATION)
            for name, trial in trials.items()
            if name not in SIMPLE
        }
        better = {name: change.value for name, change in changes.items() if change.high < 0}
        if better:
            return min(better, key=lambda name: better[name]), (
                f"its out-of-fold calibration error is below that of {base} "
                "by more than one standard deviation"
            )
        if changes:
            names = " and ".join(changes)
            why = f"{why}; {names} did not calibrate better by one standard deviation"
        return base, why

    def _describe(self, trial: Trial, base: Trial) -> dict[str, Any]:
        scores = calibration_intervals(trial.scores, draws=self.draws, seed=self.seed)
        change = None if trial is base else asdict(self._change(trial, base, 0.95))
        return {
            "method": trial.method,
            **{name: asdict(scores[name]) for name in (SCORE, "ece", "nll", "brier")},
            "change": change,
        }


@dataclass(frozen=True)
class Trial:
    """A candidate and its out-of-fold scores."""

    method: str
    scores: RowScores


@dataclass(frozen=True)
class Steps:
    """A stretch of a longer job's progress."""

    context: FitContext
    before: int
    total: int

    def done(self, count: int) -> None:
        """Report that ``count`` steps of this stretch are done."""
        self.context.step(self.before + count, self.total)


def _base(
    recipes: dict[str, Calibrator], data: CalibrationSet, scaled: CalibrationMap
) -> tuple[str, str]:
    """``temperature`` if it pays for its parameter, else ``identity``; and why."""
    assert isinstance(scaled, TemperatureMap)  # noqa: S101
    if "temperature" not in recipes:
        return "identity", "it is the only simple candidate"
    gain = 2 * data.n * (mean_nll(data, 1.0) - mean_nll(data, 1 / scaled.temperature))
    if gain > 2:
        return "temperature", f"T = {scaled.temperature:.3g} raises the likelihood beyond chance"
    return (
        "identity",
        f"T = {scaled.temperature:.3g} would raise the likelihood no more than chance",
    )


def _with_prior(
    data: CalibrationSet, scaled: CalibrationMap, context: FitContext
) -> TemperatureMap:
    """Temperature scaling with log T ~ N(0, 0.5^2), for when the data alone cannot say."""
    reason = (
        f"{data.n} rows are too few to compare methods"
        if data.n < FEW_ROWS
        else scaled.fit_info["warnings"][0]["message"]
    )

    def penalised(beta: float) -> float:
        context.cancelled()
        return data.n * mean_nll(data, beta) + 0.5 * (math.log(beta) / PRIOR_DEVIATION) ** 2

    beta, _ = minimise_on_grid(penalised, 1.0, octaves=16)
    context.warn(SmallSample, f"{reason}: temperature scaling with a prior of T near 1 is used")
    info = {"objective": "nll", "device": "cpu", "at_bound": False, "prior": PRIOR_DEVIATION}
    fitted = TemperatureMap(k=data.k, kind=data.kind, temperature=1 / beta, fit_info=info)
    return fitted.with_info(
        chosen_by=Auto.name, winner="temperature", why=reason, base="temperature", candidates=[]
    )
