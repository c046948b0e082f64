"""Auto: the additive map or, if the predicted class may change, a map that measurably beats it."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from annotated_types import Ge, Gt, Le

from calibrators.base import CalibrationMap, Calibrator
from calibrators.data import CalibrationSet
from calibrators.errors import (
    BoundarySolution,
    CalibrationWarning,
    OutOfTime,
    ParameterError,
    SmallSample,
    shown,
)
from calibrators.fitting.context import FitContext
from calibrators.methods._after_temperature import AfterTemperature, fallback_reason
from calibrators.methods._cross_validation import BASE, Contest, Trial, steps
from calibrators.methods.temperature import TemperatureMap, TemperatureScaling, minimise_on_grid
from calibrators.metrics import Interval, calibration_intervals, fold_factor, mean_interval
from calibrators.numerics.softmax import mean_nll

FEW_ROWS = 20
PRIOR_DEVIATION = 0.5
TWO_DEVIATIONS = 0.9545
DRAWS = 200
SCORE = "nll"
SHOWN = ("debiased_squared_error", "ece", SCORE, "brier", "accuracy")
ADDITIVE = "the data determine how smooth and how large its correction is; no tuning is needed"


@dataclass(frozen=True)
class Auto(Calibrator):
    """The default method: fit ``additive`` unless another method is allowed to compete and wins.

    With fewer than 20 rows, or if temperature scaling has no finite optimum, the map is temperature
    scaling with the prior ``log T ~ N(0, 0.5^2)``.

    With ``allow_class_change``, the methods that may change the predicted class compete with
    ``additive``; with ``candidates``, the named methods compete. All are compared by their NLL in a
    stratified cross-validation with ``folds`` folds. A method must beat ``additive`` by two
    standard errors of the paired difference (widened because the folds share rows); the best of
    these methods wins. The winner is fitted on all rows, and its map is returned. The map's
    ``fit_info`` lists every candidate with its out-of-fold scores, their 95 % intervals and the
    change from ``additive``; ``why`` states the reason for the choice.

    ``budget``, in seconds, limits the cross-validation but not the final fit of the winner. A
    candidate that would not finish in time is left out: ``left_out`` in ``fit_info`` names it with
    the reason, and an OutOfTime warning is issued. The same data and seed yield the same map unless
    a candidate is left out. The report of ``fit_and_judge`` states the seconds that each candidate
    took.

    This default is based on the comparison in docs/studies/auto.md.

    >>> import numpy as np
    >>> rng = np.random.default_rng(1)
    >>> z = rng.normal(size=(800, 4)) * 2
    >>> y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)        # already perfectly calibrated
    >>> fitted = Auto().fit(CalibrationSet(3 * z, y))            # overconfident by a factor of 3
    >>> fitted.method, fitted.fit_info["chosen_by"]
    ('additive', 'auto')
    """

    name = "auto"
    summary = "the additive map or, if the class may change, a method that measurably beats it"
    reference = "docs/studies/auto.md"
    cost = "the cost of additive; with candidates, about four times their total cost"

    seed: Annotated[int, Ge(0), Le(2**32 - 1)] = 0
    candidates: tuple[str, ...] = ()
    allow_class_change: bool = False
    budget: Annotated[float, Gt(0), Le(1e6)] = 300.0
    folds: Annotated[int, Ge(2), Le(20)] = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.candidates:
            self._recipes()

    @property
    def method_needing_segments(self) -> str | None:
        """Name of the first candidate that needs the segment of each row, or None."""
        from calibrators.registry import get_method

        return next((name for name in self.candidates if get_method(name).needs_segments), None)

    def memory_bytes(self, n: int, k: int) -> int:
        """Estimate the peak memory of the largest candidate, including copies of folds."""
        recipes = self._recipes()
        folds = 8 * (n * k + 4 * len(recipes) * n) if len(recipes) > 1 else 0
        return folds + max(one.memory_bytes(n, k) for one in recipes.values())

    def _fit(self, data: CalibrationSet, context: FitContext) -> CalibrationMap:
        inner = context.inner()
        scaled = TemperatureScaling().fit_in(data, inner)
        assert isinstance(scaled, TemperatureMap)  # noqa: S101
        reason = fallback_reason(scaled)
        category = inner.warned[-1][0] if inner.warned else BoundarySolution
        if data.n < FEW_ROWS:
            category = SmallSample
            reason = f"{data.n} rows are too few for another method"
        recipes = self._recipes()
        total = steps(recipes, self.folds)
        if reason is not None:
            fitted: CalibrationMap = _with_prior(data, reason, category, context)
            context.step(total, total)
            return self._with_choice(fitted, reason, {}, [])
        if len(recipes) == 1:
            fitted = _fit_after(scaled, recipes[BASE], data, context)
            return self._with_choice(fitted, ADDITIVE, {}, _only_by_name(data, recipes))
        contest = Contest(data, context, folds=self.folds, seed=self.seed, budget=self.budget)
        trials = contest.run(recipes)
        winner, why = self._winner(trials)
        fitted = _fit_after(scaled, recipes[winner], data, context.without_progress())
        context.step(total, total)
        if contest.left_out:
            names = ", ".join(str(one["method"]) for one in contest.left_out)
            context.warn(
                OutOfTime, f"the budget of {self.budget:g} seconds was too short for: {names}"
            )
        left_out = [*contest.left_out, *_only_by_name(data, recipes)]
        return self._with_choice(fitted, why, trials, left_out)

    def _with_choice(
        self,
        fitted: CalibrationMap,
        why: str,
        trials: dict[str, Trial],
        left_out: list[dict[str, str]],
    ) -> CalibrationMap:
        """Return a map whose ``fit_info`` also records the choice."""
        return fitted.with_info(
            chosen_by=self.name,
            winner=fitted.method,
            why=why,
            baseline=BASE,
            score=SCORE,
            candidates=[self._describe(one, trials[BASE]) for one in trials.values()],
            budget_seconds=self.budget,
            left_out=left_out,
        )

    def _recipes(self) -> dict[str, Calibrator]:
        """Return the recipes of the candidates by name, additive first, with this recipe's seed."""
        from calibrators.registry import all_methods, keeps_class, make_recipe

        if self.name in self.candidates:
            raise ParameterError("bad_parameter", "Auto.candidates must not name 'auto' itself")
        if len(set(self.candidates)) < len(self.candidates):
            twice = next(one for one, count in Counter(self.candidates).items() if count > 1)
            raise ParameterError(
                "bad_parameter",
                f"Auto.candidates must name each method once, got {shown(twice)} more than once",
            )
        methods = all_methods()
        changing = [
            name
            for name in methods
            if keeps_class(name) is False and not methods[name].needs_features
        ]
        for name in self.candidates:
            if name in methods and methods[name].needs_features:
                raise ParameterError(
                    "bad_parameter",
                    f"Auto.candidates names {name!r}, which needs features: fit it separately, "
                    "because callers would need to send features only if it won",
                )
            if name in changing and not self.allow_class_change:
                raise ParameterError(
                    "bad_parameter",
                    f"Auto.candidates names {name!r}, which may change the predicted class: "
                    "set allow_class_change=True or leave it out",
                )
        by_default = [name for name in changing if not all_methods()[name].for_comparison]
        names = self.candidates or (by_default if self.allow_class_change else [])
        known = dict.fromkeys([BASE, *names])
        return {name: make_recipe(name, {}, seed=self.seed) for name in known}

    def _change(self, trial: Trial, base: Trial, level: float) -> Interval:
        """Return an interval for the difference in NLL between a trial and the base."""
        interval = mean_interval(trial.scores.nll - base.scores.nll, level)
        return interval.widened(fold_factor(self.folds))

    def _winner(self, trials: dict[str, Trial]) -> tuple[str, str]:
        """Return the best method that clearly beats the base, else the base, and the reason."""
        others = {name: trial for name, trial in trials.items() if name != BASE}
        changes = {
            name: self._change(trial, trials[BASE], TWO_DEVIATIONS)
            for name, trial in others.items()
        }
        better = {name: change.value for name, change in changes.items() if change.high < 0}
        if not better:
            return BASE, (
                "no other method has an out-of-fold NLL lower by two standard errors; "
                f"compared with: {', '.join(others) or 'none'}"
            )
        return min(better, key=lambda name: better[name]), (
            f"its out-of-fold NLL is lower than {BASE}'s by more than two standard errors"
            + (", and is the lowest" if len(better) > 1 else "")
        )

    def _describe(self, trial: Trial, base: Trial) -> dict[str, Any]:
        scores = calibration_intervals(trial.scores, draws=DRAWS, seed=self.seed)
        change = None if trial is base else asdict(self._change(trial, base, 0.95))
        return {
            "method": trial.method,
            **{name: asdict(scores[name]) for name in SHOWN},
            "change": change,
        }


def _fit_after(
    scaled: TemperatureMap, recipe: Calibrator, data: CalibrationSet, context: FitContext
) -> CalibrationMap:
    """Fit on all rows; methods that start with temperature scaling reuse ``scaled``."""
    if isinstance(recipe, AfterTemperature):
        return recipe.fit_after(data, scaled, context)
    return recipe.fit_in(data, context)


def _only_by_name(data: CalibrationSet, recipes: dict[str, Calibrator]) -> list[dict[str, str]]:
    """Return the methods that suit this set but compete only if named, with the reason."""
    if data.segments is None or "segmented" in recipes:
        return []
    why = "its map always needs the segment of each row: add it to candidates to try it"
    return [{"method": "segmented", "why": why}]


def _with_prior(
    data: CalibrationSet, reason: str, category: type[CalibrationWarning], context: FitContext
) -> TemperatureMap:
    """Fit temperature scaling with the prior log T ~ N(0, 0.5^2), as a fallback."""

    def penalised(beta: float) -> float:
        context.cancelled()
        return data.n * mean_nll(data, beta) + 0.5 * (math.log(beta) / PRIOR_DEVIATION) ** 2

    beta, _ = minimise_on_grid(penalised, 1.0, octaves=16)
    context.warn(category, f"{reason}: temperature scaling with a prior around T = 1 is used")
    info = {"objective": "nll", "device": "cpu", "at_bound": False, "prior": PRIOR_DEVIATION}
    return TemperatureMap(k=data.k, kind=data.kind, temperature=1 / beta, fit_info=info)
