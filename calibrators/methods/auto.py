"""Auto: the best of the registered methods that measurably calibrate better, or none at all."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from annotated_types import Ge, Gt, Le

from calibrators.base import CalibrationMap, Calibrator
from calibrators.context import FitContext
from calibrators.data import CalibrationSet
from calibrators.devices import has_torch, torch_device
from calibrators.errors import NotInstalled, OutOfTime, ParameterError, SmallSample, shown
from calibrators.methods._after_temperature import why_hopeless
from calibrators.methods._contest import SIMPLE, Contest, Trial, steps
from calibrators.methods.temperature import TemperatureMap, TemperatureScaling
from calibrators.metrics import (
    Interval,
    calibration_intervals,
    paired_intervals,
)
from calibrators.solvers import mean_nll, minimise_on_grid

FEW_ROWS = 100
NO_TORCH = "torch is not installed (pip install 'calibrd[train]')"
PRIOR_DEVIATION = 0.5
TWO_DEVIATIONS = 0.9545
CALIBRATION, LIKELIHOOD = "debiased_squared_error", "nll"
SHOWN = (CALIBRATION, "ece", LIKELIHOOD, "brier", "accuracy")
SAID = {CALIBRATION: "calibration error", LIKELIHOOD: "NLL"}


@dataclass(frozen=True)
class Auto(Calibrator):
    """Chooses among the registered methods that keep the predicted class, inside the fit set alone.

    1. Fewer than 100 rows, or no finite optimum: temperature scaling with log T ~ N(0, 0.5^2).
    2. The base is ``temperature`` if its likelihood gain pays for its parameter,
       ``2 n (NLL(1) - NLL(T)) > 2``; otherwise ``identity``: the model is left alone.
    3. Every other candidate is cross-validated (``folds``, stratified) against the base by the
       out-of-fold debiased squared calibration error (top label, 15 equal-mass bins). It must beat
       the base by two standard deviations of the paired bootstrap (``draws`` draws, shifted to the
       estimate: their 98 % quantile must be below 0); the best of those that do wins.

    The winner is fitted on all rows and returned as its own kind of map. Its ``fit_info`` holds
    every candidate with its out-of-fold scores and 95 % intervals, its change against the base, and
    ``why``.

    Candidates are all methods that keep the predicted class, or those named and the two above.
    Without torch, those that need it and were not named are left out, with a NotInstalled warning.
    With ``allow_class_change`` the others join, and all are compared by the out-of-fold NLL
    instead: how well the top label is calibrated says nothing of whether it is a better one.

    ``budget``, in seconds, limits the cross-validation of a fit; the winner's fit on all rows comes
    after it (``fit_and_judge`` fits two to six times). A candidate that would not end in time is
    left out: ``fit_info`` says which and why in ``left_out``, and an OutOfTime warning is given.
    The same data and seed give the same map as long as none is. The report of ``fit_and_judge`` has
    the seconds that each candidate took.

    docs/studies/auto.md has the rules that were compared, docs/studies/posthoc.md what this one
    reaches beside every single method.

    >>> import numpy as np
    >>> rng = np.random.default_rng(1)
    >>> z = rng.normal(size=(800, 4)) * 2
    >>> y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)        # perfectly calibrated already
    >>> fitted = Auto(candidates=("identity", "temperature")).fit(CalibrationSet(z, y))
    >>> fitted.method, fitted.fit_info["why"]
    ('identity', 'T = 0.99 would raise the likelihood no more than chance')
    """

    name = "auto"
    summary = "the best of the methods that measurably calibrate better, by cross-validation"
    reference = "docs/studies/auto.md has the rules that were compared"
    cost = "about three times all its candidates, and the winner; judging fits it 2 to 6 times"

    seed: Annotated[int, Ge(0), Le(2**32 - 1)] = 0
    candidates: tuple[str, ...] = ()
    allow_class_change: bool = False
    budget: Annotated[float, Gt(0), Le(1e6)] = 300.0
    folds: Annotated[int, Ge(2), Le(20)] = 4
    draws: Annotated[int, Ge(20), Le(2000)] = 200

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.candidates:
            self._recipes()

    @property
    def method_needing_groups(self) -> str | None:
        """The first candidate that was named and needs the segment of each row."""
        from calibrators.registry import get_method

        return next((name for name in self.candidates if get_method(name).needs_groups), None)

    def memory_bytes(self, n: int, k: int) -> int:
        """That of the candidate that takes most, and the folds."""
        recipes = self._recipes()
        folds = 8 * (n * k + 4 * len(recipes) * n)
        return folds + max(one.memory_bytes(n, k) for one in recipes.values())

    def _fit(self, data: CalibrationSet, context: FitContext) -> CalibrationMap:
        recipes, missing = self._installed(self._recipes())
        total = steps(recipes, self.folds)
        scaled = TemperatureScaling().fit_in(data, context.inner())
        assert isinstance(scaled, TemperatureMap)  # noqa: S101
        context.step(1, total)
        reason = why_hopeless(scaled)
        if data.n < FEW_ROWS:
            reason = f"{data.n} rows are too few to compare methods"
        if reason is not None:
            fitted = _with_prior(data, reason, context)
            context.step(total, total)
            return fitted.with_info(score=self._score, budget_seconds=self.budget, left_out=[])
        if any(recipe.needs_torch for recipe in recipes.values()):
            torch_device(context.device)  # loading it takes seconds that are no candidate's
        contest = Contest(data, context, folds=self.folds, seed=self.seed, budget=self.budget)
        trials = contest.held(recipes)
        base, why = base_of(data, scaled)
        winner, why = self._winner(trials, base, why)
        chosen = recipes[winner].fit_in(data, context.without_progress())
        context.step(total, total)
        if missing:
            names = ", ".join(one["method"] for one in missing)
            context.warn(NotInstalled, f"{NO_TORCH}, which left these out: {names}")
        if contest.left_out:
            names = ", ".join(str(one["method"]) for one in contest.left_out)
            context.warn(
                OutOfTime, f"the budget of {self.budget:g} seconds left these out: {names}"
            )
        return chosen.with_info(
            chosen_by=self.name,
            winner=winner,
            why=why,
            baseline=base,
            score=self._score,
            candidates=[self._describe(one, trials[base]) for one in trials.values()],
            budget_seconds=self.budget,
            left_out=[*contest.left_out, *missing, *_not_asked(data, recipes)],
        )

    def _installed(
        self, recipes: dict[str, Calibrator]
    ) -> tuple[dict[str, Calibrator], list[dict[str, str]]]:
        """Return the candidates that can be fitted here, and those left out for want of torch.

        A candidate that was named is never left out: its fit says what is missing.
        """
        need = [
            name
            for name, recipe in recipes.items()
            if recipe.needs_torch and name not in self.candidates
        ]
        if not need or has_torch():
            return recipes, []
        kept = {name: recipe for name, recipe in recipes.items() if name not in need}
        return kept, [{"method": name, "why": NO_TORCH} for name in need]

    def _recipes(self) -> dict[str, Calibrator]:
        """The candidates' recipes by name, identity among them, with this recipe's seed."""
        from calibrators.registry import all_methods, keeps_class, make_recipe

        if self.name in self.candidates:
            raise ParameterError("bad_parameter", "Auto.candidates must not name 'auto' itself")
        if len(set(self.candidates)) < len(self.candidates):
            twice = next(one for one, count in Counter(self.candidates).items() if count > 1)
            raise ParameterError(
                "bad_parameter", f"Auto.candidates must name each method once, got {shown(twice)}"
            )
        kept = (True, False) if self.allow_class_change else (True,)
        names = self.candidates or [n for n in all_methods() if keeps_class(n) in kept]
        for name in names:
            if keeps_class(name) is False and not self.allow_class_change:
                raise ParameterError(
                    "bad_parameter",
                    f"Auto.candidates names {name!r}, which may change the predicted class: "
                    "that needs allow_class_change=True",
                )
        known = dict.fromkeys([*SIMPLE, *names])
        return {name: make_recipe(name, {}, seed=self.seed) for name in known}

    @property
    def _score(self) -> str:
        return LIKELIHOOD if self.allow_class_change else CALIBRATION

    def _changes(self, trial: Trial, base: Trial, level: float) -> dict[str, Interval]:
        return paired_intervals(
            base.scores, trial.scores, draws=self.draws, level=level, seed=self.seed
        )

    def _winner(self, trials: dict[str, Trial], base: str, why: str) -> tuple[str, str]:
        """The best score of those that clearly beat the base, else the base; and why."""
        better, others = {}, []
        for name, trial in trials.items():
            if name in SIMPLE:
                continue
            change = self._changes(trial, trials[base], TWO_DEVIATIONS)[self._score]
            if change.high < 0:
                better[name] = change.value
            others.append(name)
        if better:
            return min(better, key=lambda name: better[name]), (
                f"its out-of-fold {SAID[self._score]} is below that of {base} "
                "by more than two standard deviations"
                + (", and the lowest" if len(better) > 1 else "")
            )
        if others:
            why = (
                f"{why}; the out-of-fold {SAID[self._score]} of none of {', '.join(others)} "
                "is lower by two standard deviations"
            )
        return base, why

    def _describe(self, trial: Trial, base: Trial) -> dict[str, Any]:
        scores = calibration_intervals(trial.scores, draws=self.draws, seed=self.seed)
        change = None if trial is base else asdict(self._changes(trial, base, 0.95)[self._score])
        return {
            "method": trial.method,
            **{name: asdict(scores[name]) for name in SHOWN},
            "change": change,
        }


def _not_asked(data: CalibrationSet, recipes: dict[str, Calibrator]) -> list[dict[str, str]]:
    """What could be fitted on this set as well, but is taken only if it is named."""
    if data.groups is None or "segmented" in recipes:
        return []
    why = "its map needs the segment of each row whenever it is applied: name it in candidates"
    return [{"method": "segmented", "why": why}]


def base_of(data: CalibrationSet, scaled: TemperatureMap) -> tuple[str, str]:
    """``temperature`` if its likelihood gain pays for its parameter, else ``identity``; and why."""
    gain = 2 * data.n * (mean_nll(data, 1.0) - mean_nll(data, 1 / scaled.temperature))
    said = f"T = {scaled.temperature:.3g}"
    if gain > 2:
        return "temperature", f"{said} raises the likelihood beyond chance"
    return "identity", f"{said} would raise the likelihood no more than chance"


def _with_prior(data: CalibrationSet, reason: str, context: FitContext) -> TemperatureMap:
    """Temperature scaling with log T ~ N(0, 0.5^2), for when the data alone cannot say."""

    def penalised(beta: float) -> float:
        context.cancelled()
        return data.n * mean_nll(data, beta) + 0.5 * (math.log(beta) / PRIOR_DEVIATION) ** 2

    beta, _ = minimise_on_grid(penalised, 1.0, octaves=16)
    context.warn(SmallSample, f"{reason}: temperature scaling with a prior of T near 1 is used")
    info = {"objective": "nll", "device": "cpu", "at_bound": False, "prior": PRIOR_DEVIATION}
    fitted = TemperatureMap(k=data.k, kind=data.kind, temperature=1 / beta, fit_info=info)
    return fitted.with_info(
        chosen_by=Auto.name, winner="temperature", why=reason, baseline="temperature", candidates=[]
    )
